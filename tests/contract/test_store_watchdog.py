"""The watchdog: attempts that run too long or have fallen silent."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from conftest import make_span, queued_ids

from agl.store.base import LightningStore
from agl.types import AttemptedRollout, RolloutConfig

LONG_AGO = 1000.0


async def _look(store: LightningStore, rollout: AttemptedRollout) -> tuple[str, str]:
    stored = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(stored, AttemptedRollout)
    return stored.status, stored.attempt.status


async def test_timeout(store: LightningStore) -> None:
    rollout = await store.start_rollout(
        "a", config=RolloutConfig(timeout_seconds=0.02), worker_id="w"
    )
    await store.add_span(make_span(rollout, 1))
    await asyncio.sleep(0.03)

    assert await _look(store, rollout) == ("failed", "timeout")
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert (worker.status, worker.current_attempt_id) == ("unknown", None)


async def test_a_limit_of_infinity_is_none_and_hides_no_other(store: LightningStore) -> None:
    endless = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=math.inf))
    config = RolloutConfig(timeout_seconds=math.inf, unresponsive_seconds=0.02)
    silent = await store.start_rollout("b", config=config)
    late = [
        await store.start_rollout("c", config=RolloutConfig(timeout_seconds=0.02)) for _ in range(5)
    ]
    await asyncio.sleep(0.03)

    assert [await _look(store, rollout) for rollout in late] == [("failed", "timeout")] * 5
    assert await _look(store, silent) == ("failed", "unresponsive")
    assert await _look(store, endless) == ("preparing", "preparing")


async def test_timeout_is_queued_again_where_allowed(store: LightningStore) -> None:
    config = RolloutConfig(timeout_seconds=0.02, max_attempts=2, retry_condition=["timeout"])
    rollout = await store.start_rollout("a", config=config)
    await asyncio.sleep(0.03)

    second = await store.dequeue_rollout()
    assert second is not None
    assert (second.rollout_id, second.attempt.sequence_id) == (rollout.rollout_id, 2)
    await asyncio.sleep(0.03)

    assert await _look(store, rollout) == ("failed", "timeout")
    assert await queued_ids(store) == []


async def test_silence_since_the_last_heartbeat(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RolloutConfig(unresponsive_seconds=60))
    heartbeat = time.time()
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=heartbeat)
    assert await _look(store, rollout) == ("preparing", "preparing")

    silent = heartbeat - LONG_AGO
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=silent)

    assert await _look(store, rollout) == ("failed", "unresponsive")


async def test_silence_from_the_start(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RolloutConfig(unresponsive_seconds=0.02))
    await asyncio.sleep(0.03)
    assert await _look(store, rollout) == ("failed", "unresponsive")


async def test_limits_given_later_apply(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await asyncio.sleep(0.03)
    assert await _look(store, rollout) == ("preparing", "preparing")
    config = RolloutConfig(timeout_seconds=0.01)
    await store.update_rollout(rollout.rollout_id, config=config)
    assert await _look(store, rollout) == ("failed", "timeout")


async def test_the_revived_are_watched_again(store: LightningStore) -> None:
    config = RolloutConfig(
        unresponsive_seconds=600, max_attempts=2, retry_condition=["unresponsive"]
    )
    rollout = await store.start_rollout("a", config=config)
    silent = time.time() - LONG_AGO
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=silent)
    assert await _look(store, rollout) == ("requeuing", "unresponsive")
    await store.add_span(make_span(rollout, 1))
    assert await _look(store, rollout) == ("running", "running")
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=silent)
    assert await _look(store, rollout) == ("requeuing", "unresponsive")


@pytest.mark.parametrize("status", ["queuing", "succeeded"])
async def test_waiting_and_finished_rollouts_are_left_alone(
    store: LightningStore, status: str
) -> None:
    rollout = await store.start_rollout("a")
    await store.update_rollout(rollout.rollout_id, status=status)  # type: ignore[arg-type] # both are statuses
    config = RolloutConfig(timeout_seconds=0.01)
    await store.update_rollout(rollout.rollout_id, config=config)
    await asyncio.sleep(0.03)
    assert await _look(store, rollout) == (status, "preparing")


async def test_only_the_latest_attempt_counts(store: LightningStore) -> None:
    config = RolloutConfig(unresponsive_seconds=60)
    rollout = await store.start_rollout("a", config=config)
    await store.start_attempt(rollout.rollout_id)
    await store.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, last_heartbeat_time=1.0
    )
    assert await _look(store, rollout) == ("preparing", "preparing")


async def test_the_watchdog_wakes_those_who_wait(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=0.05))
    waiting = asyncio.create_task(
        store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=300)
    )
    await asyncio.sleep(0.1)
    await store.query_workers()

    (found,) = await asyncio.wait_for(waiting, 60)
    assert found.status == "failed"
