"""Every board keeps the rules of Grafana's dashboard-linter, and ours about alerts and series.

The linter's seventeen rules are restated here; what they exclude stands in ``WITHOUT_INSTANCE`` and
``FIXED_WINDOWS`` with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from board_checks import (
    BOARDS,
    COUNTER,
    RANGED,
    Target,
    filled,
    panels_of,
    selections,
    served,
    shipped_alerts,
    targets,
)
from rule_checks import RUNBOOKS, grouping_labels

from agl.ops.dashboards.thresholds import JUST_ABOVE_ZERO

SERVED = served()
UNITS = {
    "ops", "s", "short", "bytes", "percentunit", "cpm", "Bps", "celsius", "watt", "h", "none",
    "percent", "reqps", "iops", "mbytes", "dateTimeFromNow", "rotmhz", "dtdurations", "hertz",
}  # fmt: skip
WITHOUT_INSTANCE = {
    "ALERTS": "an alert over several targets has no instance, and must be seen all the same",
    "ALERTS_FOR_STATE": "as ALERTS",
    "agl_node_gpus_expected": "node_exporter tells it, of another job than the GPUs it is held to",
}
"""Series that queries need not select by job and instance, and why."""
TOTALS_THAT_FALL = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "errors since the last reset, which is what a person asks for",
}
"""Series named like counters that are shown as they are, and why."""
FIXED_WINDOWS = {
    "Is It Moving?": "a verdict in words over 5 minutes; by the step of the range it would flicker",
    "Who Waits?": "the same, over a minute",
}
"""Panels that look back a fixed time, and why."""

every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())


def panels(board: dict[str, Any], *, text: bool = False) -> Iterator[dict[str, Any]]:
    """The board's panels; those that only hold words are left out unless asked for."""
    yield from (panel for panel in panels_of(board) if text or panel["type"] != "text")


def queries(board: dict[str, Any]) -> list[Target]:
    return [target for target in targets() if target.uid == board["uid"]]


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


# The linter's rules, by their names.


@every_board
def test_uneditable_dashboard(board: dict[str, Any]) -> None:
    assert board["editable"] is False


@every_board
def test_template_datasource(board: dict[str, Any]) -> None:
    variable = variables(board)["datasource"]
    found = (variable["type"], variable["query"], variable["label"])
    assert found == ("datasource", "prometheus", "Data source")


@every_board
@pytest.mark.parametrize("name", ["job", "instance"])
def test_template_job_and_template_instance(board: dict[str, Any], name: str) -> None:
    variable = variables(board)[name]
    assert variable["type"] == "query"
    assert variable["label"] == name
    assert variable["datasource"]["uid"] == "$datasource"
    assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".+")


@every_board
def test_template_label_promql(board: dict[str, Any]) -> None:
    for name, variable in variables(board).items():
        if variable["type"] != "query":
            continue
        call = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert call, variable["query"]
        assert call[2] == name
        for series, matchers, _ in selections(call[1]):
            assert set(matchers) | {name} <= SERVED[series]


@every_board
def test_template_on_time_change_reload(board: dict[str, Any]) -> None:
    found = [v["refresh"] for v in variables(board).values() if v["type"] == "query"]
    assert set(found) == {2}


@every_board
def test_panel_datasource(board: dict[str, Any]) -> None:
    for panel in panels(board):
        wanted = {"type": "prometheus", "uid": "$datasource"}
        assert panel["datasource"] == wanted, panel["title"]
        assert all(target["datasource"] == wanted for target in panel["targets"])


@every_board
def test_panel_title_description(board: dict[str, Any]) -> None:
    assert all(panel["title"] for panel in panels(board, text=True))
    for panel in panels(board):
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["description"].endswith("."), panel["title"]


