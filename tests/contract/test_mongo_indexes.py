"""Indexes: made once by whoever comes first, and used by every query of the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from pymongo import AsyncMongoClient, monitoring
from pymongo.errors import DuplicateKeyError

from agl.store.collection.mongo import (
    MongoBasedCollection,
    MongoBasedKeyValue,
    MongoBasedQueue,
    MongoClientPool,
)
from agl.store.collection.mongo.indexes import INDEXES, OBSOLETE, ensure_collection, indexes_for
from agl.types import OtelResource, ResourcesUpdate, Rollout, Span, TraceStatus, Worker

Command = Mapping[str, Any]
READS = ("find", "aggregate", "findAndModify", "delete", "count")


class Recorded(monitoring.CommandListener):
    """The reads that were sent, and the reading part of writes."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name in READS:
            command = dict(event.command)
            for name in ("lsid", "$clusterTime", "$db", "txnNumber", "$readPreference"):
                command.pop(name, None)
            self.commands.append(command)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...
    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def pool(
    mongo_server: MongoServer,  # noqa: F811
    recorded: Recorded,
) -> AsyncGenerator[MongoClientPool]:
    kwargs = {"event_listeners": [recorded]}
    async with MongoClientPool(mongo_uri=mongo_server.uri, mongo_client_kwargs=kwargs) as pool:
        yield pool


def stages(plan: Any) -> Iterator[str]:
    """The names of all stages anywhere below a winning plan."""
    if isinstance(plan, Mapping):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for name, part in plan.items():
            if name != "rejectedPlans":
                yield from stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from stages(part)


def winning_plans(explained: Any) -> Iterator[Any]:
    if isinstance(explained, Mapping):
        for name, part in explained.items():
            if name == "winningPlan":
                yield part
            else:
                yield from winning_plans(part)
    elif isinstance(explained, list):
        for part in explained:
            yield from winning_plans(part)


