"""How often the store in MongoDB asks the server, and that no question makes it search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import Any, TypeVar

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from mongo_support import Commands, make_span

from agl.store.mongo import MongoLightningStore
from agl.types import AttemptedRollout, AttemptUpdate, EnqueueRolloutRequest, RolloutConfig

T = TypeVar("T")
MANY = [EnqueueRolloutRequest(input={"n": n}) for n in range(150)]


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
async def store(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    commands: Commands,
) -> AsyncGenerator[MongoLightningStore]:
    """A store that has been used before, and whose watchdog keeps quiet."""
    async with MongoLightningStore(
        mongo_uri=mongo_server.uri,
        mongo_client_kwargs={"event_listeners": [commands]},
        database_name=mongo_database,
        scan_debounce_seconds=1e9,
    ) as store:
        await store.add_resources({})
        await store.enqueue_many_rollouts(MANY[:2])
        store.collections.heartbeat_seconds = 60.0  # so long is a rollout known, on a busy machine
        yield store


async def _running(store: MongoLightningStore, **options: Any) -> AttemptedRollout:
    rollout = await store.start_rollout({"q": 1}, **options)
    await store.add_span(make_span(rollout, 1))
    return rollout


async def test_start(store: MongoLightningStore, commands: Commands) -> None:
    with commands.counted() as sent:
        await store.start_rollout({"q": 1}, worker_id="w-new")
    assert sent == ["find", "bulkWrite"]


async def test_enqueue(store: MongoLightningStore, commands: Commands) -> None:
    with commands.counted() as sent:
        await store.enqueue_rollout({"q": 1})
    assert sent == ["find", "bulkWrite"]
    with commands.counted() as sent:
        await store.enqueue_many_rollouts(MANY)
    assert sent == ["bulkWrite", "commitTransaction"]


async def test_dequeue(store: MongoLightningStore, commands: Commands) -> None:
    await store.enqueue_many_rollouts(MANY)
    with commands.counted() as sent:
        assert await store.dequeue_rollout(worker_id="w") is not None
    assert sent == ["find", "bulkWrite"]
    with commands.counted() as sent:
        assert len(await store.dequeue_many_rollouts(limit=140, worker_id="w")) == 140
    assert len(sent) <= 3
    await store.dequeue_many_rollouts(limit=1000)
    with commands.counted() as sent:
        assert await store.dequeue_rollout() is None
    assert sent == ["find"]


async def test_attempts(store: MongoLightningStore, commands: Commands) -> None:
    rollout = await _running(store, worker_id="w")
    for change, wanted in (
        (store.update_attempt(rollout.rollout_id, "latest", status="running"), ["bulkWrite"]),
        (store.update_attempt(rollout.rollout_id, "latest", status="succeeded"), ["bulkWrite"]),
        (store.start_attempt(rollout.rollout_id, worker_id="w"), ["find", "bulkWrite"]),
        (store.update_rollout(rollout.rollout_id, status="cancelled"), ["find", "bulkWrite"]),
    ):
        with commands.counted() as sent:
            await change
        assert sent == wanted


async def test_of_a_rollout_that_another_process_has(
    store: MongoLightningStore,
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    commands = Commands()
    async with MongoLightningStore(
        mongo_uri=mongo_server.uri,
        mongo_client_kwargs={"event_listeners": [commands]},
        database_name=mongo_database,
        partition_id=store.partition_id,
        scan_debounce_seconds=1e9,
    ) as other:
        await other.query_rollouts(limit=0)  # the first call of a store wakes its watchdog
        for change in (
            lambda one: other.update_attempt(one.rollout_id, "latest", status="succeeded"),
            lambda one: other.add_span(make_span(one, 1)),
        ):
            rollout = await store.start_rollout({"q": 1})
            with commands.counted() as sent:
                assert await change(rollout) is not None
            assert sent == ["find", "bulkWrite"]
        rollout = await _running(store)
        with commands.counted() as sent:
            assert await other.add_span(make_span(rollout, 2)) is not None
        assert sent == ["find", "bulkWrite"]


async def test_dequeue_of_more_than_a_bulk_takes(
    store: MongoLightningStore,
    commands: Commands,
    mongo_server: MongoServer,  # noqa: F811
) -> None:
    if mongo_server.is_slow:
        pytest.skip("the Python stand-in takes 10 s for so many")
    for _ in range(5):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(500)])
    with commands.counted() as sent:
        assert len(await store.dequeue_many_rollouts(limit=2_500, worker_id="w")) == 2_500
    assert len(sent) <= 3


async def test_many_attempts_at_once(store: MongoLightningStore, commands: Commands) -> None:
    started = [await store.start_rollout(n) for n in range(20)]
    updates = [
        AttemptUpdate(rollout_id=one.rollout_id, attempt_id="latest", status="succeeded")
        for one in started
    ]
    with commands.counted() as sent:
        await store.update_many_attempts(updates)
    assert sent == ["bulkWrite"]


async def test_one_span_alone(store: MongoLightningStore, commands: Commands) -> None:
    rollout = await store.start_rollout({"q": 1}, worker_id="w")
    for number in (1, 2):  # the first one makes the attempt run
        with commands.counted() as sent:
            assert await store.add_span(make_span(rollout, number)) is not None
        assert sent == ["bulkWrite"]
    with commands.counted() as sent:
        await store.add_many_spans([make_span(rollout, number) for number in range(3, 40)])
    assert sorted(sent) == ["bulkWrite", "insert"]


async def test_spans_at_once_are_committed_together(
    store: MongoLightningStore, commands: Commands
) -> None:
    rollouts = [await _running(store) for _ in range(8)]

    async def client(number: int) -> None:
        for i in range(10):
            await store.add_span(make_span(rollouts[number % 8], 100 + 100 * number + i))

    with commands.counted() as sent:
        await asyncio.gather(*(client(number) for number in range(32)))
    assert len(sent) <= 320 / 4
    assert (await store.statistics())["total_spans"] == 328


async def test_pages_and_totals(store: MongoLightningStore, commands: Commands) -> None:
    await store.enqueue_many_rollouts(MANY)
    for _ in range(5):
        await store.update_attempt((await _running(store)).rollout_id, "latest", status="failed")
    for budget, question in (
        (2, store.query_rollouts(limit=10)),
        (2, store.query_rollouts(status_in=["queuing", "failed"], limit=10)),
        (2, store.query_rollouts(sort_by="start_time", sort_order="desc", limit=10)),
        (3, store.query_rollouts(sort_by="end_time", limit=10)),
        (2, store.query_workers(limit=10)),
        (1, store.statistics()),
    ):
        with commands.counted() as sent:
            await question
        assert len(sent) <= budget, sent
        assert "count" not in sent
    page = await store.query_rollouts(status_in=["queuing"], limit=10)
    assert (len(page.items), page.total) == (10, 152)


async def test_the_head_of_the_queue_and_one_read_serve_many(
    store: MongoLightningStore, commands: Commands
) -> None:
    await store.enqueue_many_rollouts(MANY)
    with commands.counted() as sent:
        claimed = await asyncio.gather(*(store.dequeue_rollout() for _ in range(50)))
    assert len({one.rollout_id for one in claimed if one is not None}) == 50
    assert len(sent) <= 6
    with commands.counted() as sent:
        await asyncio.gather(
            *(store.get_rollout_by_id(one.rollout_id) for one in claimed if one is not None)
        )
    assert len(sent) <= 2


# Plans


def _stages(plan: Any) -> Iterator[str]:
    if isinstance(plan, dict):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for name, part in plan.items():
            if name != "rejectedPlans":
                yield from _stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from _stages(part)


def _questions(command: dict[str, Any], database: str) -> Iterator[dict[str, Any]]:
    """What to explain of a command: itself, or a find for each update of a bulk."""
    name = next(iter(command))
    if name in ("find", "aggregate", "count"):
        yield command
    if name == "findAndModify":
        yield {"find": command[name], "filter": command["query"]}
    if name != "bulkWrite":
        return
    names = [one["ns"].removeprefix(f"{database}.") for one in command["nsInfo"]]
    for operation in command["ops"]:
        if "update" in operation:
            yield {"find": names[operation["update"]], "filter": operation["filter"]}


async def _everything(store: MongoLightningStore) -> None:
    """Every operation, on a store with something in it."""
    config = RolloutConfig(timeout_seconds=0.01, max_attempts=2, retry_condition=["timeout"])
    await store.enqueue_many_rollouts(MANY)
    late = await store.start_rollout(1, config=config, worker_id="w")
    rollout = await _running(store, worker_id="w")
    await store.add_span(make_span(rollout, 2))
    await store.dequeue_many_rollouts(limit=5, worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await asyncio.sleep(0.02)
    await store.watchdog._sweep(64)
    found = await store.get_rollout_by_id(late.rollout_id)
    assert found is not None
    assert found.status == "requeuing"
    await store.update_resources("rs", {})
    await store.get_latest_resources()
    await store.update_worker("w", {"cpu": 1})
    await store.get_next_span_sequence_id(rollout.rollout_id, "at")
    await store.find_stuck()
    await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=1)
    await store.statistics()
    await store.query_spans(rollout.rollout_id, "latest", limit=1)
    await store.query_spans(rollout.rollout_id, limit=1)
    await store.query_rollouts(sort_by="start_time", limit=5)
    await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=5)
    await store.query_rollouts(limit=5, offset=3)
    await store.query_rollouts(status_in=["queuing", "requeuing"], limit=5)
    await store.query_workers(limit=5)
    await store.query_resources(limit=5)
    await store.query_attempts(rollout.rollout_id)


async def test_no_command_of_the_store_scans_or_sorts(
    store: MongoLightningStore,
    commands: Commands,
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    await _everything(store)
    database = store.collections.pool.database(mongo_database)
    looked_at: set[str] = set()
    for command in list(commands.sent):
        for question in _questions(command, mongo_database):
            if next(iter(question.values())) == "attempts":
                continue  # only 0.3 had that collection; whether there is anything in it
            if next(iter(question)) == "aggregate" and question["aggregate"] != "counters":
                continue  # counts of the whole partition, beside calls
            match = question.get("filter", {})
            if mongo_server.is_slow and ("$exists" in str(match) or {"_id"} < match.keys()):
                continue  # the Python stand-in uses no index for these
            plan = await database.command({"explain": question, "verbosity": "queryPlanner"})
            stages = set(_stages(plan))
            assert "COLLSCAN" not in stages, question
            if not mongo_server.is_slow:  # which sorts whatever it finds
                assert "SORT" not in stages, question
            looked_at.add(str(next(iter(question.values()))))
    assert looked_at >= {"rollouts", "spans", "workers", "resources", "state", "counters"}


async def test_an_older_server_gets_one_bulk_for_each_collection(
    store: MongoLightningStore, commands: Commands
) -> None:
    """The budgets that docs/architecture.md has for it."""
    (await store.collections.lane()).combiner.by_collection = True
    before = len(commands.sent)

    async def cost(call: Awaitable[T], *expected: str) -> T:
        with commands.counted() as sent:
            result = await call
        assert sorted(sent) == sorted(expected)
        return result

    read, document, worker, counters = "find", "update", "update", "update"
    decision = (read, document, worker, counters)
    started = time.time()
    one = await cost(store.start_rollout(1, worker_id="w"), read, "insert", worker, counters)
    await cost(store.enqueue_rollout(2), read, "insert", counters)
    many = await cost(
        store.enqueue_many_rollouts(MANY[:5]), "update", "insert", counters, "commitTransaction"
    )
    first = await cost(store.dequeue_rollout(worker_id="w2"), *decision)
    assert first is not None
    others = store.dequeue_many_rollouts(limit=7, worker_id="w2")
    claimed = await cost(others, *decision, *[document] * 6)
    assert {rollout.rollout_id for rollout in claimed} > {rollout.rollout_id for rollout in many}
    await cost(store.update_attempt(first.rollout_id, "latest", status="succeeded"), *decision)
    await cost(
        store.update_rollout(claimed[0].rollout_id, status="cancelled"), read, document, counters
    )
    again = await cost(store.start_attempt(one.rollout_id, worker_id="w"), *decision)
    await cost(store.statistics(), "aggregate")
    await cost(store.query_rollouts(limit=3), "find", "find")
    await cost(store.query_rollouts(sort_by="end_time", limit=3), "find", "find", "find")
    await cost(store.add_span(make_span(again, 1)), *decision, "insert", "insert")
    for spans in ([2], range(3, 9)):  # a heartbeat may be due
        with commands.counted() as sent:
            await store.add_many_spans([make_span(again, number) for number in spans])
        assert 3 <= len(sent) <= 4
    await store.update_attempt(one.rollout_id, "latest", status="succeeded")
    await store.add_resources({})

    assert "bulkWrite" not in commands.names[before:]
    found = await store.get_rollout_by_id(one.rollout_id)
    assert isinstance(found, AttemptedRollout)
    assert (found.status, found.attempt.status) == ("succeeded", "succeeded")
    assert (found.end_time or 0) >= started
    await _settled(store)
    statistics = await store.statistics()
    assert statistics["total_rollouts"] == 9
    assert statistics["total_attempts"] == 10
    assert statistics["total_spans"] == 8


async def _settled(store: MongoLightningStore) -> None:
    """Until the corrections of the totals are written."""
    await asyncio.sleep(0.2)
    assert await store.reconcile() == {}
