"""docs/oncall.md tells the truth: commands, links, alerts, panels and pictures exist."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from rule_checks import ALERTS, ROOT, commands, links
from test_alerts import all_panels, check_command

from agl.ops.alerting import load_alerts
from agl.ops.drill.catalogue import DRILLS

DOC = ROOT / "docs" / "oncall.md"
TEXT = DOC.read_text()
IMAGES = re.findall(r"images/[\w.-]+\.png", TEXT)
LARGEST_BYTES = 200_000
SMALLEST_WIDTH = 780
"""Pixels; what is less wide cannot be read."""


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_commands_exist() -> None:
    found = list(commands(TEXT))
    assert len(found) > 10
    for command in found:
        check_command(command)


def test_links_lead_somewhere() -> None:
    for target in links(TEXT):
        path, _, anchor = target.partition("#")
        document = DOC.parent / path if path else DOC
        assert document.exists(), target
        if anchor:
            assert anchor in anchors(document), target


def test_alerts_and_drills_exist() -> None:
    known = {alert.name for alert in load_alerts(ALERTS)}
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,}|[A-Z]{2,}[A-Z][a-z]+\w*)`", TEXT))
    assert {"QueueStuck", "StoreDown", "OOMKilled"} <= named
    assert named <= known
    assert set(re.findall(r"stack drill ([A-Z]\w+[a-z])", TEXT)) <= set(DRILLS)


def test_rows_of_the_overview_are_those_it_has() -> None:
    board = json.loads((ROOT / "grafana/dashboards/agl-overview.json").read_text())
    rows = [panel["title"] for panel in all_panels(board) if panel["type"] == "row"]
    table = TEXT.split("| Row | Look at | Bad is |")[1].split("\n\n")[0]
    assert re.findall(r"^\| ([^|*-][^|]*?) \|", table, re.MULTILINE) == rows


def test_words_of_the_overview_are_those_it_says() -> None:
    board = (ROOT / "grafana/dashboards/agl-overview.json").read_text()
    for word in ("Stuck", "Busy", "Idle", "Workers wait", "Queue waits", "Both wait", "No answer"):
        assert f"*{word}*" in TEXT
        assert f'"text": "{word}"' in board
    for title in ("Who Waits?", "Longest Wait", "Silent Workers", "Store Failures", "Down"):
        assert f"*{title}*" in TEXT
        assert f'"title": "{title}"' in board


@pytest.mark.parametrize("name", sorted(set(IMAGES)))
def test_pictures_can_be_read_and_are_small(name: str) -> None:
    content = (DOC.parent / name).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < LARGEST_BYTES
    assert struct.unpack(">I", content[16:20])[0] >= SMALLEST_WIDTH


def test_every_picture_is_shown() -> None:
    assert {f"images/{path.name}" for path in (DOC.parent / "images").glob("*.png")} == set(IMAGES)
