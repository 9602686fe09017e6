"""The data of a page: a board's panels and variables, one panel's series, the annotations."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agl.ops.panels.boards import Board
from agl.ops.panels.interpolation import Scope, fixed
from agl.ops.panels.layout import Panel, Row, lay_out, links, objects
from agl.ops.panels.prometheus import Answer, PrometheusError, PrometheusReader, Series
from agl.ops.panels.steps import Step, aligned, step_of
from agl.ops.panels.timerange import TimeError, TimeRange, parse_duration, parse_range
from agl.ops.panels.variables import Variable, resolve
from agl.ops.shapes import mapping

MAX_SERIES = 200
MAX_ROWS = 1000
MAX_TARGETS = 26
LEAST_POINTS, MOST_POINTS = 10, 4000

_LEGEND = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_WITHOUT_QUERIES = {"alertlist", "text", "dashlist", "row", "news"}


@dataclass(frozen=True)
class View:
    """A board as somebody looks at it: its variables chosen, its panels laid out, its range."""

    board: Board
    span: TimeRange
    variables: list[Variable]
    rows: list[Row]

    @property
    def scope(self) -> Scope:
        return Scope({variable.name: variable.value for variable in self.variables})

    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]

    def panel(self, key: str) -> Panel | None:
        """The panel with this key."""
        return next((panel for panel in self.panels() if panel.key == key), None)

    def as_json(self) -> dict[str, Any]:
        """What the page shows before it has any data."""
        content = self.board.content
        time = mapping(content.get("time"))
        picker = mapping(content.get("timepicker"))
        return {
            "uid": self.board.uid,
            "title": self.scope.title(self.board.title),
            "description": self.board.description,
            "tags": self.board.tags,
            "path": self.board.path_of_page,
            "links": links(content.get("links"), self.scope),
            "time": {"from": time.get("from") or "now-6h", "to": time.get("to") or "now"},
            "refresh": content.get("refresh") or "",
            "refreshIntervals": picker.get("refresh_intervals"),
            "timezone": content.get("timezone") or "browser",
            "sharedCrosshair": content.get("graphTooltip") in {1, 2},
            "from": self.span.start,
            "to": self.span.end,
            "variables": [variable.as_json() for variable in self.variables],
            "rows": [row.as_json() for row in self.rows],
            "problem": self.board.problem,
        }


async def look(
    board: Board,
    span: TimeRange,
    chosen: Mapping[str, Sequence[str]],
    reader: PrometheusReader,
) -> View:
    """A view of ``board``. Prometheus' failures are in the variables' problems, not raised."""
    templating = mapping(board.content.get("templating")).get("list")
    definitions = cast("list[Any]", templating) if isinstance(templating, list) else []
    variables = await resolve(definitions, chosen, reader, span)
    return View(board, span, variables, lay_out(board.content, variables))


async def panel_data(
    panel: Panel,
    span: TimeRange,
    width: int,
    reader: PrometheusReader,
    scrape: float,
    now: float,
) -> dict[str, Any]:
    """The series of one panel, query by query; a query that fails has its ``error`` instead.

    Args:
        panel: The panel, with the variables it is read with.
        span: The page's time range; the panel may override it.
        width: Pixels the panel has for its points.
        reader: Prometheus.
        scrape: Scrape interval of the data source, in seconds.
        now: Seconds since the epoch.

    Raises:
        TimeError: The panel's own times make no sense.
    """
    span, note = _own_range(panel, span, now)
    points = panel.content.get("maxDataPoints")
    wished = points if isinstance(points, int) and points > 0 else width
    wished = min(max(wished, LEAST_POINTS), MOST_POINTS)
    drawn = not panel.problem and panel.kind not in _WITHOUT_QUERIES
    targets = objects(panel.content.get("targets")) if drawn else []
    asked = [target for target in targets if target.get("hide") is not True][:MAX_TARGETS]
    query = _Query(panel, span, wished, reader, scrape)
    results = await asyncio.gather(*(query.run(i, target) for i, target in enumerate(asked)))
    return {
        "from": span.start,
        "to": span.end,
        "note": note,
        "results": [result for found in results for result in found],
    }


@dataclass(frozen=True)
class _Query:
    """The queries of one panel at one moment."""

    panel: Panel
    span: TimeRange
    points: int
    reader: PrometheusReader
    scrape: float

    async def run(self, index: int, target: dict[str, Any]) -> list[dict[str, Any]]:
        """A result for each way the target is asked: over the range, at its end, or both."""
        letter = target.get("refId")
        ref = letter if isinstance(letter, str) and letter else chr(ord("A") + index % 26)
        shown: dict[str, Any] = {"refId": ref, "format": target.get("format") or "time_series"}
        try:
            expression = _expression(target, self.panel.content)
            step = step_of(
                self.span,
                self.points,
                self.scrape,
                self._interval(target),
                _factor(target.get("intervalFactor")),
            )
            scope = self.panel.scope.with_values(windows(self.span, step))
            expression = scope.query(expression)
            shown |= {"expression": expression, "step": step.step}
            legend = target.get("legendFormat")
            legend = scope.title(legend) if isinstance(legend, str) else ""
            return [
                {**shown, **await self._answer(expression, step, legend, instant=instant)}
                for instant in _ways(target)
            ]
        except PrometheusError as exc:
            return [{**shown, "error": str(exc), "kind": exc.kind, "series": []}]
        except (TimeError, ValueError) as exc:
            return [{**shown, "error": f"query {ref}: {exc}", "kind": "board", "series": []}]

    def _interval(self, target: dict[str, Any]) -> str:
        found = target.get("interval") or self.panel.content.get("interval") or ""
        if not isinstance(found, str):
            raise ValueError(f'"interval" is not a text but {type(found).__name__}')
        return found if found.startswith(("$__", "${__")) else self.panel.scope.query(found)

    async def _answer(
        self, expression: str, step: Step, legend: str, *, instant: bool
    ) -> dict[str, Any]:
        if instant:
            answer = await self.reader.instant(expression, self.span.end)
            start, kept = self.span.end, answer.series[:MAX_ROWS]
        else:
            span = aligned(self.span, step.step)
            answer = await self.reader.range(expression, span, step.step)
            start, kept = span.start, largest(answer, MAX_SERIES)
        names = legends([series.labels for series in kept], legend, expression)
        return {
            "instant": instant,
            "start": start,
            "total": len(answer.series),
            "warnings": answer.warnings,
            "series": [
                {"name": name, "labels": series.labels, "values": series.values}
                for name, series in zip(names, kept, strict=True)
            ],
        }


def windows(span: TimeRange, step: Step) -> dict[str, Any]:
    """The values of Grafana's own variables: intervals and the range."""
    seconds = max(1, round(span.seconds))
    values = {
        "__interval": duration(step.step),
        "__interval_ms": str(round(step.step * 1000)),
        "__rate_interval": duration(step.rate_interval),
        "__rate_interval_ms": str(round(step.rate_interval * 1000)),
        "__range": f"{seconds}s",
        "__range_s": str(seconds),
        "__range_ms": str(round(span.seconds * 1000)),
        "__from": str(round(span.start * 1000)),
        "__to": str(round(span.end * 1000)),
    }
    return {name: fixed(text) for name, text in values.items()}


