"""``agl stack grafana annotate``: marks of benchmark runs and restarts, in Grafana's database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agl.errors import EnvironmentFault
from agl.ops.grafana.client import Grafana, columns
from agl.ops.panels.timerange import TimeRange
from agl.ops.shapes import items, mapping

BENCHMARK = "agl-benchmark"
RESTART = "agl-restart"
# A process' start is told to the second or computed from its uptime: less apart is the same start.
_SAME_START = 5.0
STARTS = (
    "max by (job, instance) (agl_process_start_time_seconds or process_start_time_seconds"
    " or timestamp(mongodb_ss_uptime) - mongodb_ss_uptime)"
)
_POINTS = 10_000


@dataclass(frozen=True)
class Mark:
    """An annotation; times in seconds since the epoch."""

    start: float
    end: float
    text: str
    tags: tuple[str, ...]


def benchmark(span: TimeRange, text: str) -> Mark:
    """The mark of a benchmark run."""
    return Mark(span.start, span.end, text, (BENCHMARK,))


def told(summary: dict[str, Any]) -> tuple[str, float]:
    """Text and seconds of a run's mark, from what ``agl bench scenario ... --json`` has printed.

    Raises:
        EnvironmentFault: It is no such summary.
    """
    name, seconds = summary.get("scenario"), summary.get("duration_seconds")
    if not isinstance(name, str) or not isinstance(seconds, int | float) or seconds <= 0:
        raise EnvironmentFault(
            "this is no summary of a benchmark", remedy="agl bench scenario minimal --json > FILE"
        )
    result = "verified" if summary.get("ok") is True else "FAILED"
    text = (
        f"benchmark {name}: {summary.get('rollouts')} rollouts, {summary.get('runners')} runners,"
        f" {summary.get('rollouts_per_second')} rollouts/s, {result}"
    )
    return text, float(seconds)


def restarts(grafana: Grafana, datasource: str, span: TimeRange) -> list[Mark]:
    """Each start of a scraped process within the range, as Prometheus has seen it.

    Raises:
        EnvironmentFault: Grafana does not answer, or the query fails.
    """
    query = {
        "refId": "A",
        "datasource": {"type": "prometheus", "uid": datasource},
        "expr": STARTS,
        "range": True,
        "instant": False,
        "format": "time_series",
        "intervalMs": max(int(span.seconds / _POINTS * 1000), 1000),
        "maxDataPoints": _POINTS,
    }
    result = mapping(grafana.query([query], span.start, span.end).get("A"))
    if result.get("error"):
        raise EnvironmentFault(f"data source {datasource}: {result['error']}")
    found: list[Mark] = []
    for frame in items(result.get("frames")):
        labels, values = _series(frame)
        job, instance = labels.get("job") or "?", labels.get("instance") or "?"
        for start in _starts(values, span):
            tags = (RESTART, f"job:{job}", f"instance:{instance}")
            found.append(Mark(start, start, f"{job} started at {instance}", tags))
    return sorted(found, key=lambda mark: (mark.start, mark.text))


def _series(frame: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Labels and values of the field that is not the time."""
    fields = items(mapping(frame.get("schema")).get("fields"))
    for one, column in zip(fields, columns(frame), strict=False):
        if one.get("type") != "time":
            return mapping(one.get("labels")), column
    return {}, []


def _starts(values: list[Any], span: TimeRange) -> list[float]:
    found: list[float] = []
    known = span.start
    for value in values:
        if isinstance(value, int | float) and value > known + _SAME_START:
            known = float(value)
            found.append(known)
    return found


def put(grafana: Grafana, marks: list[Mark]) -> tuple[list[Mark], list[Mark]]:
    """Make these annotations, but for those that are there already; (made, there already)."""
    made: list[Mark] = []
    known: list[Mark] = []
    for mark in marks:
        start, end = int(mark.start * 1000), int(mark.end * 1000)
        there = grafana.annotations(mark.tags[0], start, end)
        if any(
            (entry.get("time"), entry.get("text")) == (start, mark.text)
            and set(mark.tags) <= set(entry.get("tags") or [])
            for entry in there
        ):
            known.append(mark)
            continue
        grafana.annotate(start, end, list(mark.tags), mark.text)
        made.append(mark)
    return made, known
