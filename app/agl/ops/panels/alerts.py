"""What happened: the alerts that fired within a range, and a dashboard's annotations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agl.ops.panels.boards import Board
from agl.ops.panels.interpolation import Scope
from agl.ops.panels.layout import objects
from agl.ops.panels.prometheus import PrometheusError, PrometheusReader, Series
from agl.ops.panels.steps import Step, aligned, step_of
from agl.ops.panels.timerange import TimeRange, parse_duration
from agl.ops.panels.views import duration, legends, windows
from agl.ops.shapes import mapping

POINTS = 2000
MAX_EVENTS = 500
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}
_LEFT_OUT = {"__name__", "alertname", "alertstate", "severity"}


@dataclass(frozen=True)
class Period:
    """A time in which a series was there and not zero; ``open`` when it still is at the end."""

    start: float
    end: float
    open: bool


async def fired(reader: PrometheusReader, span: TimeRange, scrape: float) -> list[dict[str, Any]]:
    """The alerts that fired in ``span``, the gravest first, each with its periods.

    A period is exact to the step that is drawn; none is missed, however short it was.

    Raises:
        PrometheusError: The series cannot be had. Rules that cannot be had only leave out links.
    """
    step = step_of(span, POINTS, scrape).step
    window = aligned(span, step)
    query = f'max_over_time(ALERTS{{alertstate="firing"}}[{duration(step)}])'
    answer, rules = await asyncio.gather(
        reader.range(query, window, step), reader.rules(), return_exceptions=True
    )
    if isinstance(answer, BaseException):
        raise answer
    known = _annotations([] if isinstance(rules, BaseException) else rules)
    found = [_alert(series, known, window.start, step) for series in answer.series]
    return sorted(
        (alert for alert in found if alert["periods"]),
        key=lambda a: (_SEVERITIES.get(a["severity"], 3), a["periods"][0]["start"], a["name"]),
    )


async def current(reader: PrometheusReader) -> list[dict[str, Any]]:
    """The alerts that are firing or pending now, the gravest first. Raises PrometheusError."""
    found: list[dict[str, Any]] = []
    for alert in await reader.alerts():
        labels, texts = mapping(alert.get("labels")), mapping(alert.get("annotations"))
        found.append(
            {
                "name": labels.get("alertname", ""),
                "severity": labels.get("severity", ""),
                "state": alert.get("state", ""),
                "since": alert.get("activeAt", ""),
                "labels": {k: v for k, v in labels.items() if k not in _LEFT_OUT},
                **_told(texts),
            }
        )
    return sorted(
        found,
        key=lambda a: (a["state"] != "firing", _SEVERITIES.get(a["severity"], 3), a["name"]),
    )


async def board_events(
    board: Board, scope: Scope, span: TimeRange, reader: PrometheusReader, scrape: float
) -> dict[str, Any]:
    """Events of a board's own annotation queries, and which of the queries failed and why."""
    queries = [
        query
        for query in objects(mapping(board.content.get("annotations")).get("list"))
        if query.get("enable") is not False and not _of_grafana(query)
    ]
    found = await asyncio.gather(
        *(_events(query, scope, span, reader, scrape) for query in queries), return_exceptions=True
    )
    events: list[dict[str, Any]] = []
    problems: list[str] = []
    for query, result in zip(queries, found, strict=True):
        if isinstance(result, list):
            events.extend(result)
        elif isinstance(result, (PrometheusError, ValueError)):
            problems.append(f"annotation {query.get('name') or 'without a name'}: {result}")
        else:
            raise result
    events.sort(key=lambda event: event["start"])
    return {"events": events[-MAX_EVENTS:], "total": len(events), "problems": problems}


def _of_grafana(query: dict[str, Any]) -> bool:
    """Whether the events are in Grafana's own database, which nobody but Grafana has."""
    source = mapping(query.get("datasource"))
    return bool(query.get("builtIn")) or source.get("uid") == "-- Grafana --"


async def _events(
    query: dict[str, Any],
    scope: Scope,
    span: TimeRange,
    reader: PrometheusReader,
    scrape: float,
) -> list[dict[str, Any]]:
    kind = mapping(query.get("datasource")).get("type")
    if kind not in {None, "", "prometheus"}:
        raise ValueError(f"its data source is {kind!r}; only Prometheus can be asked here")
    expression = query.get("expr") or mapping(query.get("target")).get("expr")
    if not isinstance(expression, str):
        raise ValueError('"expr" is not a text')
    wished = query.get("step")
    least = parse_duration(wished) if isinstance(wished, str) and wished else 60.0
    step = step_of(span, POINTS, scrape, duration(least))
    expression = scope.with_values(windows(span, step)).query(expression)
    window = aligned(span, step.step)
    answer = await reader.range(expression, window, step.step)
    return [
        event for series in answer.series for event in _of_series(query, series, window.start, step)
    ]


def _of_series(
    query: dict[str, Any], series: Series, start: float, step: Step
) -> list[dict[str, Any]]:
    def worded(name: str, default: str) -> str:
        template = query.get(name)
        text = template if isinstance(template, str) and template else default
        return legends([series.labels], text, "")[0] if text else ""

    tags = [tag.strip() for tag in str(query.get("tagKeys") or "").split(",") if tag.strip()]
    base = {
        "source": str(query.get("name") or ""),
        "color": str(query.get("iconColor") or "red"),
        "title": worded("titleFormat", ""),
        "text": worded("textFormat", ""),
        "tags": [series.labels[tag] for tag in tags if tag in series.labels],
    }
    if query.get("useValueForTime") in (True, "on"):
        times = {v for v in series.values if isinstance(v, (int, float))}
        return [{**base, "start": t / 1000, "end": t / 1000} for t in sorted(times)]
    return [{**base, "start": p.start, "end": p.end} for p in periods(series, start, step.step)]


def periods(series: Series, start: float, step: float) -> list[Period]:
    """The times in which the series had a value other than zero; neighbouring points are one."""
    found: list[Period] = []
    first: int | None = None
    for index, value in enumerate([*series.values, None]):
        if value and first is None:
            first = index
        elif not value and first is not None:
            last = index - 1
            is_open = last == len(series.values) - 1
            found.append(Period(start + first * step, start + last * step, is_open))
            first = None
    return found


def _alert(
    series: Series, known: dict[tuple[str, str], dict[str, Any]], start: float, step: float
) -> dict[str, Any]:
    labels = series.labels
    name, severity = labels.get("alertname", ""), labels.get("severity", "")
    return {
        "name": name,
        "severity": severity,
        "labels": {key: value for key, value in labels.items() if key not in _LEFT_OUT},
        "periods": [vars(period) for period in periods(series, start, step)],
        "step": step,
        **_told(known.get((name, severity), {})),
    }


def _annotations(groups: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (str(rule.get("name")), str(mapping(rule.get("labels")).get("severity", ""))): mapping(
            rule.get("annotations")
        )
        for group in groups
        for rule in objects(group.get("rules"))
        if rule.get("type") == "alerting"
    }


def _told(texts: dict[str, Any]) -> dict[str, str]:
    return {
        "summary": str(texts.get("summary") or texts.get("description") or ""),
        "runbook": str(texts.get("runbook_url") or ""),
        "dashboard": str(texts.get("dashboard_url") or ""),
    }
