"""The trainer of the README, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ports import free_port
from processes import running_agl, wait_until_answering

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_trainer_of_the_readme_works(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    port = free_port()
    script = tmp_path / "trainer.py"
    assert "http://127.0.0.1:4747" in code
    script.write_text(code.replace(":4747", f":{port}"))
    with running_agl("store", "--host", "127.0.0.1", "--port", str(port)) as store:
        wait_until_answering(f"http://127.0.0.1:{port}/v1/agl/health", store)
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 answer\n"
    assert done.stderr == ""
