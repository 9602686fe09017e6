"""Every alert is complete: labels, annotations, a promtool test, a runbook that tells the truth."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from rule_checks import (
    ALERTS,
    HEADINGS,
    ROOT,
    RULES,
    RUNBOOKS,
    base_name,
    commands,
    grouping_labels,
    known_series,
    links,
    panels_named,
    queries,
    recorded_labels,
    rule_tests,
    selectors,
    state_series_not_taken_once,
)

from agl.cli import COMMANDS
from agl.ops.alerting import Alert, load_alerts, load_recorded
from agl.ops.alerting.rules import ANNOTATIONS, SEVERITIES

RECORDED = load_recorded(RULES)
KNOWN = known_series()
CHECKS = rule_tests()
EACH_ALERT = pytest.mark.parametrize("alert", load_alerts(ALERTS), ids=lambda alert: alert.name)


def check_expression(expression: str) -> None:
    """Fail for a series nobody serves, or a label it does not have."""
    labels_of_all: set[str] = {"le", "quantile", "host", "instance", "job"}
    for name, labels in selectors(expression):
        if name in RECORDED:
            of_series = recorded_labels(name, RECORDED)
            assert labels <= of_series | {"host", "instance", "job"}, f"{name}: {labels}"
            labels_of_all |= of_series
            continue
        known = KNOWN.get(name, KNOWN.get(base_name(name)))
        assert known is not None, f"nobody serves {name}"
        unknown = labels - known - {"le", "quantile"}
        assert not unknown, f"{name} has no label {sorted(unknown)}"
        labels_of_all |= known
    unknown = grouping_labels(expression) - labels_of_all
    assert not unknown, f"no series of the expression has the label {sorted(unknown)}"


@EACH_ALERT
def test_labels_and_annotations_are_complete(alert: Alert) -> None:
    assert re.fullmatch(r"([A-Z][A-Za-z0-9]*)+", alert.name)
    assert alert.severity in SEVERITIES
    assert alert.labels["component"] == alert.component
    assert set(ANNOTATIONS) <= set(alert.annotations)
    assert alert.annotations["runbook_url"] == f"__AGL_LINKS__/runbooks/{alert.name}"
    assert alert.annotations["dashboard_url"].startswith("__AGL_LINKS__/d/")
    assert alert.threshold is None or str(alert.annotations["threshold_source"]).strip()


def test_names_are_unique() -> None:
    names = [alert.name for alert in load_alerts(ALERTS)]
    assert sorted(set(names)) == sorted(names)


@EACH_ALERT
def test_expression_reads_what_is_served(alert: Alert) -> None:
    check_expression(alert.expr)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_recorded_expression_reads_what_is_served(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]+:[a-z0-9_]+:[a-z0-9_]+", name), "level:metric:operations"
    check_expression(RECORDED[name])


@pytest.mark.parametrize(
    "expression", [*RECORDED.values(), *(alert.expr for alert in load_alerts(ALERTS))]
)
def test_store_wide_values_are_never_summed_over_exporters(expression: str) -> None:
    assert not state_series_not_taken_once(expression)


def test_runbooks_take_store_wide_values_once() -> None:
    for path in sorted(RUNBOOKS.glob("*.md")):
        for query in queries(path.read_text()):
            assert not state_series_not_taken_once(query), path.name


def test_boards_take_store_wide_values_once() -> None:
    for path in sorted((ROOT / "grafana" / "dashboards").glob("*.json")):
        for panel in all_panels(json.loads(path.read_text())):
            for target in panel.get("targets", []):  # type: ignore[attr-defined]  # JSON
                expression = target.get("expr", "")
                assert not state_series_not_taken_once(expression), (path.name, panel["title"])


@pytest.mark.parametrize(
    ("expression", "bad"),
    [
        ("max without (instance) (agl_state_queue_depth) > 0", []),
        ("max without(instance, job) (min_over_time(agl_state_up[1m])) == 0", []),
        ("sum(agl_state_queue_depth)", ["agl_state_queue_depth"]),
        ("sum without (instance) (agl_state_retries)", ["agl_state_retries"]),
        ("agl_state_up == 0", ["agl_state_up"]),
        (
            "max without (instance) (agl_state_retries) / agl_state_running_attempts",
            ["agl_state_running_attempts"],
        ),
    ],
)
def test_what_counts_as_taken_once(expression: str, bad: list[str]) -> None:
    assert state_series_not_taken_once(expression) == bad


@EACH_ALERT
def test_promtool_sees_it_silent_and_firing(alert: Alert) -> None:
    checks = CHECKS.get(alert.name, [])
    firing = [alerts for check in checks if (alerts := check.get("exp_alerts"))]
    silent = [check for check in checks if not check.get("exp_alerts")]
    assert firing, "a test that it fires"
    for expected in firing[0]:
        assert expected["exp_labels"]["severity"] == alert.severity
        assert expected["exp_annotations"]["runbook_url"] == alert.annotations["runbook_url"]
    if alert.severity != "none":
        assert len(silent) >= 2, "tests that it is silent when all is well, and just below"


@EACH_ALERT
def test_runbook_has_every_section(alert: Alert) -> None:
    text = (RUNBOOKS / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(HEADINGS)
    for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        assert section.strip(), "an empty section"
    assert list(commands(text)), "no command to paste"


def test_no_runbook_without_its_alert() -> None:
    names = {alert.name for alert in load_alerts(ALERTS)}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} <= names


@EACH_ALERT
def test_runbook_names_what_exists(alert: Alert) -> None:
    text = (RUNBOOKS / f"{alert.name}.md").read_text()
    for command in commands(text):
        check_command(command)
    for query in queries(text):
        check_expression(query)
    for target in links(text):
        if not target.startswith(("/d/", "http", "#")):
            assert (RUNBOOKS / target.split("#")[0]).exists(), target
    for title, uid in panels_named(text):
        board = json.loads((ROOT / "grafana" / "dashboards" / f"{uid}.json").read_text())
        titles = {panel["title"] for panel in all_panels(board)} | {board["title"]}
        assert title in titles, f"{uid} has no panel {title!r}"


def all_panels(board: dict[str, object]) -> list[dict[str, object]]:
    """The panels of a dashboard, those in collapsed rows included."""
    found: list[dict[str, object]] = []
    for panel in board.get("panels", []):  # type: ignore[attr-defined]  # JSON
        found += [panel, *panel.get("panels", [])]
    return found


def check_command(command: str) -> None:
    """Fail for a script, program or compose file of ours that does not exist."""
    words = shlex.split(command.split("|")[0])
    if words[0] == "cd":
        words = shlex.split(command.partition("&&")[2]) or words
    while "=" in words[0]:
        words.pop(0)
    if words[0].startswith("./"):
        assert (ROOT / words[0]).is_file(), words[0]
    if words[0].removeprefix(".venv/bin/") in ("agl", "agl-stack"):
        assert words[1] in COMMANDS, command
    for word in words:
        if word.endswith(".yml") and "compose" in word:
            assert (ROOT / "compose" / word.removeprefix("compose/")).is_file(), word
