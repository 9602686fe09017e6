"""The committed dashboards: what the code says, in the shape Grafana and its linter ask for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from board_checks import panels_of, shipped_alerts

from agl.errors import EnvironmentFault
from agl.ops.alerting import Alert
from agl.ops.dashboards import build
from agl.ops.dashboards.thresholds import JUST_ABOVE_ZERO, Alerts

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
BOARDS = {name: json.loads(text) for name, text in build.render_all(shipped_alerts()).items()}

# title -> (width, x, y, unit, legends)
STORE_PANELS = {
    "HTTP Requests / Sec (by Path)": (8, 0, 1, "ops", ["{{method}} {{path}}"]),
    "HTTP Latency (P50, P95, P99)": (8, 8, 1, "s", ["P50", "P95", "P99"]),
    "HTTP Errors / Sec": (8, 16, 1, "ops", ["{{method}} {{path}} {{status}}"]),
    "Store Calls / Sec (by Method)": (8, 0, 10, "ops", ["{{method}}"]),
    "Store Latency (P50, P95, P99)": (8, 8, 10, "s", ["P50", "P95", "P99"]),
    "Store Errors / Sec (by Method)": (8, 16, 10, "ops", ["{{method}} {{status}}"]),
    "Collection Ops / Sec (by Store Method)": (
        12,
        0,
        19,
        "ops",
        ["{{store_pubmeth}} {{operation}}"],
    ),
    "Collection Errors / Sec": (
        12,
        12,
        19,
        "ops",
        ["{{store_pubmeth}} {{collection}} {{status}}"],
    ),
    "Collection Latency (P50, P95, P99)": (12, 0, 27, "s", ["P50", "P95", "P99"]),
    "Collection Latency P95 (by Store Method)": (12, 12, 27, "s", ["{{store_pubmeth}}"]),
    "Rollout Completion Rate (by Status)": (12, 0, 36, "ops", ["{{status}}"]),
    "Rollout Completion Rate (by Mode)": (12, 12, 36, "ops", ["{{mode}}"]),
    "Rollout Duration (P50, P95, P99)": (12, 0, 44, "s", ["P50", "P95", "P99"]),
    "Rollout Duration P95 (by Status)": (12, 12, 44, "s", ["{{status}}"]),
    "Waits Ended / Sec (by Status)": (12, 0, 53, "ops", ["{{status}}"]),
    "Time Waited (P50, P95, P99)": (12, 12, 53, "s", ["P50", "P95", "P99"]),
}

ALERTS = shipped_alerts()
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())


def test_committed_files_are_what_the_code_says() -> None:
    assert build.difference(FOLDER, ALERTS) == ""
    assert {path.name for path in FOLDER.glob("*.json")} == set(BOARDS)


def test_check_fails_with_the_difference_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build.write(tmp_path, ALERTS)
    name, text = "agl-store.json", build.render_all(ALERTS)["agl-store.json"]
    stale = text.replace('"ops"', '"short"', 1)
    (tmp_path / name).write_text(stale)
    assert build.main(["--output", str(tmp_path), "--check"]) == 1
    shown = capsys.readouterr()
    changed = [line.strip() for line in shown.out.splitlines() if line[:1] in "+-"]
    assert [line.replace(" ", "") for line in changed[2:]] == ['-"unit":"short"', '+"unit":"ops"']
    assert "run scripts/generate" in shown.err
    assert (tmp_path / name).read_text() == stale
    assert build.main(["--output", str(tmp_path)]) == 0
    assert build.main(["--output", str(tmp_path), "--check"]) == 0


def test_check_fails_when_a_file_is_missing(tmp_path: Path) -> None:
    assert build.main(["--output", str(tmp_path), "--check"]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_script_finds_the_repository_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "generate", "--check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_output_is_stable() -> None:
    assert build.render_all(ALERTS) == build.render_all(ALERTS)
    for text in build.render_all(ALERTS).values():
        assert text.endswith("}\n")
        assert (
            text
            == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        )


def test_store_board_has_the_panels_of_the_reference() -> None:
    board = BOARDS["agl-store.json"]
    found = {
        panel["title"]: (
            panel["gridPos"]["w"],
            panel["gridPos"]["x"],
            panel["gridPos"]["y"],
            panel["fieldConfig"]["defaults"]["unit"],
            [target["legendFormat"] for target in panel["targets"]],
        )
        for panel in panels_of(board)
        if panel["title"] in STORE_PANELS
    }
    assert found == STORE_PANELS
    rows = [
        (panel["title"], panel["gridPos"]["y"])
        for panel in board["panels"]
        if panel["type"] == "row"
    ]
    assert rows[:5] == [
        ("LightningStore HTTP API", 0),
        ("LightningStore RPC Metrics", 9),
        ("Collection Metrics", 18),
        ("Rollout Outcomes", 35),
        ("Waiting for Rollouts", 52),
    ]


@every_board
def test_board_is_named_dated_and_provisionable(board: dict[str, Any]) -> None:
    assert f"{board['uid']}.json" in BOARDS
    assert board["title"]
    assert board["description"]
    assert board["tags"]
    assert board["schemaVersion"] >= 36
    assert (board["time"], board["refresh"]) == ({"from": "now-1h", "to": "now"}, "10s")
    assert "id" not in board, "an id would collide with a board Grafana already has"
    assert "__inputs" not in board, "provisioning does not resolve export placeholders"


def test_boards_that_are_no_more_are_found_and_taken_away(tmp_path: Path) -> None:
    build.write(tmp_path, ALERTS)
    (tmp_path / "agl-gone.json").write_text("{}\n")
    (tmp_path / "mine.json").write_text("{}\n")
    assert "-{}" in build.difference(tmp_path, ALERTS)
    build.write(tmp_path, ALERTS)
    assert build.difference(tmp_path, ALERTS) == ""
    assert (tmp_path / "mine.json").exists()
    assert not (tmp_path / "agl-gone.json").exists()


def alert(name: str, expr: str, threshold: str, severity: str = "warning") -> Alert:
    return Alert(name, "node", expr, severity, "5m", {}, {"threshold": threshold})


def steps(*alerts: Alert) -> list[tuple[float | None, str]]:
    found = Alerts(alerts).steps([one.name for one in alerts])
    return [(step.value, step.color) for step in found]


def test_colours_begin_where_alerts_do() -> None:
    warning = alert("Warm", "max_over_time(t[1m]) > 85 < 1000", "85")
    critical = alert("Hot", "max_over_time(t[1m]) > 95", "95", "critical")
    assert steps(critical, warning) == [(None, "green"), (85, "orange"), (95, "red")]


def test_colours_end_where_alerts_that_fire_below_do() -> None:
    warning = alert("Low", "a / b < 0.05", "0.05")
    critical = alert("Out", "a / b < 0.03", "0.03", "critical")
    assert steps(warning, critical) == [(None, "red"), (0.03, "orange"), (0.05, "green")]


def test_zero_is_well_or_ill_as_the_alert_says() -> None:
    assert steps(alert("Down", "max_over_time(up[1m]) == 0", "0", "critical")) == [
        (None, "red"),
        (JUST_ABOVE_ZERO, "green"),
    ]
    assert steps(alert("Some", "increase(x[5m]) > 0", "0", "info")) == [
        (None, "green"),
        (JUST_ABOVE_ZERO, "blue"),
    ]


def test_a_condition_without_a_number_colours_nothing() -> None:
    assert steps(alert("Odd", "a unless b", "none")) == [(None, "green")]


def test_alerts_of_both_directions_in_one_panel_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match="begin below and above"):
        steps(alert("Low", "a < 1", "1"), alert("High", "a > 9", "9"))


def test_an_alert_that_is_not_there_is_named() -> None:
    with pytest.raises(EnvironmentFault, match="'Gone'"):
        Alerts([]).steps(["Gone"])
