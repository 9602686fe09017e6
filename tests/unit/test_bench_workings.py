"""Micro and collection workloads: their arithmetic, and what of it runs in this process."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections import Counter

import pytest

from agl.bench.collection import (
    CollectionOptions,
    CollectionReport,
    Round,
    Workings,
    measure_memory,
)
from agl.bench.interrupts import Interruption
from agl.bench.micro import (
    MicroOptions,
    MicroReport,
    MicroRound,
    Share,
    ShareReport,
    work,
)
from agl.bench.operations import MODES
from agl.bench.pool import Signals
from agl.bench.target import DeadlinePassedError, Persistence
from agl.errors import BackendUnavailableError

OPTIONS = MicroOptions("rollout", "http://u:pass@host:1", processes=2, operations=10, patience=3.0)


def share(began: float, ended: float, succeeded: int, **errors: int) -> ShareReport:
    seconds = array("d", [0.1 * (n + 1) for n in range(succeeded)])
    return ShareReport(began, ended, succeeded, Counter(errors), seconds)


def test_defaults_are_those_of_0_3() -> None:
    assert {name: (mode.processes, mode.operations) for name, mode in MODES.items()} == {
        "worker": (1024, 10240),
        "dequeue-empty": (1024, 10240),
        "rollout": (256, 4096),
        "dequeue-only": (512, 8192),
        "dequeue-update-attempt": (512, 8192),
        "metrics": (1, 20_000_000),
    }


def test_a_round_lasts_from_the_first_operation_to_the_last() -> None:
    idle = ShareReport(began=1.0, ended=99.0)
    report = MicroReport(OPTIONS, 0.0, [MicroRound([share(5, 8, 5), share(6, 10, 5), idle], {})])
    assert report.summaries() == [
        "[summary] mode=rollout success_rate=1.000 throughput=2.000 ops/s duration=5.000s "
        "success=10/10"
    ]
    result = report.to_result(None)
    assert result.ok
    assert "pass" not in result.model_dump_json()
    slowest, median = result.figure("latency_max"), result.figure("latency_p50")
    assert slowest is not None
    assert median is not None
    assert (slowest.median, median.median) == pytest.approx((0.5, 0.3))


def test_what_did_not_succeed_is_counted_and_named() -> None:
    report = MicroReport(
        OPTIONS,
        0.0,
        [MicroRound([share(5, 8, 4, Oops=2)], {"micro-1": "died with exit code -9"})],
        still_queuing=["ro-1"],
    )
    result = report.to_result(None)
    assert result.problems == (
        "round 1: 6 of 10 operations did not succeed",
        "2 times Oops",
        "process micro-1 died with exit code -9",
        "1 rollouts still queuing: ro-1",
    )
    assert "success=4/10" in report.summaries()[0]


def test_a_store_that_stays_away_makes_a_partial_result() -> None:
    lost = share(5, 8, 4, Oops=1)
    lost.gave_up = True
    result = MicroReport(OPTIONS, 0.0, [MicroRound([lost], {})]).to_result(None)
    assert result.partial == "the store went away and did not come back within 3 s"


@pytest.mark.parametrize("stopped", [False, True])
def test_the_metrics_workload_counts_both_of_what_it_does(stopped: bool) -> None:
    here, there = multiprocessing.Pipe()
    (go, begin), (stop, end) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
    signals = Signals(go, stop, there)
    begin.close()
    if stopped:
        end.close()
    options = MicroOptions("metrics", "", processes=2, operations=21)
    report = work(Share(options, "run", first=1, step=2, end=21), signals)
    assert report.succeeded == (0 if stopped else 10)
    assert report.ended >= report.began > 0
    assert here.poll(), "it said that it was ready"


async def test_persistence_tells_of_an_outage_and_gives_up_at_the_deadline() -> None:
    said: list[str] = []
    answers = [ConnectionRefusedError("no"), ConnectionRefusedError("no"), "here"]

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    patient = Persistence(time.time() + 60, tell=said.append)
    assert await patient.call(ask) == "here"
    assert not patient.is_away
    assert [line.partition(" (")[0].partition(" after")[0] for line in said] == [
        "the store does not answer",
        "the store answers again",
    ]
    answers.append(ConnectionRefusedError("no"))
    late = Persistence(time.time(), tell=said.append)
    with pytest.raises(DeadlinePassedError):
        await late.call(ask)
    assert late.is_away


async def test_a_worker_ends_with_the_queue_and_with_the_database() -> None:
    async def operation(number: int) -> bool:
        if number == 2:
            raise ValueError("odd")
        if number == 5:
            raise BackendUnavailableError("gone")
        return number != limit

    limit, own = 4, Workings()
    await own.work(range(10), operation, lambda: False)
    assert (len(own.seconds), own.away, dict(own.errors)) == (3, False, {"ValueError: odd": 1})
    limit, own = 8, Workings()
    await own.work(range(10), operation, lambda: False)
    assert (len(own.seconds), own.away) == (4, True)
    own = Workings()
    await own.work(range(10), operation, lambda: True)
    assert not own.seconds


@pytest.mark.parametrize("workload", ["insert", "dequeue"])
def test_threads_share_collections_in_memory(workload: str) -> None:
    options = CollectionOptions(workload, "memory", 700, 16, "test", rounds=2)  # type: ignore[arg-type]
    report = measure_memory(options, Interruption())
    result = report.to_result(None)
    assert result.ok, result.problems
    for line in report.summaries():
        assert (line["successes"], line["failures"], line["success_rate"]) == (700, 0, 1.0)
        assert (line["name"], line["ops_per_worker"]) == (f"collection-{workload}", 700 / 16)
        assert 0 < line["min_latency"] <= line["p50_latency"] <= line["p99_latency"]
        assert line["p99_latency"] <= line["max_latency"] <= line["duration"]
    assert "100.00 %" in report.to_text()


def test_a_collection_that_fails_is_doubtful() -> None:
    options = CollectionOptions("insert", "mongo", 10, 2, "test")
    now = time.monotonic()
    broken = Workings(now, now + 1, array("d", [0.5]), Counter({"Oops": 1}), away=True)
    report = CollectionReport(options, 0.0, [Round(10, [broken], ["collection-1 was killed"])])
    result = report.to_result(None)
    assert result.partial == "the database went away"
    assert result.problems == (
        "round 1: 9 of 10 operations did not succeed",
        "round 1: 1 times Oops",
        "round 1: collection-1 was killed",
    )
