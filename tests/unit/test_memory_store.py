"""The memory store beyond the contract: eviction, threads, pickling, sharing, clocks."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agl.errors import SpansEvictedError
from agl.store.memory import InMemoryLightningStore
from agl.store.threading import LightningStoreThreaded
from agl.store.watchdog import SWEEP_LIMIT, Deadlines, Watchdog
from agl.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    OtelResource,
    Rollout,
    RolloutConfig,
    Span,
    TraceStatus,
)
from agl.utils.ownership import share_objects


def make_span(rollout: AttemptedRollout, number: int) -> Span:
    return Span(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id="t",
        span_id=str(number),
        parent_id=None,
        name="s",
        status=TraceStatus(status_code="OK"),
        attributes={"k": ["v"]},
        events=[],
        links=[],
        start_time=None,
        end_time=None,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def small_store(threshold: int = 100, safe: int = 50, **options: Any) -> InMemoryLightningStore:
    """A store in which every span takes 10 bytes."""
    return InMemoryLightningStore(
        eviction_memory_threshold=threshold,
        safe_memory_threshold=safe,
        span_size_estimator=lambda span: 10,
        **options,
    )


async def _fill(store: InMemoryLightningStore, rollout: AttemptedRollout, count: int) -> None:
    for number in range(count):
        assert await store.add_span(make_span(rollout, number)) is not None


async def _kept(store: InMemoryLightningStore, rollout: AttemptedRollout) -> int | None:
    try:
        return len(await store.query_spans(rollout.rollout_id))
    except SpansEvictedError:
        return None


# Eviction


async def test_the_first_finished_goes_first() -> None:
    store = small_store()
    rollouts = [await store.start_rollout(n) for n in range(4)]
    for rollout in rollouts[:3]:
        await _fill(store, rollout, 3)
    for rollout in (rollouts[1], rollouts[0]):
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    await _fill(store, rollouts[3], 2)

    assert [await _kept(store, rollout) for rollout in rollouts] == [None, None, 3, 2]
    statistics = await store.statistics()
    assert statistics["total_span_bytes"] == 50
    assert statistics["total_spans"] == 5
    assert (statistics["evicted_spans"], statistics["evicted_rollouts"]) == (6, 2)
    assert statistics["eviction_threshold_bytes"] == 100
    assert statistics["safe_threshold_bytes"] == 50
    assert statistics["memory_capacity_bytes"] > 0


async def test_unfinished_ones_go_when_no_finished_is_left_but_not_the_one_written() -> None:
    store = small_store()
    old, writing = [await store.start_rollout(n) for n in range(2)]
    await _fill(store, old, 5)
    await _fill(store, writing, 6)
    assert [await _kept(store, old), await _kept(store, writing)] == [None, 6]

    await store.update_attempt(writing.rollout_id, "latest", status="succeeded")
    other = await store.start_rollout("c")
    await store.add_span(make_span(writing, 90))
    assert (await store.statistics())["total_span_bytes"] == 70
    await _fill(store, other, 4)
    assert [await _kept(store, writing), await _kept(store, other)] == [None, 4]


async def test_the_one_written_goes_when_it_alone_is_too_big() -> None:
    store = small_store()
    rollout = await store.start_rollout("a")
    await _fill(store, rollout, 11)
    assert await _kept(store, rollout) is None
    statistics = await store.statistics()
    assert (statistics["total_span_bytes"], statistics["total_spans"]) == (0, 0)


async def test_a_reopened_rollout_is_not_among_the_finished() -> None:
    store = small_store(100, 90)
    reopened, finished, writing = [await store.start_rollout(n) for n in range(3)]
    for rollout in (reopened, finished):
        await _fill(store, rollout, 4)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await store.start_attempt(reopened.rollout_id)
    await _fill(store, writing, 3)
    assert [await _kept(store, r) for r in (reopened, finished, writing)] == [4, None, 3]

    await store.update_attempt(reopened.rollout_id, "latest", status="failed")
    await _fill(store, await store.start_rollout("d"), 4)
    assert [await _kept(store, r) for r in (reopened, finished, writing)] == [None, None, 3]


async def test_spans_that_come_after_the_end_can_be_evicted_first() -> None:
    store = small_store(100, 90)
    late, running = [await store.start_rollout(n) for n in range(2)]
    await store.update_attempt(late.rollout_id, "latest", status="succeeded")
    await _fill(store, running, 5)
    await _fill(store, late, 5)
    await store.add_span(make_span(running, 99))
    assert [await _kept(store, late), await _kept(store, running)] == [None, 6]


async def test_what_is_evicted_is_said_by_attempt() -> None:
    store = small_store()
    first = await store.start_rollout("a")
    await _fill(store, first, 11)
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(make_span(second, 1))

    reason = f"rollout {first.rollout_id} have been evicted.*{first.attempt.attempt_id}"
    for attempt_id in (None, first.attempt.attempt_id):
        with pytest.raises(SpansEvictedError, match=reason):
            await store.query_spans(first.rollout_id, attempt_id)
    assert len(await store.query_spans(first.rollout_id, "latest")) == 1
    assert issubclass(SpansEvictedError, RuntimeError)


async def test_eviction_is_spread_over_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.store.memory._EVICTION_SECONDS", -1.0)
    store = small_store()
    for n in range(10):
        await _fill(store, await store.start_rollout(n), 1)
    writing = await store.start_rollout("w")

    totals: list[int] = []
    for number in range(7):
        await store.add_span(make_span(writing, number))
        totals.append((await store.statistics())["total_span_bytes"])

    assert totals == [100, 100, 100, 100, 100, 100, 100]


async def test_a_negative_estimate_counts_as_nothing() -> None:
    store = InMemoryLightningStore(span_size_estimator=lambda span: -5)
    await _fill(store, await store.start_rollout("a"), 1)
    assert (await store.statistics())["total_span_bytes"] == 0


async def test_the_default_estimate_grows_with_the_span() -> None:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout("a")
    await store.add_span(make_span(rollout, 1))
    small = (await store.statistics())["total_span_bytes"]
    big = make_span(rollout, 2)
    big.attributes["text"] = "x" * 10_000
    await store.add_span(big)
    assert (await store.statistics())["total_span_bytes"] - 2 * small > 10_000


@pytest.mark.parametrize(
    ("eviction", "safe", "message"),
    [
        (0, None, "at least 1 bytes"),
        (-1, None, "non-negative"),
        (0.0, None, "share"),
        (1.5, None, "share"),
        (100, -1, "non-negative"),
        (100, 1.5, "share"),
        (100, 100, "safe_memory_threshold must be smaller than eviction_memory_threshold"),
        (0.5, 0.6, "safe_memory_threshold must be smaller than eviction_memory_threshold"),
    ],
)
def test_thresholds_that_make_no_sense(eviction: Any, safe: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InMemoryLightningStore(eviction_memory_threshold=eviction, safe_memory_threshold=safe)


async def test_default_thresholds() -> None:
    statistics = await InMemoryLightningStore().statistics()
    capacity = statistics["memory_capacity_bytes"]
    assert statistics["eviction_threshold_bytes"] == int(0.7 * capacity)
    assert statistics["safe_threshold_bytes"] == int(0.8 * int(0.7 * capacity))
    half = await InMemoryLightningStore(
        eviction_memory_threshold=0.5, safe_memory_threshold=0.25
    ).statistics()
    assert half["eviction_threshold_bytes"] == int(0.5 * capacity)
    assert half["safe_threshold_bytes"] == int(0.25 * capacity)


# Capabilities, pickling, sharing


def test_capabilities() -> None:
    plain, safe = InMemoryLightningStore(), InMemoryLightningStore(thread_safe=True)
    assert plain.capabilities == {
        "thread_safe": False,
        "async_safe": True,
        "zero_copy": False,
        "otlp_traces": False,
    }
    assert safe.capabilities["thread_safe"] is True
    assert LightningStoreThreaded(plain).capabilities["thread_safe"] is True
    with pytest.raises(NotImplementedError):
        LightningStoreThreaded(plain).otlp_traces_endpoint()


async def test_a_store_pickles_with_its_content() -> None:
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    config = RolloutConfig(timeout_seconds=0.01)
    rollout = await store.start_rollout("a", config=config)
    queued = await store.enqueue_rollout("b")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[queued.rollout_id]))
    await asyncio.sleep(0.02)

    copy: InMemoryLightningStore = pickle.loads(pickle.dumps(store))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    stored = await copy.get_rollout_by_id(rollout.rollout_id)
    assert stored is not None
    assert stored.status == "failed"
    claimed = await copy.dequeue_rollout()
    assert claimed is not None
    assert claimed.rollout_id == queued.rollout_id
    assert await store.dequeue_rollout() is not None


async def test_sharing_saves_the_copies() -> None:
    store = InMemoryLightningStore()
    with share_objects():
        task = {"q": 1}
        rollout = await store.start_rollout(task)
        stored = await store.get_rollout_by_id(rollout.rollout_id)
        assert stored is not None
        assert stored.input is task
        again = await store.get_rollout_by_id(rollout.rollout_id)
        assert again is not None
        assert again.attempt is stored.attempt


async def test_an_input_that_cannot_be_copied_is_kept_as_it_is() -> None:
    store = InMemoryLightningStore()
    handle = threading.Lock()
    rollout = await store.start_rollout({"handle": handle, "list": [1]})
    assert rollout.input["handle"] is handle


async def test_taken_ids_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["a", "1", "a", "2", "b", "3"])
    monkeypatch.setattr("agl.store._plan.draw_id", lambda length: next(ids))
    store = InMemoryLightningStore()
    assert (await store.start_rollout(1)).rollout_id == "ro-a"
    assert (await store.start_rollout(2)).rollout_id == "ro-b"
    assert (await store.statistics())["total_attempts"] == 2


# Threads


@pytest.mark.parametrize("wrapped", [False, True])
def test_threads_and_loops_share_a_store(wrapped: bool) -> None:
    inner = InMemoryLightningStore(thread_safe=not wrapped)
    store = LightningStoreThreaded(inner) if wrapped else inner
    count, threads = 40, 6
    claimed: list[str] = []

    async def produce() -> None:
        for n in range(count):
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n)] * 2)

    async def consume() -> None:
        quiet = 0
        while quiet < 50:
            rollout = await store.dequeue_rollout(worker_id=threading.current_thread().name)
            if rollout is None:
                quiet += 1
                await asyncio.sleep(0.001)
                continue
            quiet = 0
            claimed.append(rollout.rollout_id)
            ids = (rollout.rollout_id, rollout.attempt.attempt_id)
            number = await store.get_next_span_sequence_id(*ids)
            await store.add_span(make_span(rollout, number))
            await store.query_rollouts(status_in=["running"], limit=3)
            await store.update_attempt(*ids, status="succeeded")

    work = [produce, consume, consume, produce, consume, produce]
    runners = [threading.Thread(target=lambda w=w: asyncio.run(w())) for w in work]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(60)

    assert len(runners) == threads
    assert len(claimed) == len(set(claimed)) == 3 * 2 * count
    done = asyncio.run(store.query_rollouts(status_in=["succeeded"]))
    assert done.total == 3 * 2 * count


def test_a_finish_in_another_thread_wakes_a_wait() -> None:
    store = InMemoryLightningStore(thread_safe=True)
    rollout = asyncio.run(store.start_rollout("a"))
    took: list[float] = []

    async def wait() -> None:
        (found,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=10)
        took.append(time.monotonic())
        assert found.status == "succeeded"

    waiting = threading.Thread(target=lambda: asyncio.run(wait()))
    waiting.start()
    time.sleep(0.2)
    finished = time.monotonic()
    asyncio.run(store.update_attempt(rollout.rollout_id, "latest", status="succeeded"))
    waiting.join(10)
    assert 0 <= took[0] - finished < 0.05
    assert len(store._bell) == 0


# Watchdog


async def test_the_loop_of_the_watchdog_needs_no_calls() -> None:
    store = InMemoryLightningStore()
    rollouts = [
        await store.start_rollout(n, config=RolloutConfig(timeout_seconds=0.02))
        for n in range(2 * SWEEP_LIMIT + 5)
    ]
    running = asyncio.create_task(store.watchdog.run(0.02))
    ids = [rollout.rollout_id for rollout in rollouts]
    found = await store.wait_for_rollouts(rollout_ids=ids, timeout=5)
    running.cancel()
    assert {rollout.status for rollout in found} == {"failed"}
    assert len(found) == len(rollouts)


async def test_the_watchdog_survives_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    swept = asyncio.Event()
    calls = 0

    async def sweep(limit: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("no backend")
        swept.set()
        return 0

    running = asyncio.create_task(Watchdog(sweep, time.time, 10).run(0.001))
    await asyncio.wait_for(swept.wait(), 5)
    running.cancel()
    assert "no backend" in caplog.text


async def test_looks_inside_calls_are_debounced() -> None:
    times = [100.0, 100.0, 105.0, 109.9, 110.0, 111.0]
    seen: list[float] = []

    async def sweep(limit: int) -> int:
        seen.append(now)
        return 0

    now = times[0]
    watchdog = Watchdog(sweep, lambda: now, 10)
    for moment in times[1:]:
        now = moment
        await watchdog.look_in_call()
    assert seen == [100.0, 110.0]

    always = Watchdog(sweep, lambda: now, 0)
    await always.look_in_call()
    await always.look_in_call()
    assert seen == [100.0, 110.0, 111.0, 111.0]


async def test_a_full_sweep_is_followed_up_by_the_next_call() -> None:
    results = [SWEEP_LIMIT, 1, 0]

    async def sweep(limit: int) -> int:
        return results.pop(0)

    watchdog = Watchdog(sweep, lambda: 100.0, 10)
    for _ in range(4):
        await watchdog.look_in_call()
    assert results == [0]


async def test_the_watchdog_of_a_wrapped_store_takes_turns() -> None:
    store = LightningStoreThreaded(InMemoryLightningStore())
    rollout = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=0.01))
    running = asyncio.create_task(store.watchdog.run(0.01))
    assert len(await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=5)) == 1
    running.cancel()


def test_deadlines_look_only_at_what_is_due() -> None:
    deadlines = Deadlines()

    def watch(name: str, timeout: float | None, status: Any = "running") -> None:
        config = RolloutConfig(timeout_seconds=timeout)
        rollout = Rollout(rollout_id=name, input=0, start_time=0, status=status, config=config)
        deadlines.watch(
            rollout, Attempt(rollout_id=name, attempt_id="", sequence_id=1, start_time=0)
        )

    watch("late", 30)
    watch("early", 10)
    watch("never", None)
    watch("finished", 1, "succeeded")
    assert len(deadlines) == 2
    assert not deadlines.any_due(10)
    assert deadlines.take_due(10, 9) == []
    watch("late", 5)
    watch("early", 50)
    assert deadlines.any_due(6)
    assert deadlines.take_due(100, 1) == ["late"]
    deadlines.done()
    assert deadlines.take_due(100, 9) == ["early"]
    assert deadlines.take_due(100, 9) == ["early"]  # until it is said to be done
    deadlines.done()
    assert len(deadlines) == 0
    assert deadlines.take_due(100, 9) == []


async def test_a_failed_dequeue_leaves_the_rollout_in_the_queue() -> None:
    store = InMemoryLightningStore()
    waiting = await store.enqueue_rollout("a")
    with pytest.raises(ValueError, match="worker_id"):
        await store.dequeue_rollout(worker_id=5)  # type: ignore[arg-type] # the mistake of a caller
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    assert claimed.rollout_id == waiting.rollout_id


async def test_a_failed_look_of_the_watchdog_forgets_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    rollout = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=0.001))
    await asyncio.sleep(0.002)
    with monkeypatch.context() as broken:
        broken.setattr(store.collections.rollouts, "find", AsyncMock(side_effect=OSError))
        with pytest.raises(OSError):
            await store.query_workers()
    (found,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)
    assert found.status == "failed"
