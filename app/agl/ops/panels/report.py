"""``agl report``: dashboards of a past time as one self-contained HTML file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from agl import __version__
from agl.ops.panels import alerts, views
from agl.ops.panels.assets import report_page
from agl.ops.panels.boards import Board
from agl.ops.panels.prometheus import PrometheusError, PrometheusReader
from agl.ops.panels.timerange import TimeError, TimeRange

WIDTH = 700
"""Points of a panel, whatever its width: a reader may enlarge it."""


@dataclass(frozen=True)
class Wanted:
    """What a report is to show.

    Attributes:
        boards: The dashboards, in their order.
        span: The time range.
        chosen: Values of variables, by name.
        title: Heading of the page.
        prometheus: Address of Prometheus.
        scrape: Its scrape interval in seconds.
    """

    boards: Sequence[Board]
    span: TimeRange
    chosen: Mapping[str, Sequence[str]]
    title: str
    prometheus: str
    scrape: float


@dataclass(frozen=True)
class Report:
    """The page, and what of it could not be drawn (one line each)."""

    page: str
    problems: list[str]
    panels: int
    alerts: int


async def make(wanted: Wanted) -> Report:
    """Ask everything and write the page. A panel that fails is in it with its reason.

    Raises:
        PrometheusError: Prometheus does not answer at all, so there is nothing to show.
    """
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        reader = PrometheusReader(wanted.prometheus, session)
        await reader.instant("1", wanted.span.end)
        problems: list[str] = []
        try:
            fired = await alerts.fired(reader, wanted.span, wanted.scrape)
        except PrometheusError as exc:
            fired = []
            problems.append(f"alerts: {exc}")
        boards = [await _board(board, wanted, reader, problems) for board in wanted.boards]
    content = {
        "title": wanted.title,
        "from": wanted.span.start,
        "to": wanted.span.end,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "alerts": fired,
        "boards": boards,
        "problems": problems,
    }
    panels = sum(len(board["data"]) for board in boards)
    return Report(report_page(wanted.title, content), problems, panels, len(fired))


async def _board(
    board: Board, wanted: Wanted, reader: PrometheusReader, problems: list[str]
) -> dict[str, Any]:
    view = await views.look(board, wanted.span, wanted.chosen, reader)
    found = view.panels()
    now = time.time()

    async def data(index: int) -> dict[str, Any]:
        try:
            return await views.panel_data(
                found[index], wanted.span, WIDTH, reader, wanted.scrape, now
            )
        except TimeError as exc:
            return {"error": str(exc), "results": []}

    results = await asyncio.gather(*(data(index) for index in range(len(found))))
    events = await alerts.board_events(board, view.scope, wanted.span, reader, wanted.scrape)
    problems += [
        f"{board.title}: {variable.problem}" for variable in view.variables if variable.problem
    ]
    problems += [f"{board.title}: {problem}" for problem in events["problems"]]
    for panel, result in zip(found, results, strict=True):
        reasons = [panel.problem, result.get("error"), *(r.get("error") for r in result["results"])]
        told = dict.fromkeys(str(reason) for reason in reasons if reason)
        problems += [f"{board.title} / {panel.title or panel.key}: {reason}" for reason in told]
    return {
        "board": view.as_json(),
        "data": {panel.key: result for panel, result in zip(found, results, strict=True)},
        "annotations": events,
    }
