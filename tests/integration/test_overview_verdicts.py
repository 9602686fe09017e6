"""The verdicts in words at the top of the overview, as Prometheus itself evaluates them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "grafana" / "dashboards" / "agl-overview.json"
AFTER = "10m"
"""When the verdict is asked for; series have a sample each 5 s."""
WELL = {
    "agl_state_up": "1x130",
    "agl_state_running_attempts": "4x130",
    "agl_state_queue_depth": "0x130",
    'agl_state_workers{status="idle"}': "0x130",
    'agl_rollouts_total{status="succeeded"}': "0+8x130",
    "agl_rollouts_claims_total": "0+8x130",
}
UNTIL_8_MINUTES = "96 stale"
"""Samples before the target is lost; Prometheus marks its series as stale then."""


def series(name: str, values: str) -> dict[str, str]:
    labels = 'job="app", instance="app-exporter:4748", host="h"'
    bare, _, more = name.partition("{")
    return {"series": f"{bare}{{{labels}, {more}" if more else f"{name}{{{labels}}}",
            "values": values}  # fmt: skip


def verdict(tmp_path: Path, title: str, values: dict[str, str]) -> str:
    """The word that the panel shows after ten minutes of these series."""
    board = json.loads(BOARD.read_text())
    (panel,) = [p for p in board["panels"] if p["title"] == title and p["type"] == "stat"]
    expression = panel["targets"][0]["expr"].replace("$job", ".+").replace("$instance", ".+")
    words: dict[str, Any] = {
        number: shown["text"]
        for mapping in panel["fieldConfig"]["defaults"]["mappings"]
        for number, shown in mapping["options"].items()
    }
    for number, word in words.items():
        case = {
            "interval": "5s",
            "input_series": [series(*item) for item in values.items()],
            "promql_expr_test": [
                {"expr": expression, "eval_time": AFTER,
                 "exp_samples": [{"labels": "{}", "value": float(number)}]}
            ],
        }  # fmt: skip
        path = tmp_path / f"verdict{number}.yml"
        path.write_text(yaml.safe_dump({"tests": [case]}))
        if subprocess.run(["promtool", "test", "rules", path], capture_output=True).returncode == 0:
            return word
    raise AssertionError(f"{title} shows none of {sorted(words.values())}")


CASES: dict[str, tuple[dict[str, str], str, str]] = {
    "well": ({}, "Moving", "Nobody"),
    "the store stands still": (
        {"agl_state_up": "1x110 0x20", 'agl_rollouts_total{status="succeeded"}': "0+8x110 880x20"},
        "No answer",
        "Not seen",
    ),
    "one call failed": ({"agl_state_up": "1x118 0 1"}, "Moving", "Nobody"),
    "the exporter is lost": (
        {name: f"{values.partition('x')[0]}x{UNTIL_8_MINUTES}" for name, values in WELL.items()},
        "Not seen",
        "Not seen",
    ),
    "nobody takes the work": (
        {
            "agl_state_running_attempts": "0x130",
            "agl_state_queue_depth": "12x130",
            'agl_rollouts_total{status="succeeded"}': "880x130",
        },
        "Stuck",
        "Queue waits",
    ),
    "workers are gone, with what they had": (
        {
            "agl_state_queue_depth": "12x130",
            'agl_rollouts_total{status="succeeded"}': "880x130",
            "agl_rollouts_claims_total": "880x130",
        },
        "Stuck",
        "Queue waits",
    ),
    "long attempts": (
        {
            'agl_rollouts_total{status="succeeded"}': "880x130",
            "agl_rollouts_claims_total": "880x130",
        },
        "Busy",
        "Nobody",
    ),
    "no work": (
        {
            "agl_state_running_attempts": "0x130",
            'agl_state_workers{status="idle"}': "4x130",
            'agl_rollouts_total{status="succeeded"}': "880x130",
        },
        "Idle",
        "Workers wait",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_overview_says_what_is_so(tmp_path: Path, case: str) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing - apt-get install prometheus")
    changed, moving, waits = CASES[case]
    assert verdict(tmp_path, "Is It Moving?", {**WELL, **changed}) == moving
    assert verdict(tmp_path, "Who Waits?", {**WELL, **changed}) == waits
