"""``agl stack grafana annotate``: marks of benchmark runs and restarts, in Grafana's database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agl.bench.results import Result
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


def told(result: Result) -> str:
    """The text of a run's mark, from what ``agl bench ... --json FILE`` has written."""
    rates = (figure for figure in result.figures if figure.unit == "1/s")
    said = [f"{rate.median:.1f} {rate.name.replace('_per_second', '/s')}" for rate in rates]
    verdict = "verified" if result.ok else "FAILED"
    return f"benchmark {result.kind} {result.name}: {', '.join([*said, verdict])}"


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
