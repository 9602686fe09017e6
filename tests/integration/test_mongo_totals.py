"""Counters of processes that have ended are added to the base of the totals, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server

from agl.store.collection.mongo import totals
from agl.store.collection.mongo.totals import COUNTERS, FOLD_SECONDS, Reconciler
from agl.store.mongo import MongoLightningStore

__all__ = ["mongo_database", "mongo_server"]

Open = Callable[..., MongoLightningStore]


@pytest.fixture
async def opened(
    mongo_server: MongoServer, mongo_database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Open]:
    """Opens stores for which nobody else writes between the looks of a reconciliation."""
    monkeypatch.setattr(totals, "LOOK_SECONDS", 0.0)
    async with AsyncExitStack() as stack:

        def opened(partition_id: str = "pt-test") -> MongoLightningStore:
            store = MongoLightningStore(
                mongo_uri=mongo_server.uri,
                database_name=mongo_database,
                partition_id=partition_id,
                scan_debounce_seconds=1e9,
            )
            stack.push_async_callback(store.close)
            return store

        yield opened


async def _ended(store: MongoLightningStore, seconds: float) -> str:
    """Work of a process that has ended so many seconds ago; returns the id of its counters."""
    await store.start_rollout("a")
    slot = (await store.collections.lane()).totals._document_id("w")
    aged = await _counters(store).update_one(
        {"_id": slot}, {"$set": {"seen": time.time() - seconds}}
    )
    assert aged.modified_count == 1
    return slot


def _counters(store: MongoLightningStore) -> Any:
    return store.collections.pool.database(store.database_name)[COUNTERS]


def _reconciler(store: MongoLightningStore) -> Reconciler:
    return Reconciler(store.collections.pool.database(store.database_name), store.partition_id)


async def _totals(store: MongoLightningStore) -> dict[str, Any]:
    statistics: dict[str, Any] = dict(await store.statistics())
    return {name: n for name, n in statistics.items() if name.startswith("total_")}


async def test_processes_that_fold_at_once_count_everything_once(opened: Open) -> None:
    old = [await _ended(opened(), FOLD_SECONDS + 60) for _ in range(3)]
    young = await _ended(opened(), FOLD_SECONDS - 60)
    foreign = await _ended(opened("pt-other"), FOLD_SECONDS + 60)
    readers = [opened() for _ in range(3)]
    before = [await _totals(reader) for reader in readers]
    assert [one["total_rollouts"] for one in before] == [4, 4, 4]
    folded = await asyncio.gather(*(_reconciler(reader).fold() for reader in readers))
    assert sum(folded) == len(old)
    assert [await _totals(reader) for reader in readers] == before
    left = {one["_id"] for one in await _counters(readers[0]).find().to_list()}
    assert left >= {young, foreign}
    assert left & set(old) == set()
    base = await _counters(readers[0]).find_one({"_id": "pt-test/base"})
    assert (base["numbers"]["attempts"], base["serial"]) == (3, 3)
    assert await readers[0].reconcile() == {}


async def test_who_writes_again_meanwhile_is_not_folded(opened: Open) -> None:
    writer, reader = opened(), opened()
    slot = await _ended(writer, FOLD_SECONDS + 60)
    seen = await _counters(reader).find_one({"_id": slot})
    await writer.start_rollout("b")
    assert await _reconciler(reader)._fold_one(seen) == 0
    assert await _reconciler(reader).fold() == 0
    assert (await _totals(reader))["total_rollouts"] == 2
    assert await reader.reconcile() == {}


async def test_who_has_been_silent_goes_on_when_others_have_folded_it(opened: Open) -> None:
    silent, other = opened(), opened()
    await _ended(silent, FOLD_SECONDS + 60)
    (await silent.collections.lane()).totals._written -= FOLD_SECONDS + 60
    assert await _reconciler(other).fold() == 1
    assert (await _totals(silent))["total_rollouts"] == 1
    await silent.start_rollout("b")
    for store in (silent, other):
        assert (await _totals(store))["total_rollouts"] == 2
    assert await other.reconcile() == {}
