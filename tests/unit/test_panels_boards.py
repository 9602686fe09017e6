"""Dashboards as files, and their panels in their places, however odd the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gallery
import pytest

from agl.ops.panels.boards import Library, read_board
from agl.ops.panels.layout import Panel, lay_out
from agl.ops.panels.variables import Option, Variable

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))


def variable(name: str, *values: str, chosen: tuple[str, ...] = ("$__all",)) -> Variable:
    options = tuple(Option(value, value) for value in values)
    return Variable(name, name, "query", False, True, True, "", options, chosen)


def panels(board: dict[str, Any], *variables: Variable) -> list[Panel]:
    return [panel for row in lay_out(board, variables) for panel in row.panels]


def at(x: int, y: int, w: int = 12, h: int = 8, **more: Any) -> dict[str, Any]:
    grid = {"x": x, "y": y, "w": w, "h": h}
    return {"type": "timeseries", "title": f"{x}/{y}", "gridPos": grid, **more}


def row(y: int, **more: Any) -> dict[str, Any]:
    return {"type": "row", "title": "Row", "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, **more}


class TestFiles:
    @pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
    def test_every_shipped_dashboard_is_read_and_drawn_whole(self, path: Path) -> None:
        board = read_board(path)
        assert not board.problem
        assert board.uid == path.stem
        found = panels(board.content)
        assert found
        assert [panel.problem for panel in found if panel.problem] == []

    def test_the_path_is_that_of_grafana(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        path.write_text(json.dumps({"title": "My Board (x)", "uid": "u-1", "panels": []}))
        assert read_board(path).path_of_page == "/d/u-1/my-board-x"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "x.json: "),
            ("[]", "no JSON object"),
            ("{}", 'no list of "panels"'),
            ('{"panels": {}}', 'no list of "panels"'),
            ('{"elements": {}}', "schema version 2"),
            ('{"spec": {"elements": {}}}', "schema version 2"),
            ('{"panels": [NaN]}', "NaN is not JSON"),
            ("[" * 100_000, "x.json: "),
        ],
    )
    def test_nonsense_is_told(self, tmp_path: Path, text: str, problem: str) -> None:
        path = tmp_path / "x.json"
        path.write_text(text)
        board = read_board(path)
        assert problem in board.problem
        assert board.uid == "x"
        assert board.content == {}

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        path.write_bytes(b"\xff\xfe")
        assert "x.json" in read_board(path).problem

    def test_a_library_follows_its_files(self, tmp_path: Path) -> None:
        library = Library(tmp_path)
        assert "no *.json" in library.problem
        path = tmp_path / "a.json"
        path.write_text('{"title": "A", "uid": "a", "panels": []}')
        assert [board.title for board in library.boards()] == ["A"]
        path.write_text('{"title": "Another", "uid": "a", "panels": []}')
        assert library.get("a") is not None
        assert [board.title for board in library.boards()] == ["Another"]
        (tmp_path / "b.json").write_text('{"title": "B", "uid": "a", "panels": []}')
        twice = next(board for board in library.boards() if board.problem)
        assert "b.json has the same uid as a.json" in twice.problem
        path.unlink()
        assert [board.title for board in library.boards()] == ["B"]
        assert "does not exist" in Library(tmp_path / "none").problem


class TestPlaces:
    def test_gallery_of_every_kind(self) -> None:
        found = panels(gallery.build(), variable("mode", "train", "val", "test"))
        assert not [panel.problem for panel in found if panel.problem]
        assert {"timeseries", "stat", "gauge", "bargauge", "table", "heatmap", "text"} <= {
            panel.kind for panel in found
        }

    def test_panels_fall_up_until_they_touch(self) -> None:
        found = panels({"panels": [at(0, 3), at(12, 9), at(0, 40)]})
        assert [(p.place.x, p.place.y) for p in found] == [(0, 0), (12, 0), (0, 8)]

    def test_rows_begin_anew_and_collapsed_ones_hold_their_panels(self) -> None:
        board = {"panels": [at(0, 0), row(8, collapsed=True, panels=[at(0, 9)]), row(9), at(0, 10)]}
        rows = lay_out(board, [])
        assert [(r.title, r.collapsed, len(r.panels)) for r in rows] == [
            (None, False, 1), ("Row", True, 1), ("Row", False, 1),
        ]  # fmt: skip
        assert rows[2].panels[0].place.y == 0

    def test_a_panel_is_repeated_beside_itself(self) -> None:
        mode = variable("mode", "a", "b", "c")
        board = {"panels": [at(0, 0, repeat="mode", title="of $mode", maxPerRow=2), at(0, 8)]}
        found = panels(board, mode)
        assert [(p.title, p.place.x, p.place.y, p.place.w) for p in found] == [
            ("of a", 0, 0, 12), ("of b", 12, 0, 12), ("of c", 0, 8, 12), ("0/8", 0, 16, 12),
        ]  # fmt: skip
        assert [p.scope.query("$mode") for p in found] == ["a", "b", "c", "(a|b|c)"]
        assert len({p.key for p in found}) == 4

    def test_a_panel_is_repeated_downwards(self) -> None:
        board = {"panels": [at(6, 0, 6, repeat="mode", repeatDirection="v")]}
        found = panels(board, variable("mode", "a", "b", chosen=("b", "a")))
        assert [(p.scope.query("$mode"), p.place.x, p.place.y) for p in found] == [
            ("b", 6, 0), ("a", 6, 8),
        ]  # fmt: skip

    def test_a_row_is_repeated_with_its_panels(self) -> None:
        board = {"panels": [row(0, repeat="mode", title="M $mode"), at(0, 1, title="of $mode")]}
        rows = lay_out(board, [variable("mode", "a", "b")])
        assert [(r.title, r.panels[0].title) for r in rows] == [("M a", "of a"), ("M b", "of b")]

    def test_a_repeat_without_values_stays_once(self) -> None:
        assert len(panels({"panels": [at(0, 0, repeat="mode")]}, variable("mode"))) == 1
        assert len(panels({"panels": [at(0, 0, repeat="gone")]})) == 1

    @pytest.mark.parametrize(
        "grid",
        [None, "x", {}, {"x": -5, "y": "a", "w": 99, "h": -1}, {"w": True}, {"x": 1e300, "w": 0}],
    )
    def test_places_that_make_no_sense_still_have_one(self, grid: Any) -> None:
        for panel in panels({"panels": [at(0, 0), {"type": "stat", "gridPos": grid}]}):
            place = panel.place
            assert 0 <= place.x <= place.x + place.w <= 24
            assert place.y >= 0
            assert 1 <= place.h <= 60


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("text", "panel 2 of the file is not an object but str"),
        (None, "not an object but NoneType"),
        ({}, '"type" is None'),
        ({"type": 5}, '"type" is 5'),
        ({"type": "stat", "targets": "x"}, '"targets" is not a list but str'),
        ({"type": "stat", "fieldConfig": []}, '"fieldConfig" is not an object but list'),
        (
            {"type": "stat", "fieldConfig": {"defaults": {"thresholds": {"steps": "red"}}}},
            '"fieldConfig.defaults.thresholds.steps" is not a list but str',
        ),
        ({"type": "stat", "options": {"legend": 1}}, '"options.legend" is not an object but int'),
        ({"type": "stat", "libraryPanel": {"uid": "x"}}, "library panel"),
    ],
)
def test_a_panel_of_nonsense_says_so_and_the_others_stay(entry: Any, problem: str) -> None:
    good, bad = sorted(panels({"panels": [at(0, 0), entry]}), key=lambda panel: panel.key)
    assert not good.problem
    assert problem in bad.problem
    shown = bad.as_json()
    assert shown["title"]
    json.dumps(shown)


@pytest.mark.parametrize("inside", [None, 5, "x", [[1]], {"a": 1}])
def test_a_row_of_nonsense_breaks_nothing(inside: Any) -> None:
    assert [r.title for r in lay_out({"panels": [row(0, panels=inside)]}, [])] == ["Row"]


def test_links_and_texts_are_filled_in() -> None:
    board = {
        "panels": [
            at(
                0, 0, title="Of $m", description="d $m",
                links=[{"title": "To $m", "url": "/d/x?v=$m"}, {"title": "none"}, 7],
                fieldConfig={"defaults": {"links": [{"title": "l", "url": "/y?${m:queryparam}"}]},
                             "overrides": [{"matcher": {"id": "byName", "options": "a"},
                                            "properties": [{"id": "unit", "value": "s"}]}, "x"]},
            ),
            at(0, 9, type="text", options={"content": "**$m**"}),
        ]
    }  # fmt: skip
    panel, text = (p.as_json() for p in panels(board, variable("m", "a&b", chosen=("a&b",))))
    assert (panel["title"], panel["description"]) == ("Of a&b", "d a&b")
    assert [(link["title"], link["url"]) for link in panel["links"]] == [("To a&b", "/d/x?v=a%26b")]
    assert panel["fieldConfig"]["defaults"]["links"][0]["url"] == "/y?var-m=a%26b"
    assert len(panel["fieldConfig"]["overrides"]) == 1
    assert text["options"]["content"] == "**a&b**"
