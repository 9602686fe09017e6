"""Collections, queues and mappings: one contract in memory and in MongoDB."""

from __future__ import annotations

import asyncio
import datetime
import threading
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from bson import ObjectId
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from pydantic import BaseModel, ConfigDict

from agl.errors import DuplicatedPrimaryKeyError, InvalidRequestError, NotFoundError, TooLargeError
from agl.store.collection import (
    Collection,
    DequeBasedQueue,
    DictBasedKeyValue,
    KeyValue,
    ListBasedCollection,
    Queue,
)
from agl.store.collection.mongo import (
    MongoBasedCollection,
    MongoBasedKeyValue,
    MongoBasedQueue,
    MongoClientPool,
)
from agl.store.collection.mongo.transaction import in_transaction


class Item(BaseModel):
    model_config = ConfigDict(extra="allow")

    group: str
    name: str
    rank: int | None = None
    data: Any = None


def item(name: str, rank: int | None = None, **data: Any) -> Item:
    return Item(group="g", name=name, rank=rank, data=data or None)


@dataclass
class Backend:
    """Makes empty ones."""

    pool: MongoClientPool | None
    database: str

    def __post_init__(self) -> None:
        self.partition = uuid.uuid4().hex

    def collection(self) -> Collection[Item]:
        if self.pool is None:
            return ListBasedCollection([], Item, ["group", "name"])
        return MongoBasedCollection(
            self.pool, self.database, "items", self.partition, ["group", "name"], Item
        )

    def queue(self) -> Queue[str]:
        if self.pool is None:
            return DequeBasedQueue(str)
        return MongoBasedQueue(self.pool, self.database, "queue", self.partition, str)

    def mapping(self) -> KeyValue[str, Any]:
        if self.pool is None:
            return DictBasedKeyValue[str, Any]()
        return MongoBasedKeyValue[str, Any](
            self.pool, self.database, "values", self.partition, str, object
        )


@pytest.fixture
async def mongo(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
) -> AsyncGenerator[Backend]:
    async with MongoClientPool(mongo_uri=mongo_server.uri) as pool:
        yield Backend(pool, mongo_database)


@pytest.fixture(params=["memory", "mongo"])
def backend(request: pytest.FixtureRequest, mongo: Backend) -> Backend:
    return mongo if request.param == "mongo" else Backend(None, "")


async def names(collection: Collection[Item]) -> str:
    return "".join(found.name for found in await collection.query())


# Collections


