"""Attempts, and how rollouts, queue and workers follow them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conftest import make_span, queued_ids

from agl.errors import AttemptNotFoundError, RolloutNotFoundError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, RolloutConfig

RETRY = RolloutConfig(max_attempts=2, retry_condition=["failed", "timeout", "unresponsive"])


async def test_start_attempt_counts_on_past_max_attempts(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RolloutConfig(max_attempts=1))

    second = await store.start_attempt(rollout.rollout_id, worker_id="w2")

    assert (second.attempt.sequence_id, second.status) == (2, "preparing")
    assert second.attempt.worker_id == "w2"
    assert await store.get_latest_attempt(rollout.rollout_id) == second.attempt


async def test_start_attempt_takes_the_rollout_out_of_the_queue(store: LightningStore) -> None:
    rollout = await store.enqueue_rollout("a")
    await store.start_attempt(rollout.rollout_id)
    assert await queued_ids(store) == []


async def test_start_attempt_reopens_a_finished_rollout(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    again = await store.start_attempt(rollout.rollout_id)

    assert (again.status, again.end_time, again.attempt.sequence_id) == ("preparing", None, 2)
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")
    assert await _status(store, rollout) == ("failed", "failed")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("preparing", "preparing"),
        ("running", "running"),
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("timeout", "failed"),
        ("unresponsive", "failed"),
    ],
)
async def test_the_rollout_follows_its_latest_attempt(
    store: LightningStore, status: Any, expected: str
) -> None:
    rollout = await store.start_rollout("a")

    attempt = await store.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, status=status
    )

    assert attempt.status == status
    assert (attempt.end_time is not None) == (status in ("succeeded", "failed"))
    stored = await _get(store, rollout)
    assert stored.status == expected
    assert (stored.end_time is not None) == (expected in ("succeeded", "failed"))
    assert stored.attempt == attempt


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
async def test_retry(store: LightningStore, status: Any) -> None:
    rollout = await store.start_rollout("a", config=RETRY)
    await store.update_attempt(rollout.rollout_id, "latest", status=status)
    assert await _status(store, rollout) == ("requeuing", status)

    second = await store.dequeue_rollout()
    assert second is not None
    assert (second.rollout_id, second.attempt.sequence_id) == (rollout.rollout_id, 2)

    await store.update_attempt(rollout.rollout_id, "latest", status=status)
    assert await _status(store, rollout) == ("failed", status)
    assert await queued_ids(store) == []


async def test_no_retry_for_another_status(store: LightningStore) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["timeout"])
    rollout = await store.start_rollout("a", config=config)
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")
    assert await _status(store, rollout) == ("failed", "failed")


async def test_an_older_attempt_moves_nothing(store: LightningStore) -> None:
    first = await store.start_rollout("a", config=RETRY)
    await store.start_attempt(first.rollout_id)
    for status in ("running", "failed", "succeeded", "unresponsive"):
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=status)
        assert (await _get(store, first)).status == "preparing"


async def test_only_a_given_status_propagates(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status="running")
    await store.update_rollout(rollout.rollout_id, status="preparing")

    attempt = await store.update_attempt(
        rollout.rollout_id, "latest", metadata={"k": 1}, last_heartbeat_time=5.0, worker_id="w2"
    )

    assert (attempt.metadata, attempt.last_heartbeat_time) == ({"k": 1}, 5.0)
    assert (attempt.worker_id, attempt.status) == ("w2", "running")
    assert (await _get(store, rollout)).status == "preparing"


@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled"])
async def test_a_finished_rollout_stays_finished(store: LightningStore, ending: Any) -> None:
    rollout = await store.start_rollout("a", config=RETRY)
    await store.add_span(make_span(rollout, 1))
    finished = await store.update_rollout(rollout.rollout_id, status=ending)

    await store.update_attempt(rollout.rollout_id, "latest", metadata={"late": True})
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=time.time())
    await store.add_span(make_span(rollout, 2))
    late: tuple[Any, ...] = ("running", "failed", "unresponsive", "timeout", "succeeded")
    for status in late:
        attempt = await store.update_attempt(rollout.rollout_id, "latest", status=status)
        assert attempt.status == status
        stored = await _get(store, rollout)
        assert (stored.status, stored.end_time) == (ending, finished.end_time)
    assert len(await store.query_spans(rollout.rollout_id)) == 2
    assert await queued_ids(store) == []


async def test_a_late_span_after_a_failure_revives_nothing(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RETRY)
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")

    assert await store.add_span(make_span(rollout, 1)) is not None

    assert await _status(store, rollout) == ("requeuing", "failed")
    assert await queued_ids(store) == [rollout.rollout_id]


@pytest.mark.parametrize("sign", ["span", "heartbeat"])
async def test_a_sign_of_life_revives_the_unresponsive(store: LightningStore, sign: str) -> None:
    rollout = await store.start_rollout("a", config=RETRY, worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status="unresponsive")
    assert await _status(store, rollout) == ("requeuing", "unresponsive")

    if sign == "span":
        await store.add_span(make_span(rollout, 1))
    else:
        await store.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, last_heartbeat_time=time.time()
        )

    assert await _status(store, rollout) == ("running", "running")
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)
    assert await queued_ids(store) == []


async def test_the_revived_does_not_take_the_rollout_back(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RETRY)
    await store.update_attempt(rollout.rollout_id, "latest", status="unresponsive")
    second = await store.dequeue_rollout()
    assert second is not None

    await store.add_span(make_span(rollout, 1))

    attempts = await store.query_attempts(rollout.rollout_id)
    assert [attempt.status for attempt in attempts] == ["running", "preparing"]
    assert (await _get(store, rollout)).status == "preparing"


@pytest.mark.parametrize("given_up", ["failed", "timeout", "unresponsive"])
async def test_late_success_of_the_given_up_completes(store: LightningStore, given_up: Any) -> None:
    rollout = await store.start_rollout("a", config=RETRY)
    await store.update_attempt(rollout.rollout_id, "latest", status=given_up)

    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")

    assert await _status(store, rollout) == ("succeeded", "succeeded")
    assert await queued_ids(store) == []


async def test_a_heartbeat_alone_does_not_start_a_preparing_attempt(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=3.0)
    assert await _status(store, rollout) == ("preparing", "preparing")


async def test_nothing_given_changes_nothing(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    assert await store.update_attempt(rollout.rollout_id, "latest") == rollout.attempt
    assert await _get(store, rollout) == rollout


async def test_the_same_ending_again_keeps_the_end_time(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    first = await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert await store.update_attempt(rollout.rollout_id, "latest", status="succeeded") == first


async def test_unknown_attempts(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    started = await store.start_rollout("b")

    assert await store.get_latest_attempt(queued.rollout_id) is None
    assert await store.get_latest_attempt("ro-none") is None
    with pytest.raises(RolloutNotFoundError, match="ro-none"):
        await store.update_attempt("ro-none", "latest", status="failed")
    with pytest.raises(AttemptNotFoundError, match=queued.rollout_id):
        await store.update_attempt(queued.rollout_id, "latest", status="failed")
    with pytest.raises(AttemptNotFoundError, match="at-none"):
        await store.update_attempt(started.rollout_id, "at-none", status="failed")


async def test_query_attempts(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    ids = [rollout.attempt.attempt_id]
    ids += [(await store.start_attempt(rollout.rollout_id)).attempt.attempt_id for _ in range(3)]
    await store.start_rollout("other")

    page = await store.query_attempts(rollout.rollout_id)
    assert ([a.attempt_id for a in page], page.total) == (ids, 4)
    page = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=2, offset=1)
    assert ([a.attempt_id for a in page], page.total) == ([ids[2], ids[1]], 4)
    assert len(await store.query_attempts("ro-none")) == 0


async def test_workers_follow_their_attempts(store: LightningStore) -> None:
    await store.enqueue_rollout("a")
    before = time.time()
    rollout = await store.dequeue_rollout(worker_id="w")
    assert rollout is not None

    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert worker.status == "busy"
    assert worker.current_rollout_id == rollout.rollout_id
    assert worker.current_attempt_id == rollout.attempt.attempt_id
    assert worker.last_dequeue_time is not None
    assert worker.last_dequeue_time >= before
    assert worker.last_busy_time is not None
    assert worker.last_idle_time is None

    for status, expected in (("unresponsive", "unknown"), ("running", "busy"), ("failed", "idle")):
        changed: Any = status
        await store.update_attempt(rollout.rollout_id, "latest", status=changed)
        worker = await store.get_worker_by_id("w")
        assert worker is not None
        assert worker.status == expected
        current = rollout.attempt.attempt_id if expected == "busy" else None
        assert worker.current_attempt_id == current
    assert worker.last_idle_time is not None


async def test_a_worker_that_finds_nothing_is_idle_without_current_ids(
    store: LightningStore,
) -> None:
    await store.start_rollout("a", worker_id="w")
    assert await store.dequeue_rollout(worker_id="w") is None

    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == (
        "idle",
        None,
        None,
    )
    assert worker.last_idle_time == worker.last_dequeue_time

    assert await store.dequeue_many_rollouts(limit=2, worker_id="w") == []
    later = await store.get_worker_by_id("w")
    assert later is not None
    assert later.last_idle_time == worker.last_idle_time
    assert later.last_dequeue_time is not None
    assert worker.last_dequeue_time is not None
    assert later.last_dequeue_time >= worker.last_dequeue_time


async def test_assigning_a_worker(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.update_attempt(rollout.rollout_id, "latest", worker_id="w")
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)


async def _get(store: LightningStore, rollout: AttemptedRollout) -> AttemptedRollout:
    stored = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(stored, AttemptedRollout)
    return stored


async def _status(store: LightningStore, rollout: AttemptedRollout) -> tuple[str, str]:
    stored = await _get(store, rollout)
    return stored.status, stored.attempt.status
