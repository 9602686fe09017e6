"""What is written once although it was asked for twice, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from mongo_proxy import mongo_proxy
from mongo_support import Commands, make_span

from agl.store.collection.mongo.lane import ConflictError
from agl.store.collection.writes import WriteBatch
from agl.store.mongo import MongoLightningStore
from agl.types import AttemptedRollout
from agl.utils.ownership import replace

Open = Callable[..., MongoLightningStore]


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def make(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    stack: AsyncExitStack,
) -> Open:
    def make(uri: str = "", **options: Any) -> MongoLightningStore:
        store = MongoLightningStore(
            mongo_uri=uri or mongo_server.uri,
            database_name=mongo_database,
            partition_id="pt-test",
            **{"scan_debounce_seconds": 1e9, "heartbeat_seconds": 60.0, **options},
        )
        stack.push_async_callback(store.close)
        return store

    return make


def _rollout_updates(commands: Commands) -> int:
    """How many updates of rollout documents were sent."""
    return sum(
        "update" in one and command["nsInfo"][one["update"]]["ns"].endswith(".rollouts")
        for command in commands.sent
        if "bulkWrite" in command
        for one in command["ops"]
    )


async def _waiting_heartbeat(
    store: MongoLightningStore, other: MongoLightningStore
) -> tuple[AttemptedRollout, float]:
    """A rollout whose last heartbeat waits to be written, and the one that is stored."""
    rollout = await store.start_rollout(1)
    await store.add_span(make_span(rollout, 1))
    await store.add_span(make_span(rollout, 2))
    stored = await other.get_latest_attempt(rollout.rollout_id)
    assert stored is not None
    assert stored.last_heartbeat_time is not None
    return rollout, stored.last_heartbeat_time


async def _is_later(store: MongoLightningStore, rollout_id: str, than: float, status: str) -> bool:
    attempt = await store.get_latest_attempt(rollout_id)
    assert attempt is not None
    assert attempt.status == status
    return (attempt.last_heartbeat_time or 0.0) > than


async def test_a_heartbeat_that_waits_rides_with_the_next_decision(make: Open) -> None:
    commands = Commands()
    store, other = make(mongo_client_kwargs={"event_listeners": [commands]}), make()
    rollout, stored = await _waiting_heartbeat(store, other)
    commands.sent.clear()
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert await _is_later(other, rollout.rollout_id, stored, "succeeded")
    await store.leave_loop()
    assert _rollout_updates(commands) == 1


async def test_a_heartbeat_of_the_caller_counts_more_than_one_that_waits(make: Open) -> None:
    store, other = make(), make()
    rollout, _ = await _waiting_heartbeat(store, other)
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=1.0)
    await store.leave_loop()
    attempt = await other.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.last_heartbeat_time == 1.0


async def test_a_decision_that_was_beaten_gives_the_heartbeat_back(make: Open) -> None:
    store, other = make(), make()
    rollout, stored = await _waiting_heartbeat(store, other)
    section = store.collections.section()
    read = await section.rollouts.find(rollout.rollout_id)
    assert read is not None
    await other.update_rollout(rollout.rollout_id, metadata={"faster": True})
    batch = WriteBatch()
    batch.change_rollout(replace(read, mode="val"), ("mode",))
    with pytest.raises(ConflictError):
        await section.write(batch)
    assert not await _is_later(other, rollout.rollout_id, stored, "running")
    await store.leave_loop()
    assert await _is_later(other, rollout.rollout_id, stored, "running")


@pytest.mark.parametrize("status", ["succeeded", "failed"])
async def test_a_heartbeat_of_an_attempt_that_another_process_ended(
    make: Open, status: Any
) -> None:
    """It means nothing for the status, so nobody has to look."""
    commands = Commands()
    store, other = make(mongo_client_kwargs={"event_listeners": [commands]}), make()
    rollout, stored = await _waiting_heartbeat(store, other)
    await other.update_attempt(rollout.rollout_id, "latest", status=status)
    commands.sent.clear()
    await store.leave_loop()
    assert "find" not in commands.names
    assert await _is_later(other, rollout.rollout_id, stored, status)


@pytest.mark.parametrize("before", [True, False])
async def test_many_spans_whose_answer_is_lost_are_stored_once(
    make: Open,
    mongo_server: MongoServer,  # noqa: F811
    before: bool,
) -> None:
    async with mongo_proxy(mongo_server.uri) as proxy:
        store = make(proxy.uri)
        rollout = await store.start_rollout(1)
        proxy.lose("insert", times=3, before=before)
        spans = [make_span(rollout, number) for number in range(1, 31)]
        assert len(await store.add_many_spans([*spans, spans[0]])) == 30
        assert proxy.lost == 3
        assert (await store.query_spans(rollout.rollout_id)).total == 30
        assert (await store.statistics())["total_spans"] == 30
        assert await store.get_next_span_sequence_id(rollout.rollout_id, "latest") == 31


async def test_documents_are_read_by_their_own_key(make: Open) -> None:
    """Those that this process has met; others by the id of the rollout, together in one read."""
    commands = Commands()
    store, other = make(mongo_client_kwargs={"event_listeners": [commands]}), make()
    known = [await store.start_rollout(n) for n in range(3)]
    unknown = [await other.start_rollout(n) for n in range(2)]
    ids = [rollout.rollout_id for rollout in (*known, *unknown)]
    for met in (3, 5):
        commands.sent.clear()
        found = await store.query_rollouts(rollout_id_in=ids)
        assert {rollout.rollout_id for rollout in found.items} == set(ids)
        loaded = await (await store.collections.lane()).loader.load_many([*ids, "ro-nobody"])
        assert set(loaded) == set(ids)
        either = commands.sent[-1]["filter"]["$or"]
        assert len(either[0]["_id"]["$in"]) == met
        assert len(either) == 1 + (5 - met) + 1
