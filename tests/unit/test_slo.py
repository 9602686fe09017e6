"""Objectives become rules, or a refusal that names what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rule_checks import ALERTS, ROOT

from agl.errors import EnvironmentFault
from agl.ops.alerting import load_alerts
from agl.ops.alerting.slo import read_slos, slo_rules

SLOS = ROOT / "prometheus" / "data" / "slo.yml"
GOOD: dict[str, Any] = {
    "name": "quick",
    "about": "quick answers",
    "objective": 0.9,
    "reason": "because",
    "select": "",
    "histogram": "agl_rollouts_claim_delay",
    "limit": 30,
}


def table(folder: Path, **changes: Any) -> Path:
    path = folder / "slo.yml"
    entry = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump({"slos": [entry]}))
    return path


def rules(path: Path) -> dict[str, str]:
    groups = yaml.safe_load(slo_rules(path))["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def test_a_histograms_events_are_bad_above_the_limit(tmp_path: Path) -> None:
    found = rules(table(tmp_path))
    count = "sum without (mode) (rate(agl_rollouts_claim_delay_count[5m]))"
    good = 'sum without (mode, le) (rate(agl_rollouts_claim_delay_bucket{le="30.0"}[5m]))'
    slo = '"slo", "quick", "", "")'
    assert found["slo:events:rate5m"] == f"label_replace({count}, {slo}"
    assert found["slo:bad_events:rate5m"] == (
        f"label_replace(clamp_min({count} - {good}, 0), {slo}"
    )
    assert found["slo:budget_events:rate5m"] == f"label_replace({count} * 0.1, {slo}"
    assert found["slo:error_budget:burn_rate3d"] == (
        "slo:bad_events:increase3d / (slo:budget_events:increase3d > 0)"
    )


def test_a_counters_events_are_bad_with_more_labels(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        histogram=None,
        limit=None,
        counter="agl_http_total",
        select='path="/a"',
        bad='status="500"',
    )
    found = rules(path)
    rate = "label_replace(sum without (path, method, status) (rate(agl_http_total"
    assert found["slo:events:rate5m"].startswith(f'{rate}{{path="/a"}}[5m]))')
    assert found["slo:bad_events:rate5m"].startswith(f'{rate}{{path="/a", status="500"}}[5m]))')


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": 99}, "objective 99 of quick"),
        ({"objective": 1.0}, "objective 1.0 of quick"),
        ({"reason": None}, "no 'reason'"),
        ({"limit": None}, "quick has no 'limit'"),
        ({"limit": 31}, "use a bucket: .*30, 60"),
        ({"histogram": "agl_http_total"}, "is no histogram of ours"),
        ({"counter": "agl_http_latency", "bad": "x"}, "is no counter of ours"),
    ],
)
def test_wrong_entries_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvironmentFault, match=named) as refused:
        slo_rules(table(tmp_path, **changes))
    assert str(tmp_path / "slo.yml") in str(refused.value)


def test_every_objective_has_alerts_on_its_budget() -> None:
    expressions = [alert.expr for alert in load_alerts(ALERTS) if alert.component == "slo"]
    for slo in read_slos(SLOS):
        label = f'slo="{slo["name"]}"'
        assert sum(f"burn_rate1h{{{label}}}" in text for text in expressions) == 1
        assert sum(f"burn_rate3d{{{label}}}" in text for text in expressions) == 1
        assert sum(f"slo:events:rate5m{{{label}}}" in text for text in expressions) == 1
