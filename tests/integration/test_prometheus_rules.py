"""The rule files, alerts and their own tests, through the promtool of each line of Prometheus."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from rule_checks import ALERTS, ROOT, RULE_TESTS, RULES

TOOLS = Path(
    os.environ.get("AGL_LAB_TOOLS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agl-stack/lab/prometheus"
)
RULE_FILES = sorted([*ALERTS.glob("*.yml"), *RULES.glob("*.yml")])


@pytest.fixture(params=["promtool", "promtool3"])
def promtool(request: pytest.FixtureRequest) -> Path:
    """The program of the 2.53 line, and of the 3.x line where it is built."""
    tool = TOOLS / request.param
    if not tool.exists():
        pytest.skip(f"{tool} is not there: tests/lab/prometheus/ensure.sh makes it")
    return tool


def run(tool: Path, *arguments: str | Path) -> None:
    done = subprocess.run([tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid(promtool: Path) -> None:
    run(promtool, "check", "rules", *RULE_FILES)


@pytest.mark.parametrize("tests", sorted(RULE_TESTS.glob("*.yml")), ids=lambda path: path.stem)
def test_alerts_fire_when_they_should(promtool: Path, tests: Path) -> None:
    run(promtool, "test", "rules", tests)
