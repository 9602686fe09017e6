"""Waiting for rollouts to finish."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from agl.store.base import LightningStore

SOON = 30.0
"""Seconds in which a finish surely reaches those who wait for it; how fast it is, bench/ tells."""


async def test_finished_ones_come_at_once_in_the_order_asked(store: LightningStore) -> None:
    one = await store.start_rollout("a")
    two = await store.start_rollout("b")
    await store.update_rollout(one.rollout_id, status="cancelled")
    await store.update_attempt(two.rollout_id, "latest", status="succeeded")

    ids = [two.rollout_id, one.rollout_id, two.rollout_id]
    found = await store.wait_for_rollouts(rollout_ids=ids, timeout=300)

    assert [rollout.rollout_id for rollout in found] == ids
    assert [rollout.status for rollout in found] == ["succeeded", "cancelled", "succeeded"]


async def test_nothing_and_unknown_ids_are_not_waited_for(store: LightningStore) -> None:
    started = time.monotonic()
    assert await store.wait_for_rollouts(rollout_ids=[]) == []
    assert await store.wait_for_rollouts(rollout_ids=["ro-none"], timeout=300) == []
    done = await store.start_rollout("a")
    await store.update_rollout(done.rollout_id, status="failed")
    found = await store.wait_for_rollouts(rollout_ids=["ro-none", done.rollout_id], timeout=300)
    assert [rollout.rollout_id for rollout in found] == [done.rollout_id]
    assert time.monotonic() - started < 60


async def test_nobody_waits_until_nan(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    with pytest.raises(ValueError, match="timeout must"):
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=math.nan)


async def test_timeout_returns_those_that_finished(store: LightningStore) -> None:
    open_one = await store.start_rollout("a")
    done = await store.start_rollout("b")
    await store.update_rollout(done.rollout_id, status="failed")
    ids = [open_one.rollout_id, done.rollout_id]

    for timeout in (-1, 0, 0.05):
        found = await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)
        assert [rollout.rollout_id for rollout in found] == [done.rollout_id]


async def test_a_finish_wakes_all_who_wait(store: LightningStore) -> None:
    one = await store.start_rollout("a")
    two = await store.start_rollout("b")
    both = asyncio.create_task(
        store.wait_for_rollouts(rollout_ids=[one.rollout_id, two.rollout_id], timeout=300)
    )
    single = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[one.rollout_id], timeout=300))
    await asyncio.sleep(0.1)

    await store.update_attempt(one.rollout_id, "latest", status="succeeded")
    (found,) = await asyncio.wait_for(single, SOON)
    assert found.status == "succeeded"
    assert not both.done()

    await store.update_rollout(two.rollout_id, status="cancelled")
    assert len(await asyncio.wait_for(both, SOON)) == 2


async def test_a_reopened_rollout_is_waited_for_again(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")
    await store.start_attempt(rollout.rollout_id)
    assert await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0) == []

    waiting = asyncio.create_task(
        store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=300)
    )
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    (found,) = await asyncio.wait_for(waiting, SOON)
    assert found.status == "succeeded"


async def test_a_cancelled_wait_leaves_the_others_alone(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    ids = [rollout.rollout_id]
    leaves = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=300))
    stays = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=300))
    await asyncio.sleep(0.05)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)

    await store.update_rollout(rollout.rollout_id, status="failed")
    assert len(await asyncio.wait_for(stays, SOON)) == 1
