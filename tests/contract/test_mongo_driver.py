"""What the driver's metrics show, and what callers see when the server is not there."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server, running_stand_in  # noqa: F401
from mongo_support import Commands, Sockets, make_span
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from pymongo.errors import OperationFailure

from agl.errors import BackendError, BackendUnavailableError
from agl.store.collection.mongo import (
    MongoBasedCollection,
    MongoBasedKeyValue,
    MongoBasedQueue,
    MongoClientPool,
)
from agl.store.collection.mongo.metrics import open_connections
from agl.store.collection.mongo.transaction import in_transaction
from agl.store.mongo import MongoLightningStore
from agl.utils.metrics import PrometheusMetricsBackend


class Item(BaseModel):
    name: str
    rank: int = 0


class Metered:
    """A pool and what it recorded."""

    def __init__(self, uri: str) -> None:
        self.registry = CollectorRegistry()
        self.tracker = PrometheusMetricsBackend(registry=self.registry)
        self.pool = MongoClientPool(mongo_uri=uri, tracker=self.tracker)

    def value(self, name: str, **labels: str) -> float | None:
        self.tracker.flush()
        return self.registry.get_sample_value(f"agl_mongo_{name}", labels)


@pytest.fixture
async def metered(mongo_server: MongoServer) -> AsyncGenerator[Metered]:  # noqa: F811
    metered = Metered(mongo_server.uri)
    async with metered.pool:
        yield metered


async def test_commands_and_connections_are_counted(metered: Metered, mongo_database: str) -> None:  # noqa: F811
    collection = MongoBasedCollection(metered.pool, mongo_database, "items", "p", ["name"], Item)
    await collection.insert([Item(name="a")])
    await collection.find("a")
    await collection.find("b")
    with pytest.raises(OperationFailure):
        await metered.pool.database(mongo_database).command("noSuchCommand")

    assert metered.value("commands_total", command="insert", status="OK") == 1
    assert metered.value("commands_total", command="find", status="OK") == 2
    assert metered.value("commands_latency_count", command="find", status="OK") == 2
    assert metered.value("commands_total", command="other", status="refused") == 1
    created = metered.value("pool_connections_total", event="created")
    assert created is not None
    assert created >= 1
    waited = metered.value("pool_wait_count", status="OK")
    assert waited is not None
    assert waited >= 4


async def test_the_size_of_the_pools_is_what_is_open(mongo_server: MongoServer) -> None:  # noqa: F811
    """Of all clients of this process, also when one was dropped with its event loop."""
    gc.collect()
    sockets = Sockets(mongo_server.uri)
    before, earlier = open_connections(), sockets.of(os.getpid())

    async def use(pool: MongoClientPool) -> None:
        ping = pool.client().admin.command
        await asyncio.gather(*(ping("ping") for _ in range(4)))

    def agrees(clients: int) -> bool:
        opened = len(sockets.of(os.getpid()) - earlier) - clients * sockets.watching
        return open_connections() - before == opened >= 2 * clients

    async with Metered(sockets.uri).pool as one:
        kept = one.client()
        await use(one)
        await _until(lambda: agrees(1))
        async with Metered(sockets.uri).pool as two:
            await use(two)
            await asyncio.to_thread(asyncio.run, use(two))
            await _until(lambda: agrees(3))
            assert _in_a_fork(open_connections) == 0
            with warnings.catch_warnings(action="ignore"):
                await two.close()
                gc.collect()
        await _until(lambda: agrees(1))
    await _until(lambda: agrees(0))
    del kept  # until now: its connections were closed, not forgotten


async def _until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


def _in_a_fork(read: Callable[[], int]) -> int:
    with warnings.catch_warnings(action="ignore"):  # there are threads; the child needs none
        child = os.fork()
    if child == 0:
        os._exit(read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_the_size_of_each_batch_is_counted(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> None:
    commands, registry = Commands(), CollectorRegistry()
    tracker = PrometheusMetricsBackend(registry=registry)

    def counted(kind: str) -> tuple[float, float]:
        tracker.flush()
        name, labels = "agl_mongo_batch_size", {"kind": kind}
        found = (registry.get_sample_value(f"{name}_{part}", labels) for part in ("count", "sum"))
        calls, operations = (value or 0.0 for value in found)
        return calls, operations

    async with MongoLightningStore(
        mongo_uri=mongo_server.uri,
        mongo_client_kwargs={"event_listeners": [commands]},
        database_name=mongo_database,
        tracker=tracker,
        scan_debounce_seconds=1e9,
        heartbeat_seconds=60,
    ) as store:
        rollouts = [await store.start_rollout(n) for n in range(4)]
        (calls, operations), written = counted("write"), commands.written
        await store.add_many_spans([make_span(rollouts[0], number) for number in range(1, 6)])
        assert commands.written - written > 5  # the rollout's document as well
        assert counted("write") == (calls + 1, operations + commands.written - written)

        calls, operations = counted("read")
        with commands.counted() as sent:
            await asyncio.gather(*(store.get_rollout_by_id(one.rollout_id) for one in rollouts))
        assert counted("read") == (calls + sent.count("find"), operations + 4)


async def test_transactions_and_repeats_are_counted(metered: Metered, mongo_database: str) -> None:  # noqa: F811
    assert metered.value("transactions_total", outcome="committed") == 0
    tries: list[int] = []

    async def clash(session: Any) -> str:
        await metered.pool.database(mongo_database)["t"].insert_one({}, session=session)
        tries.append(1)
        if len(tries) < 3:
            failure = OperationFailure("clash", 112)
            failure._add_error_label("TransientTransactionError")
            raise failure
        return "done"

    await metered.pool.database(mongo_database).create_collection("t")
    client, metrics = metered.pool.client(), metered.pool.metrics
    assert await in_transaction(client, clash, metrics=metrics) == "done"
    with pytest.raises(OSError, match="no"):
        await in_transaction(client, _fail, metrics=metrics)

    assert metered.value("transactions_total", outcome="committed") == 1
    assert metered.value("transactions_total", outcome="aborted") == 3
    assert metered.value("retries_total", operation="transaction") == 2
    assert await metered.pool.database(mongo_database)["t"].count_documents({}) == 1


async def _fail(session: Any) -> None:
    raise OSError("no")


async def test_calls_are_tracked_by_collection(metered: Metered, mongo_database: str) -> None:  # noqa: F811
    pool, tracker = metered.pool, metered.tracker
    collection = MongoBasedCollection(
        pool, mongo_database, "items", "p", ["name"], Item, tracker=tracker
    )
    queue = MongoBasedQueue(pool, mongo_database, "queue", "p", str, tracker)
    mapping = MongoBasedKeyValue(pool, mongo_database, "values", "p", str, int, tracker)
    await collection.insert([Item(name="a")])
    with pytest.raises(ValueError, match="already stored"):
        await collection.insert([Item(name="a")])
    await queue.enqueue(["x"])
    await mapping.inc("k", 1)

    tracker.flush()

    def calls(collection: str, operation: str, status: str = "OK") -> float | None:
        return metered.registry.get_sample_value(
            "agl_collections_total",
            {
                "store_pubmeth": "unknown",
                "store_privmeth": "unknown",
                "collection": collection,
                "operation": operation,
                "status": status,
            },
        )

    assert calls("items", "insert") == 1
    assert calls("items", "insert", "DuplicatedPrimaryKeyError") == 1
    assert calls("queue", "enqueue") == 1
    assert calls("values", "inc") == 1


async def test_a_server_that_is_not_there_is_worth_another_try() -> None:
    # A socket file: of a refused TCP connection the driver leaves the socket open.
    uri = "mongodb://agl:hunter2@%2Fno%2Fmongod.sock/?serverSelectionTimeoutMS=200"
    async with MongoClientPool(mongo_uri=uri) as pool:
        collection = MongoBasedCollection(pool, "d", "items", "p", ["name"], Item)
        queue = MongoBasedQueue(pool, "d", "queue", "p", str)
        mapping = MongoBasedKeyValue(pool, "d", "values", "p", str, int)
        for call in (
            lambda: collection.query(),
            lambda: collection.insert([Item(name="a"), Item(name="b")]),
            lambda: queue.dequeue(3),
            lambda: mapping.inc("k", 1),
        ):
            with pytest.raises(BackendUnavailableError, match="cannot be reached") as raised:
                await call()
            assert "hunter2" not in str(raised.value)
            assert "mongod.sock" not in str(raised.value)


async def test_the_server_dies_and_returns(mongo_server: MongoServer) -> None:  # noqa: F811
    """What was acknowledged before is there afterwards, through the same pool."""
    if mongo_server.pid is None:
        pytest.skip("a real server is not ours to kill")
    with running_stand_in(mongo_server.name, "--sync-on-commit") as first:
        assert first.pid is not None
        assert first.storage is not None
        port = int(first.uri.split(":")[2].split("/")[0])
        uri = f"{first.uri}&serverSelectionTimeoutMS=500"
        async with MongoClientPool(mongo_uri=uri) as pool:
            mapping = MongoBasedKeyValue(pool, "d", "values", "p", str, int)
            assert await mapping.inc("k", 1) == 1
            os.kill(first.pid, signal.SIGKILL)
            with pytest.raises(BackendUnavailableError):
                await mapping.inc("k", 1)
            with running_stand_in(mongo_server.name, storage=first.storage, port=port):
                assert await _patiently(mapping) == 1
                assert await mapping.inc("k", 1) == 2


async def _patiently(mapping: MongoBasedKeyValue[str, int]) -> int | None:
    for _ in range(120):
        try:
            return await mapping.get("k")
        except BackendUnavailableError:
            await asyncio.sleep(0.1)
    raise AssertionError("it does not come back")


async def test_a_wrong_password_is_named_and_not_shown(mongo_server: MongoServer) -> None:  # noqa: F811
    if mongo_server.pid is None:
        pytest.skip("a real server may have no users")
    with running_stand_in(mongo_server.name, "--auth") as server:
        uri = server.uri.replace("//", "//agl:hunter2@")
        async with MongoClientPool(mongo_uri=uri) as pool:
            mapping = MongoBasedKeyValue(pool, "d", "values", "p", str, int)
            with pytest.raises(BackendError, match="refused the user or password") as raised:
                await mapping.inc("k", 1)
            assert not isinstance(raised.value, BackendUnavailableError)
            assert "hunter2" not in str(raised.value)
        async with MongoClientPool(mongo_uri=server.uri) as pool:
            mapping = MongoBasedKeyValue(pool, "d", "values", "p", str, int)
            with pytest.raises(BackendError, match="lacks rights"):
                await mapping.inc("k", 1)
