"""Events that are noted now and written a moment later."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from processes import environment
from prometheus_client import CollectorRegistry

from agl.utils.metrics import MultiMetricsBackend, PrometheusMetricsBackend


def backend_with_metrics() -> PrometheusMetricsBackend:
    backend = PrometheusMetricsBackend(registry=CollectorRegistry())
    backend.register_counter("a.total", ["x"])
    backend.register_histogram("a.latency", ["x"], buckets=[0.1, 1, 10])
    return backend


def value(backend: PrometheusMetricsBackend, name: str, **labels: str) -> float | None:
    return backend._registry.get_sample_value(name, labels)


def test_a_timer_counts_and_spreads_like_the_plain_calls() -> None:
    timed, plain = backend_with_metrics(), backend_with_metrics()
    values = [0.05, 0.1, 0.100001, 3.0, 11.0, float("inf"), -2.0, 1.0, 1.0]
    record = timed.timer("a.total", "a.latency", {"x": "1", "extra": "ignored"})
    for number in values:
        record(number)
        plain.inc("a.total", {"x": "1"})
        plain.observe("a.latency", number, {"x": "1"})
    assert value(timed, "a_total", x="1") == value(plain, "a_total", x="1") == len(values)
    for bound in ("0.1", "1.0", "10.0", "+Inf"):
        name, labels = "a_latency_bucket", {"le": bound, "x": "1"}
        assert value(timed, name, **labels) == value(plain, name, **labels)
    assert value(timed, "a_latency_sum", x="1") == value(plain, "a_latency_sum", x="1")


def test_something_that_is_no_number_does_not_disturb_the_others() -> None:
    backend = backend_with_metrics()
    record = backend.timer("a.total", "a.latency", {"x": "1"})
    for number in (0.05, float("nan"), 20.0, 0.5):
        record(number)
    assert value(backend, "a_total", x="1") == 4
    assert value(backend, "a_latency_bucket", le="1.0", x="1") == 2
    assert value(backend, "a_latency_bucket", le="+Inf", x="1") == 3


def test_timers_of_one_label_set_are_one() -> None:
    backend = backend_with_metrics()
    first = backend.timer("a.total", "a.latency", {"x": "1"})
    assert backend.timer("a.total", "a.latency", {"x": "1"}) == first
    assert backend.timer("a.total", "a.latency", {"x": "2"}) != first


@pytest.mark.parametrize(
    ("counter", "histogram", "labels", "message"),
    [
        ("b.total", "a.latency", {"x": "1"}, r"^Counter 'b.total' is not registered\.$"),
        ("a.total", "b.latency", {"x": "1"}, r"^Histogram 'b.latency' is not registered\.$"),
        ("a.total", "a.latency", {}, "^Label 'x' is required"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    counter: str, histogram: str, labels: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        backend_with_metrics().timer(counter, histogram, labels)


def test_several_backends_get_every_event() -> None:
    backends = [backend_with_metrics() for _ in range(2)]
    both = MultiMetricsBackend(backends)
    both.timer("a.total", "a.latency", {"x": "1"})(0.5)
    both.flush()
    assert [value(backend, "a_total", x="1") for backend in backends] == [1, 1]


def test_threads_lose_nothing_while_somebody_collects() -> None:
    backend = backend_with_metrics()
    record = backend.timer("a.total", "a.latency", {"x": "1"})

    def work() -> None:
        for _ in range(20_000):
            record(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert (value(backend, "a_total", x="1") or 0) <= 80_000
        time.sleep(0.001)
    assert value(backend, "a_total", x="1") == 80_000
    assert value(backend, "a_latency_count", x="1") == 80_000


_SETUP = """
    import os, signal, sys, time
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from agl.utils.metrics import PrometheusMetricsBackend

    backend = PrometheusMetricsBackend()
    backend.register_counter("a.total", ["x"])
    backend.register_histogram("a.latency", ["x"], buckets=[1])
    record = backend.timer("a.total", "a.latency", {"x": "1"})
"""


def counted_by(code: str, folder: Path) -> float:
    """What another process finds in the folder once ``code`` has ended."""
    read = """
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        print(registry.get_sample_value("a_total", {"x": "1"}))
    """
    for step in (textwrap.dedent(_SETUP) + textwrap.dedent(code), textwrap.dedent(read)):
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", step],
            env=environment({"PROMETHEUS_MULTIPROC_DIR": str(folder)}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode in (0, -9), ended.stderr
    return float(ended.stdout)


def test_the_end_of_a_process_loses_nothing(tmp_path: Path) -> None:
    assert counted_by("for _ in range(1000): record(0.5)", tmp_path) == 1000


def test_a_killed_process_loses_only_its_last_moment(tmp_path: Path) -> None:
    code = """
    for _ in range(1000): record(0.5)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    while registry.get_sample_value("a_total", {"x": "1"}) != 1000: time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert counted_by(code, tmp_path) == 1000


def test_a_fork_takes_no_events_of_its_parent_along(tmp_path: Path) -> None:
    code = """
    for _ in range(100): record(0.5)
    child = os.fork()
    if child == 0:
        for _ in range(10): record(0.5)
        backend.flush()
        os._exit(0)
    os.waitpid(child, 0)
    """
    assert counted_by(code, tmp_path) == 110


def test_a_forked_child_writes_by_itself(tmp_path: Path) -> None:
    code = """
    child = os.fork()
    if child == 0:
        record(0.5)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        while registry.get_sample_value("a_total", {"x": "1"}) != 1: time.sleep(0.01)
        os._exit(0)
    os.waitpid(child, 0)
    """
    assert counted_by(code, tmp_path) == 1
