"""The collections of 0.3, one recorded fact a row: names, signatures, sections, tracking.

What calls answer is in ``test_collections.py`` and, for both backends, in
``tests/contract/test_mongo_collections.py``; differences are in ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import uuid
from collections.abc import Callable
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from test_operations import Recorded

from agl.store.collection import (
    AtomicLabels,
    AtomicMode,
    Collection,
    DequeBasedQueue,
    DictBasedKeyValue,
    InMemoryLightningCollections,
    KeyValue,
    LightningCollections,
    ListBasedCollection,
    Queue,
)
from agl.store.collection.base import ensure_numeric
from agl.store.collection.mongo import (
    MongoBasedCollection,
    MongoBasedKeyValue,
    MongoBasedQueue,
)
from agl.types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from agl.utils.locks import AsyncLock

PACKAGE = "agl.store.collection"
EXPORTED = {
    PACKAGE: "AtomicLabels AtomicMode Collection Queue KeyValue FilterOptions SortOptions "
    "PaginatedResult LightningCollections ListBasedCollection DequeBasedQueue DictBasedKeyValue "
    "InMemoryLightningCollections",
    f"{PACKAGE}.base": "DuplicatedPrimaryKeyError ensure_numeric merge_must_filters "
    "normalize_filter_options resolve_sort_options FilterMap",
    f"{PACKAGE}.mongo": "MongoClientPool MongoBasedCollection MongoBasedQueue MongoBasedKeyValue "
    "MongoLightningCollections resolve_mongo_error_type",
}
MONGO = "client_pool, database_name, collection_name, partition_id, "


class Item(BaseModel):
    name: str
    rank: int = 0
    tags: list[str] = []


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in EXPORTED.items() for name in names.split()],
)
def test_names(module: str, name: str) -> None:
    loaded = importlib.import_module(module)
    assert name in loaded.__all__
    assert hasattr(loaded, name)


def written(function: Callable[..., Any]) -> str:
    """Its parameters as they would be written, without ``self`` and annotations."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    bare = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return str(bare)[1:-1]


SECTION = "mode='rw', snapshot=False, commit=False, labels=None, **kwargs"
QUERY = "filter=None, sort=None, limit=-1, offset=0"
SIGNATURES = {
    Collection: {
        "primary_keys": "",
        "item_type": "",
        "size": "",
        "query": QUERY,
        "get": "filter=None, sort=None",
        "insert": "items",
        "update": "items, update_fields=None",
        "upsert": "items, update_fields=None",
        "delete": "items",
    },
    Queue: {
        "item_type": "",
        "has": "item",
        "enqueue": "items",
        "dequeue": "limit=1",
        "peek": "limit=1",
        "size": "",
    },
    KeyValue: {
        "has": "key",
        "get": "key, default=None",
        "set": "key, value",
        "inc": "key, amount",
        "chmax": "key, value",
        "pop": "key, default=None",
        "size": "",
    },
    LightningCollections: {"atomic": f"*, {SECTION}", "execute": f"callback, *, {SECTION}"},
}
BACKENDS: dict[type[Any], tuple[type[Any], ...]] = {
    Collection: (ListBasedCollection, MongoBasedCollection),
    Queue: (DequeBasedQueue, MongoBasedQueue),
    KeyValue: (DictBasedKeyValue, MongoBasedKeyValue),
    LightningCollections: (InMemoryLightningCollections,),
}


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind, known in SIGNATURES.items() for method in known]
)
def test_methods(kind: type[Any], method: str) -> None:
    at_once = {"primary_keys", "item_type", "atomic"}
    for owner in (kind, *BACKENDS[kind]):
        function = getattr(owner, method)
        assert written(function) == SIGNATURES[kind][method], owner
        assert inspect.iscoroutinefunction(function) == (method not in at_once), owner


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (ListBasedCollection, "items, item_type, primary_keys, id=None, tracker=None"),
        (DequeBasedQueue, "item_type, items=None, id=None, tracker=None"),
        (DictBasedKeyValue, "data=None, id=None, tracker=None"),
        (InMemoryLightningCollections, "lock_type, tracker=None"),
        (
            MongoBasedCollection,
            f"{MONGO}primary_keys, item_type, extra_indexes=(), tracker=None",
        ),
        (MongoBasedQueue, f"{MONGO}item_type, tracker=None"),
        (MongoBasedKeyValue, f"{MONGO}key_type, value_type, tracker=None"),
    ],
)
def test_constructors(kind: type[Any], parameters: str) -> None:
    ours = written(kind.__init__)
    assert ours == parameters or ours.startswith(f"{parameters}, *, ")


# The seven of a store


