"""A request that is sent again reaches another server process: nothing is created twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from mongo import MongoServer, mongo_database, mongo_server
from mongo_support import make_span

from agl.store import _plan
from agl.store import mongo as mongo_module
from agl.store.collection.mongo import claims
from agl.store.collection.mongo.claims import Dequeue
from agl.store.mongo import MongoLightningStore
from agl.types import EnqueueRolloutRequest
from agl.utils.request_ids import RequestIds, ids_of_request

__all__ = ["mongo_database", "mongo_server"]

T = TypeVar("T")
Stores = tuple[MongoLightningStore, MongoLightningStore]


@pytest.fixture
async def stores(mongo_server: MongoServer, mongo_database: str) -> AsyncGenerator[Stores]:
    """Two that know nothing of each other, as in two processes."""
    where: dict[str, Any] = {
        "mongo_uri": mongo_server.uri,
        "database_name": mongo_database,
        "partition_id": "p",
    }
    async with MongoLightningStore(**where) as one, MongoLightningStore(**where) as two:
        yield one, two


async def sent(key: str, call: Callable[[], Awaitable[T]], *, again: bool = False) -> T:
    with ids_of_request(RequestIds(key, sent_again=again)):
        return await call()


def dequeue(store: MongoLightningStore, limit: int) -> Callable[[], Awaitable[Any]]:
    return lambda: store.dequeue_many_rollouts(limit=limit, worker_id="w")


async def totals(store: MongoLightningStore) -> dict[str, int]:
    statistics: dict[str, Any] = dict(await store.statistics())
    return {name: n for name, n in statistics.items() if name.startswith("total_")}


async def until_total(store: MongoLightningStore, name: str, expected: int) -> None:
    """A correction of the totals rides with the next writes, or is sent a moment later."""
    async with asyncio.timeout(60):
        while (await totals(store))[name] != expected:  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.05)


async def test_one_rollout_is_enqueued_once(stores: Stores) -> None:
    one, two = stores
    first = await sent("k", lambda: one.enqueue_rollout(1))
    second = await sent("k", lambda: two.enqueue_rollout(1), again=True)
    other = await sent("l", lambda: two.enqueue_rollout(1))
    assert first.rollout_id == second.rollout_id != other.rollout_id
    for store in stores:
        await until_total(store, "total_rollouts", 2)
        assert len(await store.query_rollouts()) == 2


async def test_many_rollouts_are_enqueued_once(stores: Stores) -> None:
    one, two = stores
    wanted = [EnqueueRolloutRequest(input=n) for n in range(5)]
    first = await sent("k", lambda: one.enqueue_many_rollouts(wanted))
    claimed = await one.dequeue_rollout()
    assert claimed is not None
    second = await sent("k", lambda: two.enqueue_many_rollouts(wanted), again=True)
    assert [r.rollout_id for r in first] == [r.rollout_id for r in second]
    assert len({r.rollout_id for r in first}) == 5
    assert (await totals(two))["total_rollouts"] == 5
    stored = await two.get_rollout_by_id(claimed.rollout_id)
    assert stored is not None
    assert stored.status == "preparing", "what has happened since stays"


async def test_a_rollout_is_started_once(stores: Stores) -> None:
    one, two = stores
    first = await sent("k", lambda: one.start_rollout(1, worker_id="w"))
    second = await sent("k", lambda: two.start_rollout(1, worker_id="w"), again=True)
    assert first.rollout_id == second.rollout_id
    assert first.attempt.attempt_id == second.attempt.attempt_id
    assert len(await two.query_attempts(first.rollout_id)) == 1
    for store in stores:
        await until_total(store, "total_attempts", 1)


async def test_an_attempt_is_started_once(stores: Stores) -> None:
    one, two = stores
    rollout = await one.start_rollout(1)
    first = await sent("k", lambda: one.start_attempt(rollout.rollout_id))
    second = await sent("k", lambda: two.start_attempt(rollout.rollout_id), again=True)
    third = await sent("l", lambda: two.start_attempt(rollout.rollout_id))
    assert first.attempt == second.attempt
    assert third.attempt.sequence_id == 3
    assert len(await two.query_attempts(rollout.rollout_id)) == 3


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_claim_is_handed_out_again(stores: Stores, limit: int) -> None:
    one, two = stores
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(7)])
    first = await sent("k", dequeue(one, limit))
    second = await sent("k", dequeue(two, limit), again=True)
    third = await sent("l", dequeue(two, limit), again=True)
    assert [(r.rollout_id, r.attempt.attempt_id) for r in first] == [
        (r.rollout_id, r.attempt.attempt_id) for r in second
    ]
    assert [r.input for r in first] == list(range(limit))
    assert [r.input for r in third] == list(range(limit, 2 * limit))
    assert (await totals(two))["total_attempts"] == 2 * limit


async def test_claims_of_others_are_not_handed_out(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where their attempts have ids that this request might have drawn."""
    for module in (_plan, mongo_module):
        monkeypatch.setattr(module, "ATTEMPT_DIGITS", 1)
    monkeypatch.setattr(claims, "LOOKS_SECONDS", (0.1, 0.1))
    one, two = stores
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(12)])
    theirs = await sent("l", dequeue(one, 6))
    ours = await sent("k", dequeue(two, 6), again=True)
    assert [r.input for r in (*theirs, *ours)] == list(range(12))
    await two.close()  # looks for lost claims a last time
    for rollout in theirs:
        stored = await one.get_rollout_by_id(rollout.rollout_id)
        assert stored is not None
        assert stored.status == "preparing"


