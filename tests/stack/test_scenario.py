"""The training loop against the running bundle, with Prometheus as witness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGL = str(Path(sys.executable).with_name("agl"))

pytestmark = [pytest.mark.stack]


@pytest.mark.timeout(300)
def test_every_rollout_is_verified_and_prometheus_agrees(stack: Any) -> None:
    done = subprocess.run(
        [
            *(AGL, "bench", "scenario", "minimal", "--json", "-"),
            *("--store-url", stack.store_url, "--prometheus-url", stack.prometheus_url),
            *("--rollouts", "200", "--batch-size", "50", "--runners", "4", "--seed", "11"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    details = json.loads(done.stdout)["details"]
    assert details["verified"] == 200
    assert details["statuses"] == {"failed": 10, "succeeded": 190}
    assert details["retries"] == 30
    assert details["prometheus"]["agrees"] is True
    assert details["prometheus"]["difference"] == details["prometheus"]["played"] == 200