@pytest.mark.parametrize(
    ("name", "item_type", "keys"),
    [
        ("rollouts", Rollout, ["rollout_id"]),
        ("attempts", Attempt, ["rollout_id", "attempt_id"]),
        ("spans", Span, ["rollout_id", "attempt_id", "span_id"]),
        ("resources", ResourcesUpdate, ["resources_id"]),
        ("workers", Worker, ["worker_id"]),
    ],
)
def test_collections_of_a_store(name: str, item_type: type[Any], keys: list[str]) -> None:
    collection = getattr(InMemoryLightningCollections("thread"), name)
    assert isinstance(collection, Collection)
    assert collection.item_type() is item_type
    assert list(collection.primary_keys()) == keys


async def test_queue_counters_and_tracker_of_a_store() -> None:
    tracker = Recorded()
    collections = InMemoryLightningCollections("asyncio", tracker)
    assert collections.tracker is tracker
    assert collections.collection_name == "router"
    assert collections.rollout_queue.item_type() is str
    assert await collections.span_sequence_ids.inc("ro-1", 1) == 1


@pytest.mark.parametrize(
    ("literal", "values"),
    [
        (AtomicMode, "r w rw"),
        (
            AtomicLabels,
            "rollouts attempts spans resources workers rollout_queue span_sequence_ids generic",
        ),
    ],
)
def test_modes_and_labels(literal: Any, values: str) -> None:
    assert set(get_args(literal)) == set(values.split())


# What is stored


async def test_items_are_stored_and_returned_as_they_are() -> None:
    given = Item(name="a")
    collection = ListBasedCollection([], Item, ["name"])
    await collection.insert([given])
    assert await collection.get({"name": {"exact": "a"}}) is given
    assert next(iter(await collection.query())) is given


@pytest.mark.parametrize("method", ["update", "upsert"])
async def test_a_change_of_some_fields_makes_a_new_item_unchecked(method: str) -> None:
    stored = Item(name="a", rank=1)
    collection = ListBasedCollection([stored], Item, ["name"])
    wrong = Item.model_construct(name="a", rank="not a number", tags=["x"])
    (changed,) = await getattr(collection, method)([wrong], ["rank"])
    assert (changed.rank, changed.tags) == ("not a number", [])
    assert stored.rank == 1
    assert await collection.get() is changed


@pytest.mark.parametrize("sort", [None, {}])
async def test_no_sort_is_insertion_order(sort: Any) -> None:
    collection = ListBasedCollection([Item(name=name) for name in "cab"], Item, ["name"])
    assert [item.name for item in await collection.query(sort=sort)] == ["c", "a", "b"]


@pytest.mark.parametrize("sort", [None, {"name": "name", "order": "desc"}])
@pytest.mark.parametrize(
    ("limit", "offset", "found"),
    [(-1, 1, 2), (0, 1, 0), (2, 0, 2), (2, 2, 1), (2, 3, 0), (-1, 3, 0)],
)
async def test_pages_echo_what_was_asked(sort: Any, limit: int, offset: int, found: int) -> None:
    collection = ListBasedCollection([Item(name=name) for name in "cab"], Item, ["name"])
    page = await collection.query(None, sort, limit, offset)
    assert (page.limit, page.offset, page.total, len(page)) == (limit, offset, 3, found)


