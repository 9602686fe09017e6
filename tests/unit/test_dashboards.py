"""The committed dashboards: what the code says, in the shape Grafana and its linter ask for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rule_checks import known_series

from agl.ops.dashboards import build
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import create_app
from agl.utils.metrics import MetricsBackend

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
BOARDS = {name: json.loads(text) for name, text in build.render_all().items()}
UNITS = {"ops", "s", "short", "bytes", "percentunit"}

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

METRIC = re.compile(r"\b((?:agl|mongodb)_\w+)\b")
SELECTION = re.compile(r"\b((?:agl|mongodb)_\w+)\{([^}]*)\}")
# Series that rise and fall, and are shown as they are.
GAUGE = re.compile(
    r"mongodb_(rs|dbstats)_\w+|mongodb_ss_(connections|uptime|repl_isWritablePrimary|wt_cache_\w+)"
)
MATCHER = re.compile(r'\b([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def series_panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


ALL_PANELS = [
    pytest.param(panel, id=panel["title"])
    for board in BOARDS.values()
    for panel in series_panels(board)
]
ALL_TARGETS = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for board in BOARDS.values()
    for panel in series_panels(board)
    for target in panel["targets"]
]
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
every_panel = pytest.mark.parametrize("panel", ALL_PANELS)
every_target = pytest.mark.parametrize("target", ALL_TARGETS)


def test_committed_files_are_what_the_code_says() -> None:
    assert build.difference(FOLDER) == ""
    assert {path.name for path in FOLDER.glob("*.json")} == set(BOARDS)


def test_check_fails_with_the_difference_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build.write(tmp_path)
    name, text = next(iter(build.render_all().items()))
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
    assert build.render_all() == build.render_all()
    for text in build.render_all().values():
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
        for panel in series_panels(board)
    }
    assert found == STORE_PANELS
    rows = [
        (panel["title"], panel["gridPos"]["y"])
        for panel in board["panels"]
        if panel["type"] == "row"
    ]
    assert rows == [
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


@every_board
def test_rule_uneditable_dashboard(board: dict[str, Any]) -> None:
    assert board["editable"] is False


@every_board
def test_rule_template_datasource(board: dict[str, Any]) -> None:
    variable = variable_of(board, "datasource")
    assert (variable["type"], variable["query"], variable["label"]) == (
        "datasource",
        "prometheus",
        "Data source",
    )


@every_board
@pytest.mark.parametrize("name", ["job", "instance"])
def test_rules_template_job_and_template_instance(board: dict[str, Any], name: str) -> None:
    variable = variable_of(board, name)
    assert variable["type"] == "query"
    assert variable["label"] == name
    assert variable["datasource"]["uid"] == "$datasource"
    assert variable["multi"] is True
    assert variable["includeAll"] is True
    assert variable["allValue"] == ".+"
    assert re.fullmatch(rf"label_values\((agl|mongodb)_\w+(\{{.*\}})?, {name}\)", variable["query"])
    assert variable["refresh"] == 2, "template-on-time-change-reload"


@every_panel
def test_rule_panel_datasource(panel: dict[str, Any]) -> None:
    wanted = {"type": "prometheus", "uid": "$datasource"}
    assert panel["datasource"] == wanted
    assert all(target["datasource"] == wanted for target in panel["targets"])


@every_panel
def test_rule_panel_title_description(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 30


@every_panel
def test_rules_panel_units_and_panel_no_targets(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]
    assert all(target["legendFormat"] for target in panel["targets"])


@every_panel
def test_legend_is_a_list_below_and_tooltip_single(panel: dict[str, Any]) -> None:
    legend = panel["options"]["legend"]
    assert (legend["displayMode"], legend["placement"], legend["showLegend"]) == (
        "list",
        "bottom",
        True,
    )
    assert panel["options"]["tooltip"]["mode"] == "single"


@every_board
def test_panels_are_numbered_and_do_not_overlap(board: dict[str, Any]) -> None:
    assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        cells = set(cells_of(panel["gridPos"]))
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


@every_target
def test_rule_target_rate_interval(target: dict[str, Any]) -> None:
    windows = re.findall(r"\[([^\]]*)\]", target["expr"])
    assert len(windows) == target["expr"].count("rate(")
    assert set(windows) <= {"$__rate_interval"}


@every_target
def test_rules_target_job_and_target_instance(target: dict[str, Any]) -> None:
    selections = SELECTION.findall(target["expr"])
    assert len(selections) == len(METRIC.findall(target["expr"]))
    for _, matchers in selections:
        assert 'job=~"$job"' in matchers
        assert 'instance=~"$instance"' in matchers


@every_target
def test_rule_target_counter_agg(target: dict[str, Any]) -> None:
    selected = [name for name, _ in SELECTION.findall(target["expr"])]
    counters = [name for name in selected if not GAUGE.fullmatch(name)]
    assert target["expr"].count("rate(") == len(counters)
    assert len(GROUPING.findall(target["expr"])) == len(selected)


@every_target
def test_legend_shows_only_labels_that_the_query_keeps(target: dict[str, Any]) -> None:
    kept = {
        label.strip() for group in GROUPING.findall(target["expr"]) for label in group.split(",")
    }
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert shown <= kept
    assert kept - shown <= {"le", "instance"}


class Catalogue(MetricsBackend):
    """Takes down what the store and its server register, as Prometheus exposes it."""

    def __init__(self) -> None:
        self.labels: dict[str, set[str]] = {}

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self.labels[name.replace(".", "_")] = set(label_names or ())

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        series = name.replace(".", "_")
        self.labels[f"{series}_count"] = self.labels[f"{series}_sum"] = set(label_names or ())
        self.labels[f"{series}_bucket"] = {*(label_names or ()), "le"}


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    catalogue = Catalogue()
    app = create_app(InMemoryLightningStore(tracker=catalogue), tracker=catalogue)
    app.build_middleware_stack()
    ours = {name: labels | {"job", "instance"} for name, labels in catalogue.labels.items()}
    return {**known_series(), **ours}


@every_target
def test_metrics_and_labels_exist(target: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    for metric, matchers in SELECTION.findall(target["expr"]):
        assert metric in exposed
        named = set(MATCHER.findall(matchers))
        grouped = {
            label.strip()
            for group in GROUPING.findall(target["expr"])
            for label in group.split(",")
        }
        assert named | grouped <= exposed[metric]


@every_board
def test_metrics_of_variables_exist(board: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = METRIC.findall(variable["query"])
            assert found
            assert set(found) <= set(exposed)


def variable_of(board: dict[str, Any], name: str) -> dict[str, Any]:
    return next(found for found in board["templating"]["list"] if found["name"] == name)


def cells_of(position: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(position["x"], position["x"] + position["w"]):
        for y in range(position["y"], position["y"] + position["h"]):
            yield x, y