async def test_resources_are_added_once(stores: Stores) -> None:
    one, two = stores
    first = await sent("k", lambda: one.add_resources({}))
    second = await sent("k", lambda: two.add_resources({}), again=True)
    assert first.resources_id == second.resources_id
    assert (await totals(two))["total_resources"] == 1
    assert (first.version, second) == (1, first)


async def test_resources_are_updated_once(stores: Stores) -> None:
    one, two = stores
    await one.update_resources("rs", {})
    first = await sent("k", lambda: one.update_resources("rs", {}))
    second = await sent("k", lambda: two.update_resources("rs", {}), again=True)
    assert (first.version, second) == (2, first)
    assert (await sent("l", lambda: two.update_resources("rs", {}), again=True)).version == 3


async def test_claims_that_nobody_was_told_of_go_back(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again while it still claims, here by asking for less: what comes later is not lost."""
    monkeypatch.setattr(claims, "LOOKS_SECONDS", (0.5, 0.5))
    one, two = stores
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(6)])
    first = await sent("k", dequeue(one, 6))
    busy = first[5]  # somebody knows of it after all
    await one.add_span(make_span(busy, 1))
    told = await sent("k", dequeue(two, 2), again=True)
    assert [r.attempt.attempt_id for r in told] == [r.attempt.attempt_id for r in first[:2]]

    back: list[Any] = []
    async with asyncio.timeout(60):
        while len(back) < 3:
            back += await one.dequeue_many_rollouts(limit=9, worker_id="v")
            await asyncio.sleep(0.05)
    assert {r.rollout_id for r in back} == {r.rollout_id for r in first[2:5]}
    assert [r.attempt.sequence_id for r in back] == [2, 2, 2]
    await two.close()  # looks a last time
    for rollout in (*told, busy):
        stored = await one.get_rollout_by_id(rollout.rollout_id)
        assert stored is not None
        assert stored.status == ("running" if rollout is busy else "preparing")
    assert (await totals(one))["total_attempts"] == 9
    assert await one.reconcile() == {}


async def test_what_a_repeated_dequeue_claims_anew_stays(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes until they are marked as told."""
    monkeypatch.setattr(claims, "LOOKS_SECONDS", (0.01, 0.01))
    one, _ = stores
    claim = one._claim_some

    async def slowly(limit: int, worker_id: str | None) -> list[Any]:
        claimed = await claim(limit, worker_id)
        await asyncio.sleep(0.5)
        return claimed

    monkeypatch.setattr(one, "_claim_some", slowly)
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(3)])
    ours = await sent("k", dequeue(one, 3), again=True)
    assert [r.input for r in ours] == [0, 1, 2]
    await one.close()  # looks a last time
    assert {r.status for r in await stores[1].query_rollouts()} == {"preparing"}


async def test_a_store_that_closes_looks_for_lost_claims_first(stores: Stores) -> None:
    one, two = stores
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(3)])
    first = await sent("k", dequeue(one, 3))
    told = await sent("k", dequeue(two, 1), again=True)
    await two.close()
    statuses = [r.status for r in await one.query_rollouts()]
    assert sorted(statuses) == ["preparing", "requeuing", "requeuing"]
    again = await sent("k", dequeue(one, 3), again=True)
    assert [r.rollout_id for r in again] == [r.rollout_id for r in told] == [first[0].rollout_id]


async def test_what_is_told_while_it_is_looked_for_stays(stores: Stores) -> None:
    """The one that writes first decides; a claim is never told and given back."""
    one, two = stores
    await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(40)])
    first = await sent("k", dequeue(one, 40))
    asked = Dequeue(RequestIds("k").mark, {r.attempt.attempt_id for r in first})
    looking, told = await asyncio.gather(
        one._repeated_claims()._look(asked), two._repeated_claims().told(asked, 40)
    )
    assert looking is None
    kept = {rollout.rollout_id for rollout, _ in told}
    for rollout in await one.query_rollouts():
        assert rollout.status == ("preparing" if rollout.rollout_id in kept else "requeuing")
