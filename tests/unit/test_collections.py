"""Collections in memory: contracts, filters, sorting, paging, indexes, sections."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from agl.errors import DuplicatedPrimaryKeyError
from agl.store.collection import (
    DequeBasedQueue,
    DictBasedKeyValue,
    InMemoryLightningCollections,
    ListBasedCollection,
)
from agl.store.collection.ordered import OrderedIntegers
from agl.store.collection.query import normalize_filter_options, sort_items


class Item(BaseModel):
    group: str
    name: str
    status: str = "new"
    rank: int | None = None
    tags: list[str] = []


KEYS = ["group", "name"]


def items(*specifications: str, **values: Any) -> list[Item]:
    """Items from ``group/name`` texts."""
    return [Item(group=s.split("/")[0], name=s.split("/")[1], **values) for s in specifications]


@pytest.fixture(params=["composite", "indexed", "plain"])
def collection(request: pytest.FixtureRequest) -> ListBasedCollection[Item]:
    """The same question must have the same answer whatever the indexes."""
    if request.param == "plain":
        return ListBasedCollection([], Item, ["name"])
    indexes = ["status"] if request.param == "indexed" else []
    return ListBasedCollection([], Item, KEYS, indexes=indexes)


async def names(collection: ListBasedCollection[Item], *args: Any, **kwargs: Any) -> str:
    page = await collection.query(*args, **kwargs)
    return "".join(item.name for item in page)


async def test_insert_find_get_size(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a", "h/b"))

    assert await collection.size() == 2
    key = ["g", "a"] if len(collection.primary_keys()) == 2 else ["a"]
    assert await collection.find(*key) == items("g/a")[0]
    assert await collection.get({"name": {"exact": "b"}}) == items("h/b")[0]
    assert await collection.get({"name": {"exact": "z"}}) is None
    assert await collection.get(sort={"name": "name", "order": "desc"}) == items("h/b")[0]
    assert collection.item_type() is Item


async def test_insert_is_all_or_nothing(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a"))
    for batch in (items("g/b", "g/a"), items("g/b", "g/b")):
        with pytest.raises(DuplicatedPrimaryKeyError, match="'name'"):
            await collection.insert(batch)
    assert await names(collection) == "a"
    assert issubclass(DuplicatedPrimaryKeyError, ValueError)


async def test_insert_missing(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a"))
    batch = items("g/b", "g/a", "g/b", "g/c")
    assert [item.name for item in await collection.insert_missing(batch)] == ["b", "c"]
    assert await names(collection) == "abc"


async def test_wrong_type_changes_nothing(collection: ListBasedCollection[Item]) -> None:
    wrong: Any = [*items("g/b"), "text"]
    for method in (collection.insert, collection.insert_missing, collection.update):
        with pytest.raises((TypeError, ValueError)):
            await method(wrong)
    assert await collection.size() == 0


async def test_update(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a", "g/b", rank=1))

    whole = items("g/a", status="done", rank=2)
    assert await collection.update(whole) == whole
    (partly,) = await collection.update(items("g/b", status="done", rank=9), ["status"])

    assert (partly.status, partly.rank) == ("done", 1)
    assert await names(collection, {"status": {"exact": "done"}}) == "ab"
    assert await names(collection, {"status": {"exact": "new"}}) == ""
    with pytest.raises(ValueError, match="does not exist"):
        await collection.update([*items("g/a"), *items("g/z")])
    assert await collection.update([]) == []


async def test_upsert(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a", rank=1))

    stored = await collection.upsert(items("g/a", "g/b", rank=5, status="s"), ["status"])
    assert [(item.rank, item.status) for item in stored] == [(1, "s"), (5, "s")]
    stored = await collection.upsert(items("g/a", "g/c", rank=7), [])
    assert [(item.rank, item.status) for item in stored] == [(1, "s"), (7, "new")]
    stored = await collection.upsert(items("g/a", rank=8))
    assert [(item.rank, item.status) for item in stored] == [(8, "new")]
    assert await names(collection, {"status": {"exact": "s"}}) == "b"


async def test_delete(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(items("g/a", "g/b"))
    with pytest.raises(ValueError, match="does not exist"):
        await collection.delete(items("g/a", "g/z"))
    await collection.delete(items("g/a"))
    assert await names(collection) == "b"
    assert await names(collection, {"group": {"exact": "g"}}) == "b"
    assert await names(collection, {"status": {"exact": "new"}}) == "b"
    await collection.insert(items("g/a"))
    assert await names(collection) == "ba"


def _zoo() -> list[Item]:
    return [
        Item(group="g", name="a", status="x", rank=3, tags=["red"]),
        Item(group="h", name="b", status="y", rank=None),
        Item(group="g", name="c", status="x", rank=1, tags=["red", "blue"]),
        Item(group="h", name="d", status="z", rank=2),
        Item(group="g", name="e", status="y", rank=None),
    ]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (None, "abcde"),
        ({}, "abcde"),
        ({"_aggregate": "or"}, "abcde"),
        ({"status": {}, "_aggregate": "or"}, "abcde"),
        ({"status": {"exact": None}}, "abcde"),
        ({"status": {"exact": None}, "_aggregate": "or"}, "abcde"),
        ({"status": {"exact": "x"}}, "ac"),
        ({"status": {"exact": "none"}}, ""),
        ({"status": {"within": ["z", "x", "none"]}}, "acd"),
        ({"status": {"within": []}}, ""),
        ({"status": {"within": [["unhashable"], "x"]}}, "ac"),
        ({"name": {"within": ["d", "a"]}}, "ad"),
        ({"name": {"within": ["ad"]}}, ""),
        ({"group": {"within": ["h", "g"]}}, "abcde"),
        ({"group": {"exact": "g"}}, "ace"),
        ({"group": {"exact": "g"}, "name": {"exact": "c"}}, "c"),
        ({"group": {"exact": "g"}, "name": {"exact": "b"}}, ""),
        ({"group": {"exact": "g"}, "status": {"exact": "x"}}, "ac"),
        ({"group": {"exact": ["g"]}}, ""),
        ({"rank": {"exact": 1}}, "c"),
        ({"rank": {"within": [1, 2]}}, "cd"),
        ({"name": {"contains": "a"}}, "a"),
        ({"name": {"contains": "A"}}, ""),
        ({"rank": {"contains": "1"}}, ""),
        ({"tags": {"contains": "red"}}, "ac"),
        ({"missing": {"exact": "x"}}, ""),
        ({"missing": {"contains": "x"}}, ""),
        ({"status": {"exact": "x"}, "rank": {"exact": 2}}, ""),
        ({"status": {"exact": "x"}, "rank": {"exact": 2}, "_aggregate": "or"}, "acd"),
        ({"status": {"exact": "x", "within": ["y"]}}, ""),
        ({"status": {"exact": "x", "within": ["y"]}, "_aggregate": "or"}, "abce"),
        ({"_must": {"group": {"exact": "g"}}, "_aggregate": "or"}, "ace"),
        ({"_must": {"group": {"exact": "g"}}, "rank": {"exact": 2}, "_aggregate": "or"}, ""),
        (
            {
                "_must": [{"group": {"exact": "g"}}, {"status": {"within": ["x", "y"]}}],
                "name": {"exact": "a"},
                "rank": {"exact": 1},
                "_aggregate": "or",
            },
            "ac",
        ),
        ({"_must": {"group": {"exact": "g"}}, "group": {"exact": "h"}}, ""),
        ({"_must": None}, "abcde"),
    ],
)
async def test_filters(collection: ListBasedCollection[Item], filter: Any, expected: str) -> None:
    await collection.insert(_zoo())

    assert await names(collection, filter) == expected
    page = await collection.query(filter, limit=1)
    assert (len(page), page.total) == (min(1, len(expected)), len(expected))
    assert (await collection.query(filter, limit=0)).total == len(expected)


@pytest.mark.parametrize(
    ("filter", "error", "message"),
    [
        (
            {"name": {"like": "x"}},
            ValueError,
            "Unsupported filter operator 'like' for field 'name'",
        ),
        ({"_aggregate": "xor"}, ValueError, "Unsupported filter aggregate"),
        ({"name": {"within": 5}}, ValueError, "within"),
        ({"name": {"within": "text"}}, ValueError, "within"),
        ({"_must": "x"}, TypeError, "_must"),
        ({"_must": ["x"]}, TypeError, "_must"),
        (
            {"_must": [{"name": {"exact": "a"}}, {"name": {"exact": "b"}}]},
            ValueError,
            "Duplicate operator 'exact' for field 'name'",
        ),
    ],
)
async def test_bad_filters(
    collection: ListBasedCollection[Item], filter: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await collection.query(filter)
    with pytest.raises(error, match=message):
        await collection.get(filter)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (None, "abcde"),
        ({"name": "name", "order": "desc"}, "edcba"),
        ({"name": "rank", "order": "asc"}, "cdabe"),
        ({"name": "rank", "order": "desc"}, "adcbe"),
        ({"name": "status", "order": "asc"}, "acbed"),
        ({"name": "status", "order": "desc"}, "dbeac"),
        ({"name": "status"}, "acbed"),
    ],
)
async def test_sorting(collection: ListBasedCollection[Item], sort: Any, expected: str) -> None:
    await collection.insert(_zoo())
    assert await names(collection, sort=sort) == expected
    assert await names(collection, sort=sort, limit=2, offset=1) == expected[1:3]
    first = await collection.get(sort=sort)
    assert first is not None
    assert first.name == expected[0]


@pytest.mark.parametrize(
    ("sort", "message"),
    [
        ({"name": "", "order": "asc"}, "name"),
        ({"order": "asc"}, "name"),
        ({"name": "name", "order": "up"}, "Unsupported sort order"),
        ({"name": "bogus_time", "order": "asc"}, "field does not exist on Item"),
        ({"name": "model_config", "order": "asc"}, "field does not exist on Item"),
    ],
)
async def test_bad_sorts(collection: ListBasedCollection[Item], sort: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await collection.query(sort=sort)


def test_sorting_what_has_no_order() -> None:
    values = [Item(group="g", name="a", tags=["x"]), Item(group="g", name="b", tags=["y"])]
    values[0].__dict__["tags"] = {}
    with pytest.raises(ValueError, match="tags"):
        sort_items(values, "tags", "asc")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_the_head_of_a_sort_is_that_of_the_whole(order: Any) -> None:
    generator = random.Random(1)
    values = [
        Item(group="g", name=str(n), rank=generator.choice([None, *range(9)])) for n in range(300)
    ]
    whole = sort_items(values, "rank", order)
    assert sort_items(values, "rank", order, head=7)[:7] == whole[:7]
    assert sort_items(values, "rank", order, head=290)[:290] == whole[:290]


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [(-1, 0, "abcde"), (-1, 3, "de"), (2, 1, "bc"), (0, 0, ""), (9, 4, "e"), (2, 9, "")],
)
async def test_paging(
    collection: ListBasedCollection[Item], limit: int, offset: int, expected: str
) -> None:
    await collection.insert(_zoo())
    for sort in (None, {"name": "name", "order": "asc"}):
        page = await collection.query(None, sort, limit, offset)  # type: ignore[arg-type] # literals
        assert "".join(item.name for item in page) == expected
        assert (page.limit, page.offset, page.total) == (limit, offset, 5)


async def test_windows_beyond_every_index(collection: ListBasedCollection[Item]) -> None:
    await collection.insert(_zoo())
    assert len((await collection.query(limit=2**63)).items) == 5
    assert (await collection.query(limit=2, offset=2**64)).items == []


@pytest.mark.parametrize(("limit", "offset"), [(-2, 0), (1, -1)])
async def test_windows_that_make_no_sense(
    collection: ListBasedCollection[Item], limit: int, offset: int
) -> None:
    with pytest.raises(ValueError, match=r"limit|offset"):
        await collection.query(limit=limit, offset=offset)


@pytest.mark.parametrize("sort", [None, {"name": "name", "order": "desc"}])
@pytest.mark.parametrize(("limit", "offset", "found"), [(10**30, 0, True), (5, 10**30, False)])
async def test_windows_beyond_all_numbers(
    collection: ListBasedCollection[Item], sort: Any, limit: int, offset: int, found: bool
) -> None:
    everything = await collection.query()
    page = await collection.query(sort=sort, limit=limit, offset=offset)
    assert (page.total, len(page.items)) == (everything.total, everything.total if found else 0)


async def test_an_index_keeps_insertion_order_through_changes() -> None:
    collection = ListBasedCollection([], Item, KEYS, indexes=["status"])
    generator = random.Random(2)
    stored = {f"{n}": Item(group=f"{n % 7}", name=f"{n}", status="a") for n in range(3000)}
    await collection.insert(list(stored.values()))
    for _ in range(6000):
        name = generator.choice(list(stored))
        if generator.random() < 0.1:
            await collection.delete([stored.pop(name)])
        else:
            stored[name] = stored[name].model_copy(update={"status": generator.choice("abc")})
            await collection.update([stored[name]], ["status"])

    for statuses in (["a"], ["b", "c"], ["c", "a"]):
        expected = [item for item in stored.values() if item.status in statuses]
        page = await collection.query({"status": {"within": statuses}})
        assert list(page) == expected
        assert page.total == len(expected)


def test_ordered_integers() -> None:
    generator = random.Random(3)
    ordered, model = OrderedIntegers(), set[int]()
    for _ in range(20_000):
        number = generator.randrange(5000)
        if number in model:
            ordered.remove(number)
            model.remove(number)
        else:
            ordered.add(number)
            model.add(number)
    assert list(ordered) == sorted(model)
    assert len(ordered) == len(model)


def test_construction() -> None:
    with pytest.raises(ValueError, match="primary_keys"):
        ListBasedCollection([], Item, [])
    with pytest.raises(TypeError, match="dict"):
        ListBasedCollection([], dict, ["a"])
    assert repr(ListBasedCollection(items("g/a"), Item, KEYS)) == "<ListBasedCollection[Item] (1)>"


def test_normalized_filter() -> None:
    assert normalize_filter_options({"a": {"exact": 1}, "_must": {"b": {"exact": 2}}}) == (
        {"a": {"exact": 1}},
        {"b": {"exact": 2}},
        "and",
    )


# Queue


async def test_queue() -> None:
    queue = DequeBasedQueue(str, ["a"])
    assert await queue.enqueue(["b", "a", "c"]) == ["b", "a", "c"]
    assert await queue.size() == 4
    assert await queue.has("a")
    assert not await queue.has("z")
    assert await queue.peek(2) == ["a", "b"]
    assert await queue.dequeue() == ["a"]
    assert await queue.has("a")
    assert await queue.dequeue(0) == await queue.dequeue(-1) == await queue.peek(0) == []
    assert await queue.dequeue(9) == ["b", "a", "c"]
    assert not await queue.has("a")
    assert repr(queue) == "<DequeBasedQueue[str] (0)>"
    assert queue.item_type() is str


async def test_queue_discard_and_enqueue_missing() -> None:
    queue = DequeBasedQueue(str, ["a", "b", "c", "b"])
    assert await queue.discard(["b", "z"]) == 2
    assert await queue.size() == 2
    assert not await queue.has("b")
    assert await queue.peek(5) == ["a", "c"]
    assert await queue.enqueue_missing(["c", "b", "b"]) == ["b"]
    assert await queue.dequeue(5) == ["a", "c", "b"]
    assert await queue.size() == 0
    assert await queue.discard(["a"]) == 0


async def test_queue_refuses_wrong_types_whole() -> None:
    queue = DequeBasedQueue(str)
    wrong: Any = ["a", 1]
    with pytest.raises(TypeError, match="int"):
        await queue.enqueue(wrong)
    assert await queue.size() == 0


async def test_queue_of_unhashable_items() -> None:
    queue = DequeBasedQueue(Item, items("g/a", "g/b"))
    assert await queue.has(items("g/b")[0])
    assert await queue.discard(items("g/a")) == 1
    assert await queue.dequeue(5) == items("g/b")


# Counters


async def test_key_value() -> None:
    values: DictBasedKeyValue[str, Any] = DictBasedKeyValue({"a": 1})
    assert await values.get("a") == 1
    assert await values.get("z", 5) == 5
    await values.set("b", 2)
    assert await values.has("b")
    assert await values.size() == 2
    assert await values.pop("b") == 2
    assert await values.pop("b", 7) == 7
    assert await values.inc("a", 4) == 5
    assert await values.inc("n", 3) == 3
    assert await values.chmax("a", 2) == 5
    assert await values.chmax("a", 9) == 9
    assert await values.chmax("m", 4) == 4
    assert await values.inc_many({"a": 1, "x": 2}) == {"a": 10, "x": 2}
    assert await values.chmax_many({"a": 1, "x": 5}) == {"a": 10, "x": 5}


@pytest.mark.parametrize("wrong", [True, "1", None])
async def test_key_value_counts_numbers_only(wrong: Any) -> None:
    values: DictBasedKeyValue[str, Any] = DictBasedKeyValue({"text": "x", "n": 1})
    for method in (values.inc, values.chmax):
        with pytest.raises(TypeError):
            await method("n", wrong)
        with pytest.raises(TypeError):
            await method("text", 1)
    assert await values.get("n") == 1


async def test_key_value_copies_its_mapping() -> None:
    given = {"a": 1}
    values = DictBasedKeyValue(given)
    await values.set("a", 2)
    assert given == {"a": 1}


# Sections


@pytest.mark.parametrize("lock_type", ["asyncio", "thread"])
async def test_sections_exclude_by_label(lock_type: Any) -> None:
    collections = InMemoryLightningCollections(lock_type)
    order: list[str] = []

    async def section(name: str, *labels: Any, mode: Any = "rw") -> None:
        async with collections.atomic(mode=mode, labels=labels) as bound:
            assert bound is collections
            order.append(f"{name}+")
            await asyncio.sleep(0.01)
            order.append(f"{name}-")

    await asyncio.gather(section("a", "rollouts", "spans"), section("b", "spans", "attempts"))
    assert order == ["a+", "a-", "b+", "b-"]
    order.clear()
    await asyncio.gather(section("a", "rollouts"), section("b", "spans"))
    assert order == ["a+", "b+", "a-", "b-"]
    order.clear()
    await asyncio.gather(section("a"), section("b", "spans"))
    assert order == ["a+", "a-", "b+", "b-"]
    order.clear()
    await asyncio.gather(section("a", "spans"), section("b", "spans", mode="r"))
    assert order[:2] == ["a+", "b+"]


async def test_a_failed_or_cancelled_section_releases() -> None:
    collections = InMemoryLightningCollections("asyncio")
    with pytest.raises(RuntimeError, match="boom"):
        async with collections.atomic():
            raise RuntimeError("boom")
    async with collections.atomic(labels=["spans"]):
        waiting = asyncio.create_task(collections.execute(_nothing, labels=["rollouts", "spans"]))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(collections.execute(_nothing), 1)


async def _nothing(collections: InMemoryLightningCollections) -> None:
    return None


def test_sections_exclude_between_threads_and_loops() -> None:
    collections = InMemoryLightningCollections("thread")
    inside = 0
    seen: list[int] = []

    async def work() -> None:
        nonlocal inside
        for _ in range(50):
            async with collections.atomic(labels=["rollouts"]):
                inside += 1
                await asyncio.sleep(0.0001)
                seen.append(inside)
                inside -= 1

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [1] * 300


async def test_collections_pickle() -> None:
    collections = InMemoryLightningCollections("asyncio")
    await collections.rollout_queue.enqueue(["a"])
    copy = pickle.loads(pickle.dumps(collections))
    async with copy.atomic():
        assert await copy.rollout_queue.dequeue() == ["a"]
    assert await collections.rollout_queue.size() == 1
