"""The figures of the state in MongoDB: one round trip, indexes, and the same from every process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from mongo_support import Commands, make_span
from pymongo import AsyncMongoClient
from state_recount import REWARD, recount

from agl.config import MongoSettings
from agl.store.collection.mongo.indexes import INDEXES, LEGACY, missing_indexes
from agl.store.collection.mongo.reconciling import FIRST_PAUSE_SECONDS, RECONCILE_SECONDS
from agl.store.collection.mongo.totals import COUNTERS, Reconciler
from agl.store.mongo import MongoLightningStore
from agl.store.mongo_admin import start
from agl.store.mongo_admin.servers import StoreServer
from agl.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig, RolloutMode

PARTITION = "pt-state"
RETRY = RolloutConfig(max_attempts=2, retry_condition=["failed"], timeout_seconds=3600.0)
AGES = {
    "oldest_queued_age_seconds",
    "oldest_running_age_seconds",
    "oldest_running_timeout_ratio",
    "worker_oldest_heartbeat_age_seconds",
}


@pytest.fixture
def commands() -> Commands:
    return Commands()


def new_store(server: MongoServer, database: str, *listeners: Any) -> MongoLightningStore:
    return MongoLightningStore(
        mongo_uri=server.uri,
        mongo_client_kwargs={"event_listeners": list(listeners)},
        database_name=database,
        partition_id=PARTITION,
        scan_debounce_seconds=1e9,
    )


@pytest.fixture
async def stores(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    commands: Commands,
) -> AsyncGenerator[tuple[MongoLightningStore, MongoLightningStore]]:
    """Two server processes as the database sees them."""
    async with (
        new_store(mongo_server, mongo_database, commands) as first,
        new_store(mongo_server, mongo_database) as second,
    ):
        yield first, second


async def work(store: MongoLightningStore, worker: str, mode: RolloutMode) -> None:
    """One of each fate: with reward, with spans alone, with nothing, given up, tried again."""
    for fate in range(5):
        claimed = await store.dequeue_rollout(worker_id=worker)
        if claimed is None:
            return
        if fate < 2:
            attributes = {REWARD: 1.0} if fate == 0 else {}
            await store.add_span(make_span(claimed, 1))
            await store.add_span(make_span(claimed, 2, attributes=attributes))
        end = ("succeeded", "succeeded", "succeeded", "cancelled", "failed")[fate]
        if end == "cancelled":
            await store.update_rollout(claimed.rollout_id, status="cancelled", mode=mode)
        else:
            await store.update_attempt(claimed.rollout_id, "latest", status=end)
        if fate == 2:
            await store.add_span(make_span(claimed, 3))  # late, and still counted
        if fate == 4:
            await store.start_attempt(claimed.rollout_id, worker)
    await store.update_worker(worker, {"cpu": 1})


async def fill(stores: tuple[MongoLightningStore, ...]) -> None:
    requests = [
        EnqueueRolloutRequest(input=n, mode=("train", "val", None)[n % 3], config=RETRY)
        for n in range(40)
    ]
    await stores[0].enqueue_many_rollouts(requests)
    await asyncio.gather(
        *(work(store, f"w-{i}-{n}", "test") for i, store in enumerate(stores) for n in range(3))
    )


async def counted_anew(store: MongoLightningStore) -> dict[str, Any]:
    c = store.collections
    content = {
        name: [item.model_dump() for item in (await getattr(c, name).query()).items]
        for name in ("rollouts", "attempts", "spans", "workers")
    }
    figures = recount(content, {}, store._now())
    return {name: value for name, value in figures.items() if name not in AGES}


async def told(store: MongoLightningStore) -> dict[str, Any]:
    state = (await store.state()).model_dump(exclude_none=True)
    return {name: value for name, value in state.items() if name not in AGES | {"name"}}


async def until_written(stores: tuple[MongoLightningStore, ...]) -> None:
    """Until no process has corrections of its counters left to send."""
    for store in stores:
        lane = await store.collections.lane()
        lane.totals.flush_last()
        while lane._background:
            await asyncio.wait(lane._background)


async def test_every_process_tells_what_a_recount_gives(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    await fill(stores)
    await until_written(stores)
    expected = await counted_anew(stores[0])
    assert expected["retries"] > 0
    assert sum(expected["finished_without_reward"].values()) > sum(
        expected["finished_without_spans"].values()
    )
    for store in stores:
        assert await told(store) == expected
    assert await stores[0].reconcile() == {}
    for store in stores:
        await store.close()
    async with new_store(mongo_server, mongo_database) as after_a_restart:
        assert await told(after_a_restart) == expected


async def test_ages_are_those_of_the_whole_store(
    stores: tuple[MongoLightningStore, MongoLightningStore],
) -> None:
    first, second = stores
    config = RolloutConfig(timeout_seconds=1000.0)
    await first.start_rollout(1, config=config, worker_id="w")
    await first.enqueue_rollout(2)
    await first.update_worker("w")
    later = first._now() + 1000.0
    second._now = lambda: later  # type: ignore[method-assign]  # by its clock time has passed
    state = await second.state()
    assert 995.0 < state.oldest_queued_age_seconds < 1100.0
    assert 995.0 < state.oldest_running_age_seconds < 1100.0
    assert state.oldest_running_timeout_ratio == state.oldest_running_age_seconds / 1000
    assert (state.queue_depth, state.running_attempts, state.silent_workers) == (1, 1, 1)
    assert 995.0 < state.worker_oldest_heartbeat_age_seconds["busy"] < 1100.0
    later += 86_400.0
    assert (await second.state()).silent_workers == 0
    assert (await second.state()).workers == {"idle": 0, "busy": 1, "unknown": 0}
    await first.dequeue_many_rollouts(limit=5)
    for rollout in (await first.query_rollouts()).items:
        await first.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    state = await second.state()
    assert state.oldest_queued_age_seconds == 0
    assert state.oldest_running_age_seconds == state.oldest_running_timeout_ratio == 0


async def test_one_round_trip_and_no_search(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    commands: Commands,
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    await fill(stores)
    with commands.counted() as sent:
        await stores[0].state()
    assert sent == ["aggregate"]
    asked = commands.sent[-1]
    assert asked["aggregate"] == COUNTERS
    database = stores[0].collections.pool.database(mongo_database)
    unions = [stage["$unionWith"] for stage in asked["pipeline"] if "$unionWith" in stage]
    assert [union["coll"] for union in unions] == ["rollouts", "rollouts", "rollouts", "workers"]
    for union in unions:
        question = {"aggregate": union["coll"], "pipeline": union["pipeline"], "cursor": {}}
        plan = await database.command({"explain": question, "verbosity": "queryPlanner"})
        assert "COLLSCAN" not in str(plan), union
        assert "IXSCAN" in str(plan), union


async def test_data_of_earlier_versions_is_counted_once_and_lacks_nothing(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    """They counted by status alone, and did not note who had spans."""
    await fill(stores)
    running = await stores[0].start_rollout(1, config=RETRY)
    assert isinstance(running, AttemptedRollout)
    for store in stores:
        await store.close()
    async with new_store(mongo_server, mongo_database) as admin:
        database = admin.collections.pool.database(mongo_database)
        rollouts = await database["rollouts"].find({"partition_id": PARTITION}).to_list()
        numbers: dict[str, int] = {"attempts": sum(len(r["attempts"]) for r in rollouts)}
        for rollout in rollouts:
            name = f"rollouts:{rollout['status']}"
            numbers[name] = numbers.get(name, 0) + 1
        numbers["spans"] = await database["spans"].count_documents({})
        await database[COUNTERS].delete_many({})
        base = {"_id": f"{PARTITION}/base", "partition_id": PARTITION, "numbers": numbers}
        await database[COUNTERS].insert_one({**base, "serial": 0, "seen": 0.0})
        gone = {"lacks_spans": 1, "lacks_reward": 1, "running_since": 1}
        await database["rollouts"].update_many({}, {"$unset": gone})
    async with new_store(mongo_server, mongo_database) as store:
        expected = await counted_anew(store)
        for name in ("finished_without_spans", "finished_without_reward"):
            expected[name] = dict.fromkeys(expected[name], 0)
        assert await told(store) == expected
        assert (await store.state()).oldest_running_age_seconds == 0
        await store.watchdog._sweep(64)  # notes when they began
        assert (await store.state()).oldest_running_age_seconds > 0
        await store.update_attempt(running.rollout_id, "latest", status="succeeded")
        assert await told(store) == {**await counted_anew(store), **_nothing_lacks(expected)}
        assert await store.reconcile() == {}


def _nothing_lacks(expected: dict[str, Any]) -> dict[str, Any]:
    names = ("finished_without_spans", "finished_without_reward")
    return {name: expected[name] for name in names}


async def test_of_all_processes_one_looks_after_the_totals_in_an_hour(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    await stores[0].start_rollout(1)
    counters = stores[1].collections.pool.database(mongo_database)[COUNTERS]

    async def look(store: MongoLightningStore) -> int:
        """The attempts that are counted afterwards; there are 5 too many before."""
        await counters.update_one({"_id": f"{PARTITION}/base"}, {"$inc": {"numbers.attempts": 5}})
        store._reconciling._next = 0.0
        await store.watchdog._sweep(64)
        await store.collections.lane_now().close()  # waits for what runs beside calls
        return (await store.statistics())["total_attempts"]

    assert await look(stores[0]) == 1
    assert await look(stores[1]) == 6
    long_ago = {"$inc": {"reconciled": -RECONCILE_SECONDS}}
    await counters.update_one({"_id": f"{PARTITION}/base"}, long_ago)
    assert await look(stores[1]) == 1
    stores[0].reconcile_soon()
    assert await look(stores[0]) == 1
    began = time.time()
    reconcilers = [Reconciler(counters.database, PARTITION) for _ in range(5)]
    turns = await asyncio.gather(*(one.take_turn(began) for one in reconcilers))
    assert sum(turns) == 1


async def test_whoever_is_disturbed_while_reconciling_tries_again_soon(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    mongo_database: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, other = stores
    await store.start_rollout(1)
    counters = store.collections.pool.database(mongo_database)[COUNTERS]
    await counters.update_one({"_id": f"{PARTITION}/base"}, {"$inc": {"numbers.attempts": 5}})
    look = Reconciler._look

    async def disturbed(self: Reconciler) -> Any:
        found = await look(self)
        await other.start_rollout(2)
        return found

    store._reconciling._next = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(Reconciler, "_look", disturbed)
        await store.watchdog._sweep(64)
        await store.collections.lane_now().close()
    assert (await store.statistics())["total_attempts"] == 3 + 5
    pause = store._reconciling._next - time.monotonic()
    assert FIRST_PAUSE_SECONDS / 2 < pause <= RECONCILE_SECONDS / 2
    assert await Reconciler(counters.database, PARTITION).take_turn(0.0)  # it has been given back
    assert await store.reconcile() == {"attempts": -5}


async def test_a_reconciliation_that_fails_is_tried_again_soon(
    stores: tuple[MongoLightningStore, MongoLightningStore],
    mongo_database: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = stores
    await store.start_rollout(1)
    counters = store.collections.pool.database(mongo_database)[COUNTERS]
    await counters.update_one({"_id": f"{PARTITION}/base"}, {"$inc": {"numbers.attempts": 5}})

    async def look() -> float:
        store._reconciling._next = 0.0
        await store.watchdog._sweep(64)
        await store.collections.lane_now().close()
        return store._reconciling._next - time.monotonic()

    async def fails(_: Reconciler) -> Any:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Reconciler, "_look", fails)
        assert FIRST_PAUSE_SECONDS / 2 < await look() < RECONCILE_SECONDS / 2
    assert (await store.statistics())["total_attempts"] == 1 + 5
    assert await look() > RECONCILE_SECONDS / 2
    assert (await store.statistics())["total_attempts"] == 1


async def test_indexes_and_totals_are_there_before_a_store_serves(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    settings = MongoSettings(mongo_server.uri, database=mongo_database, partition_id=PARTITION)
    async with AsyncMongoClient[dict[str, Any]](mongo_server.uri) as client:
        database = client[mongo_database]
        left_by_0_3 = {"partition_id": PARTITION, "rollout_id": "ro-1", "status": "queuing"}
        await database["rollouts"].insert_one({**left_by_0_3, "mode": "train"})
        await start.prepare(settings, StoreServer(PARTITION, 4747), exclusive=True)
        for name in ("rollouts", "spans", "workers", "span_sequence_ids"):
            assert await missing_indexes(database[name], INDEXES[name]) == []
        assert set(await database.list_collection_names()).isdisjoint(LEGACY)
        base = await database[COUNTERS].find_one({"_id": f"{PARTITION}/base"})
        assert base is not None
        assert base["numbers"] == {"rollouts:queuing:train": 1}