@every_board
def test_panel_units(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@every_board
def test_panel_no_targets(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["targets"], panel["title"]


@every_board
def test_target_promql_and_no_target_logql(board: dict[str, Any]) -> None:
    """Every query is PromQL, which LogQL is not; of Loki's data there is none (logql-auto)."""
    for target in queries(board):
        promql_parser.parse(filled(target.expr))
        assert target.content["legendFormat"]


@every_board
def test_target_rate_interval(board: dict[str, Any]) -> None:
    for target in queries(board):
        windows = re.findall(r"\[([^\]]*)\]", target.expr)
        if target.panel["title"] not in FIXED_WINDOWS:
            assert set(windows) <= {"$__rate_interval"}


@every_board
def test_target_job_and_target_instance(board: dict[str, Any]) -> None:
    for target in queries(board):
        for series, matchers, _ in selections(target.expr):
            if series in WITHOUT_INSTANCE:
                continue
            assert ".+" in matchers.get("job", ()), f"{target.name}: {series} of any job"
            assert ".+" in matchers.get("instance", ()), f"{target.name}: {series}"


@every_board
def test_target_counter_agg(board: dict[str, Any]) -> None:
    for target in queries(board):
        for series, _, above in selections(target.expr):
            if series in TOTALS_THAT_FALL or not series.endswith(COUNTER):
                continue
            calls = {node.func.name for node in above if isinstance(node, promql_parser.Call)}
            counted = any(str(getattr(node, "op", "")) == "count" for node in above)
            assert calls & RANGED or counted, f"{target.name}: {series} is a counter"


# Ours.


@every_board
def test_series_and_labels_exist(board: dict[str, Any]) -> None:
    for target in queries(board):
        named: set[str] = set()
        for series, matchers, _ in selections(target.expr):
            assert series in SERVED, f"{target.name}: nobody serves {series}"
            assert set(matchers) <= SERVED[series], f"{target.name}: {series}"
            named |= SERVED[series]
        assert grouping_labels(target.expr) <= named, target.name


@every_board
def test_store_wide_values_are_never_summed_over_exporters(board: dict[str, Any]) -> None:
    """Every exporter serves the same, so a sum would count each store host once more."""
    for target in queries(board):
        for series, _, above in selections(target.expr):
            if not series.startswith("agl_state_"):
                continue
            innermost = next(
                node for node in reversed(above) if isinstance(node, promql_parser.AggregateExpr)
            )
            assert str(innermost.op) == "max", f"{series} must stand in max by (...)"


@every_board
def test_legend_shows_only_labels_that_the_query_keeps(board: dict[str, Any]) -> None:
    for target in queries(board):
        shown = set(re.findall(r"{{(\w+)}}", target.content["legendFormat"]))
        known = {label for series, _, _ in selections(target.expr) for label in SERVED[series]}
        assert shown <= known, target.name
        grouped = grouping_labels(target.expr)
        assert not grouped or shown <= grouped, target.name


@every_board
def test_links_lead_somewhere(board: dict[str, Any]) -> None:
    for panel in panels(board, text=True):
        found = [link["url"] for link in panel.get("links", [])]
        if panel["type"] == "text":
            found += re.findall(r"\]\(([^)]+)\)", panel["options"]["content"])
        for url in found:
            path = url.split("?")[0]
            if path.startswith("/d/"):
                assert path.removeprefix("/d/") in BOARDS, url
            else:
                assert (RUNBOOKS / f"{path.removeprefix('/runbooks/')}.md").is_file(), url


@every_board
def test_thresholds_are_those_of_its_alerts(board: dict[str, Any]) -> None:
    """A colour begins exactly where one of the alerts does whose runbook the panel links."""
    alerts = shipped_alerts()
    for panel in panels(board):
        linked = [link["url"].rpartition("/")[2] for link in panel.get("links", [])]
        named = [alerts.get(name) for name in linked if (RUNBOOKS / f"{name}.md").is_file()]
        values = {alert.threshold for alert in named if alert.threshold is not None}
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        drawn = {step["value"] for step in steps[1:]}
        assert drawn <= {value or JUST_ABOVE_ZERO for value in values}, panel["title"]


@every_board
def test_every_alert_of_the_board_is_explained_on_it(board: dict[str, Any]) -> None:
    text = str(board["panels"])
    for alert in shipped_alerts().of_board(board["uid"]):
        assert f"[{alert.name}](/runbooks/{alert.name})" in text


@every_board
def test_every_alert_of_the_board_has_a_panel_on_it(board: dict[str, Any]) -> None:
    """Whoever comes from a page finds a picture of what it is about."""
    linked = {
        link["url"].removeprefix("/runbooks/")
        for panel in panels(board)
        for link in panel.get("links", [])
    }
    assert {alert.name for alert in shipped_alerts().of_board(board["uid"])} <= linked


def test_every_alert_leads_to_a_board() -> None:
    alerts = shipped_alerts()
    led = {alert.name for uid in BOARDS for alert in alerts.of_board(uid)}
    assert led == alerts.names()


@every_board
def test_annotations_tell_of_alerts_restarts_and_benchmarks(board: dict[str, Any]) -> None:
    found = {entry["name"]: entry for entry in board["annotations"]["list"]}
    assert set(found) == {"Alerts", "Restarts", "Benchmark runs"}
    for name in ("Alerts", "Restarts"):
        assert found[name]["datasource"]["uid"] == "$datasource"
        promql_parser.parse(filled(found[name]["expr"]))
        assert {series for series, _, _ in selections(found[name]["expr"])} <= set(SERVED)
    assert found["Benchmark runs"]["target"]["tags"] == ["agl-benchmark"]


@every_board
def test_panels_are_numbered_and_do_not_overlap(board: dict[str, Any]) -> None:
    ids = [panel["id"] for row in board["panels"] for panel in (row, *(row.get("panels") or []))]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


@every_board
def test_titles_are_unique(board: dict[str, Any]) -> None:
    """Runbooks name panels by their titles."""
    titles = [panel["title"] for panel in panels_of(board)]
    assert sorted(set(titles)) == sorted(titles)