def duration(seconds: float) -> str:
    """Seconds as PromQL writes a duration."""
    whole = round(seconds)
    return f"{whole}s" if math.isclose(seconds, whole) and whole else f"{round(seconds * 1000)}ms"


def legends(found: list[dict[str, str]], template: str, expression: str) -> list[str]:
    """The name of every series: from the legend's template, or from the labels that tell apart."""
    if template and template != "__auto":
        return [_LEGEND.sub(lambda m, labels=labels: labels.get(m[1], ""), template) or expression
                for labels in found]  # fmt: skip
    if not template:
        return [_full_name(labels) or expression for labels in found]
    keys = {key for labels in found for key in labels if key != "__name__"}
    telling = sorted(key for key in keys if len({labels.get(key) for labels in found}) > 1)
    if len(telling) == 1:
        return [labels.get(telling[0], "") or _full_name(labels) for labels in found]
    return [_full_name(labels) or expression for labels in found]


def _full_name(labels: dict[str, str]) -> str:
    inner = ", ".join(f'{key}="{value}"' for key, value in labels.items() if key != "__name__")
    return labels.get("__name__", "") + (f"{{{inner}}}" if inner else "")


def largest(answer: Answer, count: int) -> list[Series]:
    """The series with the largest values, in the order in which Prometheus gave them."""
    if len(answer.series) <= count:
        return answer.series

    def peak(index: int) -> float:
        values = answer.series[index].values
        return max((abs(v) for v in values if isinstance(v, (int, float))), default=0.0)

    kept = sorted(range(len(answer.series)), key=peak, reverse=True)[:count]
    return [answer.series[index] for index in sorted(kept)]


def _expression(target: dict[str, Any], panel: Mapping[str, Any]) -> str:
    source = mapping(target.get("datasource")) or mapping(panel.get("datasource"))
    kind = source.get("type")
    if kind not in {None, "", "prometheus", "datasource"}:
        raise ValueError(f"its data source is {kind!r}; only Prometheus can be asked here")
    expression = target.get("expr")
    if not isinstance(expression, str):
        raise ValueError(f'"expr" is not a text but {type(expression).__name__}')
    return expression


def _factor(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value <= 1000 else 1


def _ways(target: dict[str, Any]) -> list[bool]:
    """Whether to ask at one moment: no, yes, or both."""
    if target.get("instant"):
        return [False, True] if target.get("range") else [True]
    return [False]


def _own_range(panel: Panel, span: TimeRange, now: float) -> tuple[TimeRange, str]:
    notes: list[str] = []
    since, shift = panel.content.get("timeFrom"), panel.content.get("timeShift")
    if isinstance(since, str) and since:
        since = panel.scope.query(since)
        span = parse_range(since if since.startswith("now") else f"now-{since}", "now", now)
        notes.append(f"last {since.removeprefix('now-')}")
    if isinstance(shift, str) and shift:
        seconds = parse_duration(panel.scope.query(shift))
        span = TimeRange(span.start - seconds, span.end - seconds)
        notes.append(f"{shift} earlier")
    return span, ", ".join(notes)