STATUSES = ("queuing", "running", "succeeded", "failed")
ROLLOUTS = [
    Rollout(
        rollout_id=f"ro-{number}",
        input=number,
        start_time=float(number // 2),
        end_time=None if number % 4 < 2 else float(number),
        status=STATUSES[number % 4],  # type: ignore[arg-type]
    )
    for number in range(60)
]
WORKERS = [Worker(worker_id=f"w-{number}", status="idle") for number in range(20)]
RESOURCES = [
    ResourcesUpdate(resources_id=f"rs-{n}", create_time=n, update_time=n, version=1, resources={})
    for n in range(20)
]
SPANS = [
    Span(
        rollout_id=f"ro-{number % 3}",
        attempt_id=f"at-{number % 6}",
        sequence_id=number,
        trace_id="0" * 32,
        span_id=f"{number:016x}",
        parent_id=None,
        name=f"name-{number % 2}",
        status=TraceStatus(status_code="OK"),
        attributes={},
        events=[],
        links=[],
        start_time=1.0,
        end_time=None,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )
    for number in range(60)
]

BY_START = {"name": "start_time", "order": "asc"}
LATEST_START = {"name": "start_time", "order": "desc"}
BY_SEQUENCE = {"name": "sequence_id", "order": "asc"}
OF_ROLLOUT = {"rollout_id": {"exact": "ro-1"}}
OF_ATTEMPT = {**OF_ROLLOUT, "attempt_id": {"exact": "at-1"}}

QUESTIONS: list[tuple[str, Any, Any]] = [
    ("rollouts", None, None),
    ("rollouts", {"status": {"within": ["queuing"]}}, None),
    ("rollouts", {"status": {"within": ["queuing", "failed"]}}, None),
    ("rollouts", {"rollout_id": {"within": ["ro-1", "ro-2"]}}, None),
    ("rollouts", {"rollout_id": {"contains": "-1"}}, None),
    (
        "rollouts",
        {
            "_aggregate": "or",
            "status": {"within": ["failed"]},
            "rollout_id": {"within": ["ro-1"], "contains": "-2"},
        },
        None,
    ),
    ("rollouts", None, BY_START),
    ("rollouts", None, LATEST_START),
    ("rollouts", OF_ROLLOUT, None),
    ("spans", {"_must": OF_ROLLOUT}, BY_SEQUENCE),
    ("spans", {"_must": OF_ATTEMPT}, BY_SEQUENCE),
    ("spans", {"_must": OF_ATTEMPT, "name": {"contains": "1"}}, BY_SEQUENCE),
    (
        "spans",
        {
            "_must": OF_ROLLOUT,
            "_aggregate": "or",
            "name": {"exact": "x"},
            "trace_id": {"exact": "y"},
        },
        BY_SEQUENCE,
    ),
    ("spans", {**OF_ATTEMPT, "span_id": {"exact": "0" * 16}}, None),
    ("resources", None, None),
    ("resources", {"resources_id": {"exact": "rs-1"}}, None),
    ("resources", {"resources_id": {"contains": "1"}}, None),
    ("resources", None, {"name": "update_time", "order": "desc"}),
    ("workers", None, None),
    ("workers", {"status": {"within": ["idle", "busy"]}}, None),
    ("workers", {"worker_id": {"contains": "1"}}, None),
    ("workers", {"worker_id": {"exact": "w-1"}}, None),
]

FREELY_SORTED: list[tuple[str, Any, Any]] = [
    ("rollouts", {"status": {"within": ["failed"]}}, LATEST_START),
    ("rollouts", {"status": {"within": ["failed", "queuing"]}}, BY_START),
    ("rollouts", None, {"name": "end_time", "order": "desc"}),
    ("rollouts", None, {"name": "mode", "order": "asc"}),
    ("spans", {"_must": OF_ATTEMPT}, {"name": "start_time", "order": "desc"}),
    ("workers", None, {"name": "last_busy_time", "order": "asc"}),
]
"""Orders that a client may ask for and no index serves: every one would cost all writes."""


class Stored:
    """Collections with something in them."""

    def __init__(self, pool: MongoClientPool, database: str) -> None:
        def collection(name: str, keys: Sequence[str], kind: Any) -> MongoBasedCollection[Any]:
            return MongoBasedCollection(pool, database, name, "p", keys, kind)

        self.rollouts = collection("rollouts", ["rollout_id"], Rollout)
        self.spans = collection("spans", ["rollout_id", "attempt_id", "span_id"], Span)
        self.resources = collection("resources", ["resources_id"], ResourcesUpdate)
        self.workers = collection("workers", ["worker_id"], Worker)
        self.queue = MongoBasedQueue(pool, database, "rollout_queue", "p", str)
        self.counters = MongoBasedKeyValue(pool, database, "span_sequence_ids", "p", str, int)

    async def fill(self) -> None:
        await self.rollouts.insert(ROLLOUTS)
        await self.spans.insert(SPANS)
        await self.resources.insert(RESOURCES)
        await self.workers.insert(WORKERS)
        await self.queue.enqueue([rollout.rollout_id for rollout in ROLLOUTS])
        await self.counters.inc_many({f"ro-{number}": number for number in range(20)})


@pytest.fixture
async def stored(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    pool: MongoClientPool,
) -> Stored:
    if mongo_server.is_slow:
        pytest.skip("the Python stand-in sorts everything; explained on the Rust one and mongod")
    stored = Stored(pool, mongo_database)
    await stored.fill()
    return stored


async def check_plans(
    pool: MongoClientPool,
    database: str,
    commands: list[Command],
    refused: frozenset[str] = frozenset(("COLLSCAN", "SORT")),
) -> None:
    assert commands
    for command in commands:
        what = {"explain": command, "verbosity": "queryPlanner"}
        explained = await pool.database(database).command(what)
        plans = list(winning_plans(explained))
        found = {stage for plan in plans for stage in stages(plan)}
        assert plans
        assert found, explained
        assert not found & refused, (command, plans)


async def test_no_question_scans_a_collection_or_sorts_on_the_server(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
    recorded: Recorded,
    stored: Stored,
) -> None:
    for name, filter, sort in QUESTIONS:
        collection: MongoBasedCollection[Any] = getattr(stored, name)
        recorded.commands.clear()
        for window in ((5, 0), (5, 3), (-1, 0), (0, 0)):
            await collection.query(filter, sort, *window)
        await collection.get(filter, sort)
        await check_plans(pool, mongo_database, list(recorded.commands))


async def test_orders_without_an_index_stay_within_what_an_index_finds(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
    recorded: Recorded,
    stored: Stored,
) -> None:
    for name, filter, sort in FREELY_SORTED:
        collection: MongoBasedCollection[Any] = getattr(stored, name)
        recorded.commands.clear()
        await collection.query(filter, sort, 5, 3)
        commands = list(recorded.commands)
        await check_plans(pool, mongo_database, commands, frozenset(("COLLSCAN",)))


async def test_neither_do_queues_and_mappings(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
    recorded: Recorded,
    stored: Stored,
) -> None:
    recorded.commands.clear()
    await stored.queue.has("ro-1")
    await stored.queue.peek(3)
    await stored.queue.dequeue()
    await stored.queue.dequeue(3)
    await stored.queue.size()
    await stored.counters.get("ro-1")
    await stored.counters.inc("ro-1", 1)
    await stored.counters.pop("ro-1")
    await stored.counters.size()
    await check_plans(pool, mongo_database, list(recorded.commands))


async def test_pages_take_few_round_trips(
    recorded: Recorded,
    stored: Stored,
) -> None:
    by_end: Any = {"name": "end_time", "order": "desc"}
    for sort, window, trips in (
        (None, (5, 0), 2),
        (None, (-1, 0), 1),
        (None, (90, 0), 1),
        (LATEST_START, (5, 5), 2),
        (by_end, (5, 0), 2),
        (by_end, (5, 10), 2),
        (by_end, (40, 0), 3),
        (by_end, (10, 25), 3),
        (by_end, (5, 40), 2),
        (by_end, (-1, 40), 2),
    ):
        recorded.commands.clear()
        page = await stored.rollouts.query(None, sort, *window)
        assert page.total == 60
        assert len(recorded.commands) <= trips, (sort, window)
    recorded.commands.clear()
    await stored.rollouts.query({"rollout_id": {"within": ["ro-1", "ro-5"]}}, None, 1)
    await stored.rollouts.find("ro-1")
    assert len(recorded.commands) == 2


async def test_many_processes_may_make_the_same_indexes(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    pools = [MongoClientPool(mongo_uri=mongo_server.uri) for _ in range(4)]

    async def make(pool: MongoClientPool) -> None:
        async with pool:
            for name, indexes in INDEXES.items():
                await ensure_collection(pool.database(mongo_database), name, indexes)

    await asyncio.gather(*map(make, pools))

    async with MongoClientPool(mongo_uri=mongo_server.uri) as pool:
        database = pool.database(mongo_database)
        for name, indexes in INDEXES.items():
            made = await database[name].index_information()
            assert set(made) == {"_id_", *(index.name for index in indexes)}
            assert {found for found, how in made.items() if how.get("unique")} == {
                index.name for index in indexes if index.unique
            }
            assert await ensure_collection(database, name, indexes) == []


async def test_the_keys_of_0_3_serve_as_they_are(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    async with AsyncMongoClient[dict[str, Any]](mongo_server.uri) as client:
        database = client[mongo_database]
        workers = database["workers"]
        await workers.create_index(
            [("partition_id", 1), ("worker_id", 1)],
            unique=True,
            name="uniq_partition_worker_id",
        )
        await workers.create_index([("s", 1), ("t", 1)], name="idx_s_t_a_t_u_s")
        await workers.create_index([("partition_id", 1), ("status", 1), ("_id", 1)], name="by_hand")
        await workers.insert_one({"partition_id": "p", "worker_id": "w"})

        made = await ensure_collection(database, "workers", INDEXES["workers"])

        assert made == ["partition_order"]
        assert set(OBSOLETE["workers"]) < set(await workers.index_information())
        with pytest.raises(DuplicateKeyError):
            await workers.insert_one({"partition_id": "p", "worker_id": "w"})


async def test_keys_that_occur_twice_are_not_passed_over(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    async with AsyncMongoClient[dict[str, Any]](mongo_server.uri) as client:
        database = client[mongo_database]
        await database["workers"].insert_many(
            [{"partition_id": "p", "worker_id": "w", "at": time.time()} for _ in range(2)]
        )
        with pytest.raises(DuplicateKeyError):
            await ensure_collection(database, "workers", INDEXES["workers"])


def test_any_other_collection_gets_what_its_key_needs() -> None:
    made = indexes_for("mine", ["a", "b"], ["status", ["owner", "-time"]])
    assert [(index.name, index.keys, index.unique) for index in made] == [
        ("uniq_partition_a_b", (("partition_id", 1), ("a", 1), ("b", 1)), True),
        ("partition_order", (("partition_id", 1), ("_id", 1)), False),
        ("partition_status_order", (("partition_id", 1), ("status", 1), ("_id", 1)), False),
        (
            "partition_owner_time_desc_order",
            (("partition_id", 1), ("owner", 1), ("time", -1), ("_id", 1)),
            False,
        ),
    ]