@pytest.mark.parametrize("wrong", [True, False, "1", None, [1], 1j])
def test_what_is_no_number(wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be a number"):
        ensure_numeric(wrong)


@pytest.mark.parametrize("number", [0, -3, 2**70, 0.5, float("inf")])
def test_what_is_a_number(number: Any) -> None:
    assert ensure_numeric(number) == number


# Sections


async def is_let_in(collections: InMemoryLightningCollections, **section: Any) -> bool:
    """Whether an ``execute`` begins although somebody holds the lock of spans."""
    begun = asyncio.Event()

    async def callback(bound: InMemoryLightningCollections) -> None:
        assert bound is collections
        begun.set()

    async with collections.atomic(labels=["spans"]):
        waiting = asyncio.create_task(collections.execute(callback, **section))
        for _ in range(20):
            await asyncio.sleep(0)
        was_let_in = begun.is_set()
    await waiting
    assert begun.is_set()
    return was_let_in


@pytest.mark.parametrize(
    ("section", "let_in"),
    [
        ({"mode": "r"}, True),
        ({"mode": "r", "labels": ["spans"]}, True),
        ({"mode": "r", "labels": ["spans"], "snapshot": True}, False),
        ({"mode": "r", "labels": ["rollouts"], "snapshot": True}, True),
        ({"mode": "w", "labels": ["spans"]}, False),
        ({"mode": "rw", "labels": ["workers", "spans"]}, False),
        ({"mode": "w", "labels": ["generic"]}, True),
        ({"labels": ["resources"]}, True),
        ({}, False),
    ],
)
async def test_who_waits_for_whom(section: dict[str, Any], let_in: bool) -> None:
    assert await is_let_in(InMemoryLightningCollections("asyncio"), **section) is let_in


@pytest.mark.parametrize("commit", [False, True])
async def test_nothing_is_taken_back(commit: bool) -> None:
    collections = InMemoryLightningCollections("thread")

    async def fails(bound: InMemoryLightningCollections) -> None:
        await bound.rollout_queue.enqueue(["ro-1"])
        raise OSError("after the write")

    with pytest.raises(OSError, match="after the write"):
        await collections.execute(fails, commit=commit)
    assert await collections.rollout_queue.size() == 1


async def test_a_lock_by_itself() -> None:
    lock = AsyncLock()
    with pytest.raises(RuntimeError, match="Lock released without being acquired"):
        lock.release()
    async with lock as held:
        assert held is lock
        assert not lock.try_acquire()
        assert pickle.loads(pickle.dumps(lock)).try_acquire()
    assert lock.try_acquire()


# Tracking

TRACKED: list[tuple[str, str, tuple[Any, ...]]] = [
    ("rollouts", "query", ()),
    ("rollouts", "get", ()),
    ("rollouts", "insert", ([],)),
    ("workers", "update", ([],)),
    ("workers", "upsert", ([],)),
    ("resources", "delete", ([],)),
    ("spans", "query", ()),
    ("spans", "insert", ([],)),
    ("rollout_queue", "has", ("a",)),
    ("rollout_queue", "enqueue", (["a"],)),
    ("rollout_queue", "dequeue", ()),
    ("rollout_queue", "peek", ()),
    ("rollout_queue", "size", ()),
    ("span_sequence_ids", "has", ("a",)),
    ("span_sequence_ids", "get", ("a",)),
    ("span_sequence_ids", "set", ("a", 1)),
    ("span_sequence_ids", "inc", ("a", 1)),
    ("span_sequence_ids", "chmax", ("a", 1)),
    ("span_sequence_ids", "pop", ("a",)),
    ("span_sequence_ids", "size", ()),
]


def tracked(tracker: Recorded) -> list[tuple[str, str, str]]:
    """Operation, collection and status of all calls, each counted and timed once."""
    counted = {row: n for (_, row), n in tracker.counters.items() if n}
    timed = {row: len(seconds) for (_, row), seconds in tracker.observed.items() if seconds}
    assert counted == timed
    return [(row[1], row[2], row[4]) for row, n in counted.items() for _ in range(n)]


@pytest.mark.parametrize(("collection", "method", "arguments"), TRACKED)
async def test_a_call_is_counted_and_timed(
    collection: str, method: str, arguments: tuple[Any, ...]
) -> None:
    tracker = Recorded()
    collections = InMemoryLightningCollections("asyncio", tracker)
    await getattr(getattr(collections, collection), method)(*arguments)
    assert tracked(tracker) == [(method, collection, "OK")]


async def test_calls_of_the_bundle_are_counted() -> None:
    tracker = Recorded()
    collections = InMemoryLightningCollections("asyncio", tracker)
    await collections.evict_spans_for_rollout("ro-1")
    async with collections.atomic(labels=["workers"]):
        pass
    assert tracked(tracker) == [
        ("evict_spans_for_rollout", "router", "OK"),
        ("atomic", "router", "OK"),
    ]
    assert not await is_let_in(collections, labels=["spans"])
    assert [row[0] for row in tracked(tracker)].count("lock") == 1


async def test_the_size_of_a_collection_is_not_counted() -> None:
    tracker = Recorded()
    await InMemoryLightningCollections("asyncio", tracker).rollouts.size()
    assert tracked(tracker) == []


async def test_a_failure_is_counted_by_its_class() -> None:
    tracker = Recorded()
    collection = ListBasedCollection([Item(name="a")], Item, ["name"], "mine", tracker)
    with pytest.raises(ValueError, match="already exists"):
        await collection.insert([Item(name="a")])
    assert tracked(tracker) == [("insert", "mine", "DuplicatedPrimaryKeyError")]


async def test_without_an_id_a_collection_is_counted_under_a_random_one() -> None:
    tracker = Recorded()
    for _ in range(2):
        await ListBasedCollection([], Item, ["name"], tracker=tracker).query()
        await DequeBasedQueue(str, tracker=tracker).size()
        await DictBasedKeyValue[str, int](tracker=tracker).size()
    names = {collection for _, collection, _ in tracked(tracker)}
    assert len({uuid.UUID(name) for name in names}) == 6
