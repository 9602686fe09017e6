"""Console, Prometheus (in memory) and multi backends."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agl.utils.metrics import (
    LATENCY_BUCKETS,
    ConsoleMetricsBackend,
    MetricsBackend,
    MultiMetricsBackend,
    PrometheusMetricsBackend,
)


def prometheus() -> PrometheusMetricsBackend:
    return PrometheusMetricsBackend(registry=CollectorRegistry())


def exposition(backend: PrometheusMetricsBackend) -> str:
    return generate_latest(backend._registry).decode()


@pytest.fixture(params=[ConsoleMetricsBackend, prometheus], ids=["console", "prometheus"])
def backend(request: pytest.FixtureRequest) -> MetricsBackend:
    return request.param()


def test_latency_buckets_are_upstreams() -> None:
    assert len(LATENCY_BUCKETS) == 44
    assert list(LATENCY_BUCKETS) == sorted(set(LATENCY_BUCKETS))
    assert (LATENCY_BUCKETS[0], LATENCY_BUCKETS[-1]) == (1e-6, 300)


def test_registering_the_same_again_changes_nothing(backend: MetricsBackend) -> None:
    for _ in range(2):
        backend.register_counter("a.total", ["x"], group_level=1)
        backend.register_histogram("a.latency", ["x"], buckets=[1, 2])


def test_one_name_cannot_be_both_kinds(backend: MetricsBackend) -> None:
    backend.register_counter("a.total")
    backend.register_histogram("a.latency")
    with pytest.raises(ValueError, match=r"^Metric 'a.total' already registered as counter\.$"):
        backend.register_histogram("a.total")
    with pytest.raises(ValueError, match=r"^Metric 'a.latency' already registered as histogram\.$"):
        backend.register_counter("a.latency")


def test_other_labels_or_buckets_are_refused(backend: MetricsBackend) -> None:
    backend.register_counter("a.total", ["x", "y"])
    backend.register_histogram("a.latency", ["x"], buckets=[1, 2])
    with pytest.raises(ValueError, match="labels"):
        backend.register_counter("a.total", ["y", "x"])
    with pytest.raises(ValueError, match="labels"):
        backend.register_histogram("a.latency", [], buckets=[1, 2])
    with pytest.raises(ValueError, match="buckets"):
        backend.register_histogram("a.latency", ["x"], buckets=[1, 3])


async def test_updating_what_is_not_registered_is_refused(backend: MetricsBackend) -> None:
    backend.register_counter("a.total", ["x"])
    backend.register_histogram("a.latency", ["x"])
    with pytest.raises(ValueError, match=r"^Counter 'b' is not registered\.$"):
        await backend.inc_counter("b")
    with pytest.raises(ValueError, match=r"^Histogram 'a.total' is not registered\.$"):
        await backend.observe_histogram("a.total", 1)
    with pytest.raises(ValueError, match=r"^Label 'x' is required for Counter 'a.total'\.$"):
        await backend.inc_counter("a.total", labels={"y": "1"})
    with pytest.raises(ValueError, match=r"^Label 'x' is required for Histogram 'a.latency'\.$"):
        await backend.observe_histogram("a.latency", 1)
    with pytest.raises(ValueError, match="is required"):
        backend.touch_counter("a.total")
    with pytest.raises(ValueError, match="is not registered"):
        backend.touch_histogram("b")


# Prometheus


async def test_prometheus_sums_sync_and_async_and_ignores_extra_labels() -> None:
    backend = prometheus()
    assert backend.has_prometheus()
    backend.register_counter("agl.http.total", ["path", "status"])
    labels = {"status": "200", "extra": "ignored", "path": "/x"}
    await backend.inc_counter("agl.http.total", 2, labels)
    backend.inc("agl.http.total", labels)
    backend.inc("agl.http.total", labels, 0.5)
    assert 'agl_http_total{path="/x",status="200"} 3.5\n' in exposition(backend)
    assert "# HELP agl_http_total Requests answered.\n" in exposition(backend)
    backend.register_counter("x.total")
    assert "# HELP x_total Counter x.total\n" in exposition(backend)


async def test_prometheus_histogram_buckets() -> None:
    backend = prometheus()
    backend.register_histogram("agl.http.latency", ["path"], buckets=(0.1, 1))
    await backend.observe_histogram("agl.http.latency", 0.5, {"path": "/x"})
    backend.observe("agl.http.latency", 5, {"path": "/x"})
    text = exposition(backend)
    assert 'agl_http_latency_bucket{le="0.1",path="/x"} 0.0\n' in text
    assert 'agl_http_latency_bucket{le="1.0",path="/x"} 1.0\n' in text
    assert 'agl_http_latency_bucket{le="+Inf",path="/x"} 2.0\n' in text
    assert 'agl_http_latency_sum{path="/x"} 5.5\n' in text


def test_prometheus_shows_touched_series_at_zero() -> None:
    backend = prometheus()
    backend.register_counter("a.total", ["x"])
    backend.register_histogram("a.latency", ["x"], buckets=[1])
    assert 'x="1"' not in exposition(backend)
    backend.touch_counter("a.total", {"x": "1"})
    backend.touch_histogram("a.latency", {"x": "1"})
    assert 'a_total{x="1"} 0.0\n' in exposition(backend)
    assert 'a_latency_count{x="1"} 0.0\n' in exposition(backend)


def test_prometheus_names_that_collide_are_refused() -> None:
    backend = prometheus()
    backend.register_counter("a.b_c")
    with pytest.raises(ValueError, match=r"^Prometheus metric name conflict: 'a.b.c' and 'a.b_c'"):
        backend.register_counter("a.b.c")
    with pytest.raises(ValueError, match="is not registered"):
        backend.inc("a.b.c")


def test_two_prometheus_backends_of_one_process_share_a_metric() -> None:
    registry = CollectorRegistry()
    first, second = (PrometheusMetricsBackend(registry=registry) for _ in range(2))
    for backend in (first, second):
        backend.register_counter("a.total", ["x"])
        backend.inc("a.total", {"x": "1"})
    assert 'a_total{x="1"} 2.0\n' in exposition(first)
    with pytest.raises(ValueError, match="other labels"):
        PrometheusMetricsBackend(registry=registry).register_counter("a.total", ["y"])


def test_prometheus_threads_lose_nothing() -> None:
    backend = prometheus()
    backend.register_counter("a.total", ["x"])

    def work() -> None:
        for number in range(2000):
            backend.inc("a.total", {"x": str(number % 7)})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = re.findall(r"^a_total\{.*\} (\S+)$", exposition(backend), re.M)
    assert len(values) == 7
    assert sum(map(float, values)) == 8000


# Console


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "agl.utils.metrics"]


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "agl.utils.metrics")
    return caplog


async def test_console_logs_at_once_then_waits_for_the_interval(
    info: pytest.LogCaptureFixture,
) -> None:
    backend = ConsoleMetricsBackend(log_interval_seconds=0.2)
    backend.register_counter("a.total", ["x"], group_level=1)
    backend.inc("a.total", {"x": "1"})
    backend.inc("a.total", {"x": "1"})
    assert lines(info) == ["a.total{x=1}=5.00/s"]
    await asyncio.sleep(0.21)
    backend.inc("a.total", {"x": "2"})
    assert len(lines(info)) == 2
    assert re.fullmatch(r"a\.total\{x=1\}=\d+\.\d\d/s  a\.total\{x=2\}=5\.00/s", lines(info)[1])
    assert not backend.has_prometheus()


def test_console_line_is_sorted_and_grouped(info: pytest.LogCaptureFixture) -> None:
    backend = ConsoleMetricsBackend(log_interval_seconds=0)
    backend.register_histogram("z.latency", ["x", "y"], group_level=1)
    backend.register_counter("a.total", ["x", "y"])
    backend.observe("z.latency", 1.0, {"x": "1", "y": "1"})
    backend.observe("z.latency", 3.0, {"x": "1", "y": "2"})
    backend.inc("a.total", {"x": "1", "y": "1"})
    entries = lines(info)[-1].split("  ")
    assert re.fullmatch(r"a\.total=\d+\.\d\d/s", entries[0])
    assert entries[1] == "z.latency{x=1}=2.00s,2.90s,2.98s"


def test_console_backend_level_goes_before_the_metrics(info: pytest.LogCaptureFixture) -> None:
    backend = ConsoleMetricsBackend(group_level=2)
    backend.register_histogram("a.latency", ["x", "y", "z"], group_level=1)
    backend.observe("a.latency", 0.0021, {"x": "1", "y": "2", "z": "3"})
    assert lines(info) == ["a.latency{x=1,y=2}=2.10ms,2.10ms,2.10ms"]


def test_console_texts() -> None:
    backend = ConsoleMetricsBackend(window_seconds=10, log_interval_seconds=2)
    assert backend._log_counter("c", {}, [90, 99], [1, 3], 100) == "c=0.40/s"
    assert backend._log_counter("c", {"a": "b"}, [99.5], [3], 100) == "c{a=b}=1.50/s"
    assert backend._log_counter("c", {}, [10, 99], [10, 10], 100) == "c=2.00/s"
    values = [4e-9, 5e-6, 6e-3, 7.0]
    assert backend._log_histogram("h", {}, values[:1], (), 0) == "h=4.00ns,4.00ns,4.00ns"
    assert backend._log_histogram("h", {}, values[1:2], (), 0) == "h=5.00µs,5.00µs,5.00µs"
    assert backend._log_histogram("h", {}, values[2:3], (), 0) == "h=6.00ms,6.00ms,6.00ms"
    assert backend._log_histogram("h", {}, values, (), 0) == "h=3.00ms,5.95s,6.79s"
    truncate = backend._truncate_labels_for_logging
    assert truncate({"a": "1", "b": "2"}, 1) == {"a": "1"}
    assert truncate({"a": "1", "b": "2"}, 0) == truncate({"a": "1"}, None) == {}


async def test_console_forgets_what_left_the_window(info: pytest.LogCaptureFixture) -> None:
    backend = ConsoleMetricsBackend(window_seconds=0.1, log_interval_seconds=0.0)
    backend.register_counter("a.total", ["x"], group_level=1)
    for _ in range(3):
        backend.inc("a.total", {"x": "1"})
    backend.inc("a.total", {"x": "2"})
    await asyncio.sleep(0.12)
    backend.inc("a.total", {"x": "1"}, 5)
    state = backend._counter_state
    assert list(state) == [("a.total", (("x", "1"),))]
    assert state["a.total", (("x", "1"),)].amounts == [5]
    assert "x=2" not in lines(info)[-1]


def test_console_without_a_window_keeps_all() -> None:
    backend = ConsoleMetricsBackend(window_seconds=None, log_interval_seconds=1000)
    backend.register_histogram("a.latency")
    for number in range(5000):
        backend.observe("a.latency", number)
    assert backend._hist_state["a.latency", ()].values == list(range(5000))


def test_console_touch_shows_nothing(info: pytest.LogCaptureFixture) -> None:
    backend = ConsoleMetricsBackend()
    backend.register_counter("a.total", ["x"])
    backend.touch_counter("a.total", {"x": "1"})
    assert backend._counter_state == {}
    assert lines(info) == []


# Multi, and backends of others


def test_multi_needs_a_backend() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MultiMetricsBackend([])


async def test_multi_forwards_everything(info: pytest.LogCaptureFixture) -> None:
    exposed, console = prometheus(), ConsoleMetricsBackend(log_interval_seconds=0)
    multi = MultiMetricsBackend([console, exposed])
    assert multi.has_prometheus()
    assert not MultiMetricsBackend([console]).has_prometheus()
    multi.register_counter("a.total", ["x"], 1)
    multi.register_histogram("a.latency", ["x"], [1, 2], 1)
    multi.touch_counter("a.total", {"x": "zero"})
    multi.touch_histogram("a.latency", {"x": "zero"})
    await multi.inc_counter("a.total", labels={"x": "1"})
    multi.inc("a.total", {"x": "1"}, 2)
    await multi.observe_histogram("a.latency", 1.5, {"x": "1"})
    multi.observe("a.latency", 1.5, {"x": "1"})
    text = exposition(exposed)
    assert 'a_total{x="1"} 3.0\n' in text
    assert 'a_total{x="zero"} 0.0\n' in text
    assert 'a_latency_sum{x="1"} 3.0\n' in text
    assert 'a_latency_count{x="zero"} 0.0\n' in text
    assert lines(info)[-1].startswith("a.latency{x=1}=1.50s,1.50s,1.50s  a.total{x=1}=")


class AsyncOnly(MetricsBackend):
    """As a user of agent-lightning would have written it: only the four old methods."""

    def __init__(self, wait: bool) -> None:
        self.seen: list[tuple[str, float, Mapping[str, str] | None]] = []
        self.wait = wait

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None: ...

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Mapping[str, str] | None = None
    ) -> None:
        if self.wait:
            await asyncio.sleep(0)
        self.seen.append((name, amount, labels))

    async def observe_histogram(
        self, name: str, value: float, labels: Mapping[str, str] | None = None
    ) -> None:
        self.seen.append((name, value, labels))


def test_a_backend_with_coroutines_only_serves_the_sync_twins() -> None:
    backend = AsyncOnly(wait=False)
    backend.inc("a", {"x": "1"}, 2)
    backend.observe("b", 3)
    backend.touch_counter("a", {"x": "1"})
    assert backend.seen == [("a", 2, {"x": "1"}), ("b", 3, None)]
    with pytest.raises(RuntimeError, match="override the synchronous inc"):
        AsyncOnly(wait=True).inc("a")
