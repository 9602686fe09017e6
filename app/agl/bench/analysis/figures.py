"""Single values of the window: throughput, the machine, MongoDB; and courses for charts."""

from __future__ import annotations

from dataclasses import dataclass

from agl.bench.analysis.model import Course, Value
from agl.bench.analysis.source import COURSE_POINTS, Window


@dataclass(frozen=True)
class Wanted:
    """A value; ``W`` in its query stands for the window's seconds.

    Attributes:
        needs: Series without which there is no such value.
        by: A label that gives a value each.
    """

    section: str
    name: str
    unit: str
    needs: tuple[str, ...]
    query: str
    by: str = ""
    gained: bool = False
    """By how much it is larger at the window's end than at its start."""

    per_second: bool = False


_ROLLOUTS = "sum(max by (status, mode) (last_over_time(agl_state_rollouts[Ws])))"
_ATTEMPTS = "sum(max by (status) (last_over_time(agl_state_attempts[Ws])))"
_SPANS = (
    "(max(last_over_time(agl_state_spans_stored[Ws]))"
    " + max(last_over_time(agl_state_spans_evicted[Ws])))"
)
_NO_BRIDGES = 'device!~"lo|docker.*|veth.*|br-.*"'


_NODE = "Machine"
_STATE = ("agl_state_rollouts",)
VALUES = (
    Wanted("Throughput", "rollouts enqueued", "count", _STATE, _ROLLOUTS, gained=True),
    Wanted("Throughput", "rollouts enqueued a second", "1/s", _STATE, _ROLLOUTS,
           gained=True, per_second=True),
    Wanted("Throughput", "rollouts finished", "count", ("agl_rollouts_total",),
           "sum(increase(agl_rollouts_total[Ws]))"),
    Wanted("Throughput", "rollouts finished a second", "1/s", ("agl_rollouts_total",),
           "sum(increase(agl_rollouts_total[Ws])) / W"),
    Wanted("Throughput", "attempts a second", "1/s", ("agl_state_attempts",),
           _ATTEMPTS, gained=True, per_second=True),
    Wanted("Throughput", "spans a second", "1/s", ("agl_state_spans_stored",),
           _SPANS, gained=True, per_second=True),
    Wanted("Throughput", "workers seen", "count", ("agl_state_workers",),
           "sum(max by (status) (agl_state_workers))"),
    Wanted("Throughput", "requests a second", "1/s", ("agl_http_total",),
           "sum(increase(agl_http_total[Ws])) / W"),
    Wanted("Throughput", "requests that failed (5xx)", "share", ("agl_http_total",),
           '(sum(increase(agl_http_total{status=~"5.."}[Ws])) or vector(0))'
           " / sum(increase(agl_http_total[Ws]))"),
    Wanted("Server processes", "CPU of a request", "s",
           ("agl_process_cpu_seconds_total", "agl_http_total"),
           "sum(increase(agl_process_cpu_seconds_total[Ws])) / sum(increase(agl_http_total[Ws]))"),
    Wanted("Server processes", "cores in use", "count", ("agl_process_cpu_seconds_total",),
           "sum(increase(agl_process_cpu_seconds_total[Ws])) / W"),
    Wanted("Server processes", "processes", "count", ("agl_process_resident_memory_bytes",),
           "count(agl_process_resident_memory_bytes)"),
    Wanted("Server processes", "resident memory", "bytes", ("agl_process_resident_memory_bytes",),
           "sum(agl_process_resident_memory_bytes)"),
    Wanted("Server processes", "a scrape takes", "s", ("scrape_duration_seconds",),
           'avg(avg_over_time(scrape_duration_seconds{job="app"}[Ws]))'),
    Wanted("MongoDB", "operations by the server's count", "1/s", ("mongodb_ss_opcounters",),
           "sum by (legacy_op_type) (increase(mongodb_ss_opcounters[Ws])) / W", "legacy_op_type"),
    Wanted("MongoDB", "connections", "count", ("mongodb_ss_connections",),
           'avg(avg_over_time(mongodb_ss_connections{conn_type="current"}[Ws]))'),
    Wanted("MongoDB", "commands a request", "ratio", ("agl_mongo_commands_total", "agl_http_total"),
           "sum(increase(agl_mongo_commands_total[Ws])) / sum(increase(agl_http_total[Ws]))"),
    Wanted("MongoDB", "operations that share a call", "ratio", ("agl_mongo_batch_size_count",),
           "sum by (kind) (increase(agl_mongo_batch_size_sum[Ws]))"
           " / sum by (kind) (increase(agl_mongo_batch_size_count[Ws]))", "kind"),
    Wanted("MongoDB", "sent again after a failure", "count", ("agl_mongo_retries_total",),
           "sum(increase(agl_mongo_retries_total[Ws]))"),
    Wanted(_NODE, "CPU in use", "share", ("node_cpu_seconds_total",),
           '1 - avg(rate(node_cpu_seconds_total{mode="idle"}[Ws]))'),
    Wanted(_NODE, "load", "count", ("node_load1",), "avg(avg_over_time(node_load1[Ws]))"),
    Wanted(_NODE, "memory", "bytes", ("node_memory_MemTotal_bytes",),
           "sum(node_memory_MemTotal_bytes)"),
    Wanted(_NODE, "memory available at least", "bytes", ("node_memory_MemAvailable_bytes",),
           "sum(min_over_time(node_memory_MemAvailable_bytes[Ws]))"),
    Wanted(_NODE, "network received", "bytes/s", ("node_network_receive_bytes_total",),
           f"sum(rate(node_network_receive_bytes_total{{{_NO_BRIDGES}}}[Ws]))"),
    Wanted(_NODE, "network sent", "bytes/s", ("node_network_transmit_bytes_total",),
           f"sum(rate(node_network_transmit_bytes_total{{{_NO_BRIDGES}}}[Ws]))"),
    Wanted(_NODE, "disk reads", "1/s", ("node_disk_reads_completed_total",),
           "sum(rate(node_disk_reads_completed_total[Ws]))"),
    Wanted(_NODE, "disk read", "bytes/s", ("node_disk_read_bytes_total",),
           "sum(rate(node_disk_read_bytes_total[Ws]))"),
    Wanted(_NODE, "disk writes", "1/s", ("node_disk_writes_completed_total",),
           "sum(rate(node_disk_writes_completed_total[Ws]))"),
    Wanted(_NODE, "disk written", "bytes/s", ("node_disk_written_bytes_total",),
           "sum(rate(node_disk_written_bytes_total[Ws]))"),
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A line of a chart; ``R`` in its query stands for the window of its rates, in seconds."""

    chart: str
    name: str
    unit: str
    needs: str
    query: str
    by: str = ""


_LATENCY = "Latency of requests"
_BUCKETS = "sum by (le) (rate(agl_http_latency_bucket[Rs]))"
COURSES = (
    Drawn("Requests", "requests", "1/s", "agl_http_total", "sum(rate(agl_http_total[Rs]))"),
    Drawn("Rollouts that finished", "", "1/s", "agl_rollouts_total",
          "sum by (status) (rate(agl_rollouts_total[Rs])) > 0", "status"),
    *(Drawn(_LATENCY, f"p{q}", "s", "agl_http_latency_count",
            f"histogram_quantile(0.{q}, {_BUCKETS})") for q in (50, 95, 99)),
    Drawn("Rollouts in the store", "", "count", "agl_state_rollouts",
          "sum by (status) (max by (status, mode) (agl_state_rollouts)) > 0", "status"),
    Drawn("Cores in use", "server processes", "count", "agl_process_cpu_seconds_total",
          "sum(rate(agl_process_cpu_seconds_total[Rs]))"),
    Drawn("Cores in use", "whole machine", "count", "node_cpu_seconds_total",
          'sum(rate(node_cpu_seconds_total{mode!="idle"}[Rs]))'),
    Drawn("Memory of the server processes", "", "bytes", "agl_process_resident_memory_bytes",
          "sum(agl_process_resident_memory_bytes)"),
)  # fmt: skip


def metrics() -> dict[str, str]:
    """Every series that is wanted, and what it tells."""
    found: dict[str, str] = {}
    for value in VALUES:
        for name in value.needs:
            found.setdefault(name, f"{value.section.lower()}: {value.name}")
    return found


async def values(window: Window) -> list[Value]:
    """The values whose series have samples in the window."""
    found: list[Value] = []
    for wanted in VALUES:
        if not window.present.issuperset(wanted.needs):
            continue
        query = wanted.query.replace("Ws]", f"{window.seconds}s]")
        query = query.replace("/ W", f"/ {window.seconds}")
        if not wanted.by:
            value = await (_gain(window, wanted) if wanted.gained else window.number(query))
            found.append(_value(wanted, wanted.name, value))
            continue
        for (label,), value in sorted((await window.values(query, (wanted.by,))).items()):
            found.append(_value(wanted, f"{wanted.name}: {label}", value))
    return found


async def _gain(window: Window, wanted: Wanted) -> float | None:
    """From nothing where the series begins in the window."""
    query = wanted.query.replace("[Ws]", f"[{window.seconds}s]")
    after = await window.number(query)
    if after is None:
        return None
    before = await window.number(wanted.query.replace("[Ws]", "[60s]"), window.span.start)
    return (after - (before or 0.0)) / (window.seconds if wanted.per_second else 1)


async def courses(window: Window, scrape: float) -> list[Course]:
    """Lines for charts; rates over four scrapes, or over a step where that is longer."""
    step = max(window.span.seconds / COURSE_POINTS, 1.0)
    width = max(int(step), int(4 * scrape), 1)
    found: list[Course] = []
    for drawn in COURSES:
        if drawn.needs not in window.present:
            continue
        for series in await window.course(drawn.query.replace("Rs]", f"{width}s]"), step):
            name = series.labels.get(drawn.by, drawn.name) if drawn.by else drawn.name
            points = [
                (window.span.start + number * step, None if value is None else float(value))
                for number, value in enumerate(series.values)
            ]
            found.append(
                Course(chart=drawn.chart, name=name, unit=drawn.unit, points=tuple(points))
            )
    return found


def _value(wanted: Wanted, name: str, value: float | None) -> Value:
    return Value(section=wanted.section, name=name, value=value, unit=wanted.unit)
