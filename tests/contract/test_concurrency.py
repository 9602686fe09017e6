"""Many threads and event loops on one store, in this process and over HTTP.

Whatever the order of events, each rollout has one owner, numbers are given once, waiters are woken
by the last finish and not before, and nobody is stuck.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from conftest import FACTORIES, make_span
from crowd import crowd

from agl.store.base import LightningStore
from agl.store.collection_based import CollectionBasedLightningStore
from agl.store.mongo import MongoLightningStore
from agl.store.rest.client import LightningStoreClient
from agl.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig

R = TypeVar("R")

KINDS = ["memory-thread-safe", "threaded", "client-thread", "client-asyncio", "mongo"]


class Crowded:
    """The store under test, used from many event loops."""

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.remote = isinstance(store, LightningStoreClient)
        self.size = 2 if self.remote else 8

    def crowd(self, tasks: int, work: Callable[[int], Awaitable[R]]) -> list[R]:
        return crowd(4, tasks, work, self._leave)

    def run(self, work: Awaitable[R]) -> R:
        """One call from an event loop of its own."""

        async def alone() -> R:
            try:
                return await work
            finally:
                await self._leave()

        return asyncio.run(alone())

    async def _leave(self) -> None:
        if isinstance(self.store, LightningStoreClient):
            await (await self.store._transport.session()).close()  # that of this event loop
        if isinstance(self.store, MongoLightningStore):
            await self.store.leave_loop()


@pytest.fixture(params=KINDS)
def crowded(request: pytest.FixtureRequest) -> Iterator[Crowded]:
    """A store for several threads; they are switched far more often than usual."""
    loop = asyncio.new_event_loop()
    interval = sys.getswitchinterval()
    entered = FACTORIES[request.param](scan_debounce_seconds=0)
    store = loop.run_until_complete(entered.__aenter__())
    sys.setswitchinterval(1e-5)
    yield Crowded(store)
    sys.setswitchinterval(interval)
    loop.run_until_complete(entered.__aexit__(None, None, None))
    loop.close()


def test_each_rollout_has_one_owner(crowded: Crowded) -> None:
    store = crowded.store

    async def produce_and_claim(number: int) -> list[str]:
        wanted = [EnqueueRolloutRequest(input=(number, i)) for i in range(4)]
        if number % 2:
            await store.enqueue_many_rollouts(wanted)
        else:
            for one in wanted:
                await store.enqueue_rollout(one.input)
        claimed: list[str] = []
        for limit in (1, 2, 3):
            got = await store.dequeue_many_rollouts(limit=limit, worker_id=f"w-{number}")
            claimed += [one.rollout_id for one in got]
            assert all(one.attempt.worker_id == f"w-{number}" for one in got)
        return claimed

    claims = crowded.crowd(crowded.size, produce_and_claim)
    claimed = [rollout_id for one in claims for rollout_id in one]

    async def rest() -> tuple[list[str], dict[str, str]]:
        left = [one.rollout_id for one in await store.dequeue_many_rollouts(limit=9999)]
        everything = (await store.query_rollouts()).items
        return left, {one.rollout_id: one.status for one in everything}

    left, statuses = crowded.run(rest())
    assert Counter(claimed + left) == Counter(statuses.keys())
    assert set(statuses.values()) == {"preparing"}
    assert len(statuses) == 4 * len(claims)


def test_attempts_are_numbered_once(crowded: Crowded) -> None:
    store = crowded.store
    rollout = crowded.run(_started(store))

    async def start(number: int) -> AttemptedRollout:
        return await store.start_attempt(rollout.rollout_id, worker_id=f"w-{number}")

    started = crowded.crowd(crowded.size, start)
    numbers = sorted(one.attempt.sequence_id for one in started)
    assert numbers == list(range(2, len(started) + 2))
    assert len({one.attempt.attempt_id for one in started}) == len(started)


def test_span_numbers_are_given_once(crowded: Crowded) -> None:
    store = crowded.store

    async def number(n: int) -> list[int]:
        one = await store.get_next_span_sequence_id("ro-x", "at-x")
        many = await store.get_many_span_sequence_ids([("ro-x", "at-x"), ("ro-y", "at-y")])
        return [one, many[0]]

    given = sorted(number for pair in crowded.crowd(crowded.size, number) for number in pair)
    assert len(given) == len(set(given))
    if not isinstance(store, MongoLightningStore):  # who meets others there may skip a number
        assert given == list(range(1, len(given) + 1))


def test_a_span_sent_by_all_is_stored_once(crowded: Crowded) -> None:
    store = crowded.store
    rollout = crowded.run(_started(store))

    async def send(number: int) -> tuple[bool, int]:
        single = await store.add_span(make_span(rollout, 1))
        many = await store.add_many_spans([make_span(rollout, 2), make_span(rollout, 3)])
        return single is not None, len(many)

    results = crowded.crowd(crowded.size, send)
    assert sum(single for single, _ in results) == 1
    assert sum(many for _, many in results) == 2

    async def stored() -> list[str]:
        return [span.name for span in await store.query_spans(rollout.rollout_id)]

    assert crowded.run(stored()) == ["span-1", "span-2", "span-3"]


def test_waiters_are_woken_by_the_last_finish(crowded: Crowded) -> None:
    """Half of the crowd waits for all rollouts, the other half finishes one each."""
    store = crowded.store
    count = 2 * crowded.size
    ids = [crowded.run(_started(store)).rollout_id for _ in range(count)]
    finished: set[str] = set()

    async def take_part(number: int) -> None:
        if number < count:
            await asyncio.sleep(0.002 * number)
            finished.add(ids[number])
            await store.update_attempt(ids[number], "latest", status="succeeded")
            return
        found: list[str] = []
        while not found:  # a client is told now and then that it is not over
            answer = await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)
            if len(answer) == count:
                found = [one.rollout_id for one in answer]
                assert {one.status for one in answer} == {"succeeded"}
            assert {one.rollout_id for one in answer} <= finished
        assert found == ids

    crowded.crowd(crowded.size, take_part)


def test_a_watchdog_looked_by_all_at_once_acts_once(
    crowded: Crowded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = crowded.store
    config = RolloutConfig(timeout_seconds=60, max_attempts=9, retry_condition=["timeout"])
    ids = [crowded.run(_started(store, config)).rollout_id for _ in range(5)]
    later = time.time() + 100
    monkeypatch.setattr(CollectionBasedLightningStore, "_now", lambda self: later)

    async def look(number: int) -> str | None:
        if number % 2:
            await store.query_workers()
            return None
        claimed = await store.dequeue_rollout()
        return None if claimed is None else claimed.rollout_id

    claimed = [key for key in crowded.crowd(crowded.size, look) if key is not None]

    async def rest() -> tuple[list[str], list[int]]:
        left = [one.rollout_id for one in await store.dequeue_many_rollouts(limit=99)]
        return left, [len(await store.query_attempts(key)) for key in ids]

    left, attempts = crowded.run(rest())
    assert Counter(claimed + left) == Counter(ids)
    assert attempts == [2] * len(ids)


async def _started(store: LightningStore, config: RolloutConfig | None = None) -> AttemptedRollout:
    return await store.start_rollout("a", config=config)
