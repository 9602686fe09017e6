"""``agl stack grafana push``: our dashboards into a Grafana that reads no files of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from agl import __version__
from agl.ops.grafana.boards import drawn
from agl.ops.grafana.client import Grafana, Refusal
from agl.ops.panels.boards import Board
from agl.ops.runbook_links import lead_to
from agl.ops.shapes import mapping


@dataclass(frozen=True)
class Pushed:
    """What became of one dashboard; ``problem`` is empty when it is there now."""

    uid: str
    done: str
    problem: str = ""


def push(grafana: Grafana, boards: list[Board], folder: str, runbooks: str) -> list[Pushed]:
    """Create or replace the dashboards; one that fails does not keep the others away.

    Args:
        grafana: Where to.
        boards: What.
        folder: uid of the folder; empty for the top.
        runbooks: Address that links to ``/runbooks`` are made to lead to.

    Raises:
        EnvironmentFault: Grafana does not answer, or the token may not save dashboards.
    """
    return [_push(grafana, board, folder, runbooks) for board in boards]


def _push(grafana: Grafana, board: Board, folder: str, runbooks: str) -> Pushed:
    if board.problem:
        return Pushed(board.uid, "not read", board.problem)
    there = grafana.dashboard(board.uid)
    if there is not None and mapping(there.get("meta")).get("provisioned") is True:
        return _provisioned(board, mapping(there.get("dashboard")))
    content: dict[str, Any] = json.loads(lead_to(json.dumps(board.content), runbooks))
    content["uid"] = board.uid
    try:
        said = grafana.save(content, folder, f"agl-stack {__version__}")
    except Refusal as exc:
        if exc.status in {401, 403}:
            raise
        return Pushed(board.uid, "refused", f"{exc.reason} (status {exc.status})")
    done = "created" if there is None else "replaced"
    # Grafana's answer has the path that it is served under in it already.
    url = urljoin(grafana.url, str(said.get("url") or f"/d/{board.uid}"))
    return Pushed(board.uid, f"{done}: {url}")


def _provisioned(board: Board, there: dict[str, Any]) -> Pushed:
    """One that Grafana reads from its own files, and lets nobody save."""
    if drawn(there) == drawn(board.content):
        return Pushed(board.uid, "up to date, provisioned from a file there")
    return Pushed(
        board.uid,
        "not replaced",
        "Grafana reads it from a file of its own, which is another version: ./scripts/up there",
    )