async def test_insert_is_all_or_none(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([])
    await collection.insert([item("a")])
    await collection.insert([item("c"), item("b")])
    assert await names(collection) == "acb"
    for clashing in ([item("a")], [item("x"), item("a")], [item("y"), item("y")]):
        with pytest.raises(DuplicatedPrimaryKeyError):
            await collection.insert(clashing)
    assert await names(collection) == "acb"
    assert await collection.size() == 3


async def test_insert_missing_returns_what_is_new(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([item("b", 1)])
    new = await collection.insert_missing([item("a"), item("b", 2), item("c", 3), item("c", 4)])
    assert [(one.name, one.rank) for one in new] == [("a", None), ("c", 3)]
    assert await names(collection) == "bac"
    assert await collection.find("g", "b") == item("b", 1)
    assert await collection.insert_missing([item("a"), item("c")]) == []
    assert await collection.insert_missing([]) == []


async def test_update_replaces_all_or_some_fields(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([Item(group="g", name="a", rank=1, data={"x.y": 1}, extra="old")])
    assert await collection.update([]) == []
    partly = await collection.update([item("a", 2, z=1)], ["rank"])
    assert partly == [Item(group="g", name="a", rank=2, data={"x.y": 1}, extra="old")]
    assert await collection.update([item("a", 3)], []) == partly
    assert await collection.update([item("a", 3)]) == [item("a", 3)]
    assert await collection.find("g", "a") == item("a", 3)


async def test_update_is_all_or_none(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([item("a", 1), item("b", 1)])
    changed = await collection.update([item("b", 2), item("a", 3)], ["rank"])
    assert changed == [item("b", 2), item("a", 3)]
    for fields in (None, ["rank"]):
        with pytest.raises(NotFoundError, match="'x'"):
            await collection.update([item("a", 9), item("x", 9)], fields)
        with pytest.raises(NotFoundError, match="'x'"):
            await collection.update([item("x", 9)], fields)
    assert list(await collection.query()) == [item("a", 3), item("b", 2)]


async def test_upsert_stores_new_items_whole(backend: Backend) -> None:
    collection = backend.collection()
    assert await collection.upsert([]) == []
    assert await collection.upsert([item("a", 1, x=1)], ["rank"]) == [item("a", 1, x=1)]
    assert await collection.upsert([item("a", 2, x=2)], ["rank"]) == [item("a", 2, x=1)]
    assert await collection.upsert([item("a", 3, x=3)], []) == [item("a", 2, x=1)]
    assert await collection.upsert([item("b", 1), item("a", 4)]) == [item("b", 1), item("a", 4)]
    assert await names(collection) == "ab"
    literal = Item(group="$g", name="$$ROOT", data={"$add": [1, 2]})
    assert await collection.upsert([literal]) == [literal]
    assert await collection.find("$g", "$$ROOT") == literal


async def test_upsert_forgets_the_extra_fields_of_what_it_replaces(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([Item(group="g", name="a", extra="old")])
    assert await collection.upsert([item("a")]) == [item("a")]
    assert await collection.find("g", "a") == item("a")


async def test_delete_is_all_or_none(backend: Backend) -> None:
    collection = backend.collection()
    await collection.insert([item(name) for name in "abcd"])
    await collection.delete([])
    await collection.delete([item("b")])
    for gone in ([item("b")], [item("a"), item("x")]):
        with pytest.raises(NotFoundError):
            await collection.delete(gone)
    assert await names(collection) == "acd"
    await collection.delete([item("a"), item("d")])
    assert await names(collection) == "c"


async def test_items_of_another_class_are_refused(backend: Backend) -> None:
    class Other(BaseModel):
        group: str = "g"
        name: str = "a"

    collection: Any = backend.collection()
    with pytest.raises(TypeError, match="Collection of Item cannot take Other"):
        await collection.insert([item("a"), Other()])
    assert await names(collection) == ""
    for write in (collection.insert_missing, collection.upsert):
        with pytest.raises(TypeError, match="Collection of Item cannot take Other"):
            await write([Other()])


async def test_ids_that_the_server_gives_a_meaning(backend: Backend) -> None:
    collection = backend.collection()
    odd = [Item(group="a.b", name=name) for name in ("$where", "nul\0", "", "\U0001d11e", "a/b")]
    await collection.insert(odd)
    for one in odd:
        assert await collection.find(one.group, one.name) == one
    await collection.delete(odd)
    assert await collection.size() == 0


# Queues


async def test_a_queue_is_first_in_first_out(backend: Backend) -> None:
    queue = backend.queue()
    assert queue.item_type() is str
    assert await queue.dequeue() == []
    assert list(await queue.enqueue(list("abcab"))) == list("abcab")
    await queue.enqueue(["d"])
    assert (await queue.has("d"), await queue.has("x"), await queue.size()) == (True, False, 6)
    assert list(await queue.peek(2)) == ["a", "b"]
    assert (await queue.peek(0), await queue.dequeue(0), await queue.dequeue(-1)) == ([], [], [])
    assert list(await queue.dequeue()) == ["a"]
    assert list(await queue.dequeue(2)) == ["b", "c"]
    assert await queue.discard(["a", "x"]) == 1
    assert await queue.discard([]) == 0
    assert list(await queue.enqueue_missing(["b", "e", "e"])) == ["e"]
    assert list(await queue.dequeue(99)) == ["b", "d", "e"]
    assert await queue.size() == 0


async def test_more_than_one_draught_is_dequeued_in_order(backend: Backend) -> None:
    queue = backend.queue()
    many = [str(number) for number in range(100)]
    await queue.enqueue(many)
    assert list(await queue.dequeue(99)) == many[:99]


async def test_a_queue_refuses_items_of_another_class(backend: Backend) -> None:
    queue: Any = backend.queue()
    with pytest.raises(TypeError, match="Queue of str cannot take int"):
        await queue.enqueue(["a", 1])
    assert await queue.size() == 0


# Mappings


async def test_a_mapping_counts(backend: Backend) -> None:
    mapping = backend.mapping()
    assert (await mapping.get("a"), await mapping.get("a", 5), await mapping.has("a")) == (
        None,
        5,
        False,
    )
    assert [await mapping.inc("a", 3), await mapping.inc("a", -1)] == [3, 2]
    assert [await mapping.chmax("a", 1), await mapping.chmax("a", 9)] == [2, 9]
    assert [await mapping.chmax("b", -4), await mapping.inc("c", 0.5)] == [-4, 0.5]
    assert await mapping.inc_many({"a": 1, "n": 2}) == {"a": 10, "n": 2}
    assert await mapping.chmax_many({"a": 5, "b": 7, "m": 1}) == {"a": 10, "b": 7, "m": 1}
    assert (await mapping.inc_many({}), await mapping.chmax_many({})) == ({}, {})
    assert (await mapping.size(), await mapping.has("a")) == (5, True)
    assert (await mapping.pop("a"), await mapping.pop("a"), await mapping.pop("a", 1)) == (
        10,
        None,
        1,
    )


async def test_a_mapping_keeps_any_value(backend: Backend) -> None:
    mapping = backend.mapping()
    for value in ("text", {"$a": 2**70}, [1, None], 2**40):
        await mapping.set("k\0$.", value)
        assert await mapping.get("k\0$.") == value
    assert await mapping.pop("k\0$.") == 2**40


@pytest.mark.parametrize("wrong", ["1", True, None, [1]])
async def test_counting_takes_only_numbers(backend: Backend, wrong: Any) -> None:
    mapping = backend.mapping()
    await mapping.set("text", "x")
    for method in ("inc", "chmax"):
        with pytest.raises(TypeError, match="must be a number"):
            await getattr(mapping, method)("a", wrong)
        with pytest.raises(TypeError, match="must be a number"):
            await getattr(mapping, f"{method}_many")({"a": wrong})
        with pytest.raises(TypeError, match="stored value must be a number"):
            await getattr(mapping, method)("text", 1)
    assert (await mapping.get("text"), await mapping.has("a")) == ("x", False)


# What only MongoDB does


async def test_a_number_beyond_64_bits_is_refused(mongo: Backend) -> None:
    mapping = mongo.mapping()
    for change in (mapping.inc, mapping.chmax):
        with pytest.raises(InvalidRequestError, match="must fit into 64 bits"):
            await change("a", 2**63)
    assert await mapping.inc("a", 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("count", [1, 2])
async def test_a_document_beyond_16_mib_is_refused_and_nothing_else_stored(
    mongo: Backend, count: int
) -> None:
    collection = mongo.collection()
    large = item("large", text="x" * 16 * 1024 * 1024)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: collection.insert([item("a"), large][-count:]),
        lambda: collection.insert_missing([item("a"), large][-count:]),
        lambda: collection.upsert([large]),
        lambda: collection.upsert([large], ["rank"]),
    ]
    for call in calls:
        with pytest.raises(TooLargeError, match="16 MiB"):
            await call()
    assert await collection.size() == 0
    await collection.insert([item("large")])
    for fields in (None, ["data"]):
        with pytest.raises(TooLargeError, match="16 MiB"):
            await collection.update([large], fields)
    assert await collection.find("g", "large") == item("large")


async def test_a_session_belongs_to_a_transaction(mongo: Backend) -> None:
    assert mongo.pool is not None
    collection, queue, mapping = mongo.collection(), mongo.queue(), mongo.mapping()
    assert isinstance(collection, MongoBasedCollection)
    assert isinstance(queue, MongoBasedQueue)
    assert isinstance(mapping, MongoBasedKeyValue)
    for one in (collection, queue, mapping):
        await one.ensure_collection()
    await collection.insert([item("old", 1)])

    async def work(session: Any, fails: bool) -> None:
        inside = collection.with_session(session)
        new = await inside.insert_missing([item("old", 9), item("new")])
        assert [one.name for one in new] == ["new"]
        await inside.insert([item("x"), item("y")])
        await inside.update([item("x", 5), item("y", 6)])
        await inside.upsert([item("z")])
        await inside.delete([item("y"), item("old")])
        assert await names(inside) == "newxz"
        waiting = queue.with_session(session)
        await waiting.enqueue(["a", "b", "c"])
        assert list(await waiting.dequeue(2)) == ["a", "b"]
        counting = mapping.with_session(session)
        assert await counting.inc_many({"k": 1, "l": 2}) == {"k": 1, "l": 2}
        assert await collection.size() == 1
        if fails:
            raise OSError("changed my mind")

    client = mongo.pool.client()
    with pytest.raises(OSError, match="changed my mind"):
        await in_transaction(client, lambda session: work(session, True))
    assert (await names(collection), await queue.size(), await mapping.size()) == ("old", 0, 0)
    await in_transaction(client, lambda session: work(session, False))
    assert (await names(collection), await queue.size(), await mapping.size()) == ("newxz", 1, 2)


async def test_arguments_that_make_no_sense(mongo: Backend) -> None:
    make: Any = MongoBasedCollection
    with pytest.raises(ValueError, match="primary_keys"):
        make(mongo.pool, "d", "items", "p", [], Item)
    with pytest.raises(ValueError, match="pydantic model"):
        make(mongo.pool, "d", "items", "p", ["name"], dict)
    assert repr(mongo.collection()) == "<MongoBasedCollection[Item]>"


async def test_what_is_missing_is_appended_once_whoever_does_it(mongo: Backend) -> None:
    items = [str(number) for number in range(5)]
    both = [mongo.queue() for _ in range(2)]
    added = await asyncio.gather(*(queue.enqueue_missing(items) for queue in both * 4))
    assert sorted(item for one in added for item in one) == items
    assert await both[0].size() == len(items)
    assert sorted(await both[0].dequeue(99)) == items


async def test_entries_of_0_3_that_are_not_consumed_are_read(mongo: Backend) -> None:
    queue = mongo.queue()
    assert isinstance(queue, MongoBasedQueue)
    stored = await queue.ensure_collection()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    for number, consumed in enumerate((True, False, True, False), 1):
        made = ObjectId.from_datetime(yesterday + datetime.timedelta(seconds=number))
        entry = {"value": f"ro-{number}", "consumed": consumed, "created_at": yesterday}
        await stored.insert_one({"_id": made, "partition_id": mongo.partition, **entry})
    assert (await queue.size(), await queue.has("ro-1")) == (2, False)
    assert list(await queue.enqueue_missing(["ro-4", "ro-1"])) == ["ro-1"]
    assert list(await queue.dequeue(9)) == ["ro-2", "ro-4", "ro-1"]
    assert await stored.count_documents({"consumed": False}) == 0
    assert await stored.count_documents({"consumed": True}) == 2


# Many at once


async def in_loops(count: int, work: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run ``work`` in as many event loops, each in a thread of its own, all at once."""
    results: list[Any] = []

    def run() -> None:
        results.append(asyncio.run(work()))  # type: ignore[arg-type]

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join(60) for thread in threads])
    assert len(results) == count
    return results


async def many(count: int, call: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*[call(number) for number in range(count)], return_exceptions=True)


async def closing(pool: MongoClientPool, work: Awaitable[Any]) -> Any:
    """What ``work`` returns, after the client of its event loop is closed."""
    try:
        return await work
    finally:
        await pool.client().close()


async def test_every_count_is_given_once(mongo: Backend, mongo_server: MongoServer) -> None:  # noqa: F811
    assert mongo.pool is not None
    pool, mapping = mongo.pool, mongo.mapping()
    each = 10 if mongo_server.is_slow else 40
    if mongo_server.is_slow:  # the Python stand-in answers null to one of two racing upserts
        await mapping.inc_many({"k": 0, "highest": 0})

    async def count(number: int) -> int:
        await mapping.chmax("highest", number)
        return await mapping.inc("k", 1)

    counted = await in_loops(3, lambda: closing(pool, many(each, count)))
    assert sorted(n for one in counted for n in one) == list(range(1, 3 * each + 1))
    assert await mapping.get("highest") == each - 1


async def test_every_entry_is_taken_once(mongo: Backend, mongo_server: MongoServer) -> None:  # noqa: F811
    assert mongo.pool is not None
    pool, queue = mongo.pool, mongo.queue()
    total = 36 if mongo_server.is_slow else 126
    await queue.enqueue([str(number) for number in range(total)])

    async def take(number: int) -> list[str]:
        return list(await queue.dequeue(number % 3 + 1))

    rounds = await in_loops(3, lambda: closing(pool, many(total // 6, take)))
    taken = [entry for one in rounds for entries in one for entry in entries]
    assert sorted(taken, key=int) == [str(number) for number in range(total)]
    assert await queue.size() == 0


async def test_one_of_many_inserts_wins(mongo: Backend) -> None:
    collection = mongo.collection()
    outcomes = await many(12, lambda number: collection.insert([item("a", number)]))
    assert outcomes.count(None) == 1
    assert all(o is None or isinstance(o, DuplicatedPrimaryKeyError) for o in outcomes)
    new = await many(12, lambda number: collection.insert_missing([item("a"), item("b", number)]))
    assert sorted(len(one) for one in new) == [0] * 11 + [1]
    assert await names(collection) == "ab"


async def test_transactions_that_clash_are_repeated(mongo: Backend) -> None:
    collection = mongo.collection()
    await collection.insert([item("a", 0), item("b", 0)])
    await many(8, lambda number: collection.update([item("a", number), item("b", number)]))
    left, right = await collection.query()
    assert left.rank == right.rank


async def test_upserts_of_one_new_key_agree(mongo: Backend) -> None:
    collection = mongo.collection()
    got = await many(12, lambda number: collection.upsert([item("a", number)], []))
    assert len({one[0].rank for one in got}) == 1
    assert await collection.size() == 1
