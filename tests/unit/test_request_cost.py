"""No request becomes dearer unnoticed: instructions held against a baseline in the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_no_route_executes_more_than_the_baseline_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.cost"], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    if "not compared" in done.stdout:
        pytest.skip(done.stdout.partition("not compared: ")[2].strip())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "baseline" in done.stdout
