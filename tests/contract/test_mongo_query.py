"""The same question has the same answer in memory and in MongoDB."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mongo import MongoServer, mongo_database, mongo_server, server_name  # noqa: F401 - fixtures
from pydantic import BaseModel

from agl.errors import InvalidRequestError
from agl.store.collection import Collection, ListBasedCollection
from agl.store.collection.mongo import MongoBasedCollection, MongoClientPool


class Item(BaseModel):
    key: str
    text: str | None = None
    label: Literal["new", "old"] = "new"
    number: int | None = None
    ratio: float | None = None
    rank: int = 0
    tags: list[str] = []
    anything: Any = None


TEXTS = ["", "a", "A", "ab", "a.b", "a\0b", "é", "\U0001d11e", "(", "\\", "new", "a b\nc", "$a"]
NUMBERS = [-(2**63), -1, 0, 1, 2, 2**53 + 1, 2**63 - 1]
RATIOS = [-1e300, -0.5, -0.0, 0.0, 1.0, 2.0, 2.0**53, 2.0**70]
ANYTHING = [None, "a", 1, True, ["a", 1], [], {"a": 1}, {"a.b": {"$c": 2}}, 2**70]

texts = st.sampled_from(TEXTS)
items = st.lists(
    st.builds(
        Item,
        key=st.uuids().map(str),
        text=st.none() | texts,
        label=st.sampled_from(["new", "old"]),
        number=st.none() | st.sampled_from(NUMBERS),
        ratio=st.none() | st.sampled_from(RATIOS),
        rank=st.integers(0, 2),
        tags=st.lists(texts, max_size=2),
        anything=st.sampled_from(ANYTHING),
    ),
    max_size=9,
)

FIELDS = ["text", "label", "number", "ratio", "rank", "tags", "anything", "unknown"]
operands = (
    texts
    | st.sampled_from([*NUMBERS, *RATIOS, *ANYTHING, True, False, "\ud800", 2**70, 2**2000])
    | st.none()
)
operators = st.fixed_dictionaries(
    {},
    optional={
        "exact": operands,
        "within": st.none() | st.lists(operands, max_size=4) | st.just(("a", "new")),
        "contains": operands,
    },
)
conditions = st.dictionaries(st.sampled_from(FIELDS), operators, max_size=3)
filters = st.none() | st.builds(
    lambda plain, must, aggregate: {**plain, **must, **aggregate},
    conditions,
    st.fixed_dictionaries({}, optional={"_must": conditions | st.lists(conditions, max_size=2)}),
    st.fixed_dictionaries({}, optional={"_aggregate": st.sampled_from(["and", "or"])}),
)
sorts = st.none() | st.fixed_dictionaries(
    {"name": st.sampled_from(FIELDS), "order": st.sampled_from(["asc", "desc"])}
)
windows = st.tuples(st.integers(-1, 6), st.integers(0, 7))
questions = st.lists(st.tuples(filters, sorts, windows), min_size=1, max_size=6)


@pytest.fixture
async def pool(mongo_server: MongoServer) -> AsyncGenerator[MongoClientPool]:  # noqa: F811
    async with MongoClientPool(mongo_uri=mongo_server.uri) as pool:
        yield pool


async def answer(collection: Collection[Item], question: Any) -> Any:
    filter, sort, (limit, offset) = question
    try:
        found = await collection.query(filter, sort, limit, offset)
        first = await collection.get(filter, sort)
    except InvalidRequestError as error:
        return type(error)
    return list(found), found.total, first


def collections(
    pool: MongoClientPool, database: str
) -> tuple[ListBasedCollection[Item], MongoBasedCollection[Item]]:
    """Empty ones; in MongoDB a partition of its own."""
    partition = uuid.uuid4().hex
    return ListBasedCollection([], Item, ["key"]), MongoBasedCollection(
        pool, database, "items", partition, ["key"], Item
    )


@settings(
    max_examples=30 if server_name() == "secantusd-py" else 150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stored=items, asked=questions)
async def test_every_question_has_one_answer(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
    stored: list[Item],
    asked: list[Any],
) -> None:
    memory, mongo = collections(pool, mongo_database)
    await memory.insert(stored)
    await mongo.insert(stored)
    for question in asked:
        assert await answer(mongo, question) == await answer(memory, question), question


async def test_every_condition_alone(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
) -> None:
    stored = [Item(key=f"t{n}", text=text, tags=[text]) for n, text in enumerate(TEXTS)]
    stored += [Item(key=f"n{n}", number=number) for n, number in enumerate(NUMBERS)]
    stored += [Item(key=f"r{n}", ratio=ratio, rank=n % 3) for n, ratio in enumerate(RATIOS)]
    stored += [Item(key=f"a{n}", anything=one, label="old") for n, one in enumerate(ANYTHING)]
    memory, mongo = collections(pool, mongo_database)
    await memory.insert(stored)
    await mongo.insert(stored)
    values = [*TEXTS, *NUMBERS, *RATIOS, *ANYTHING, True, False, "\ud800", 2**70, 2**2000]
    for field in FIELDS:
        for value in values:
            for condition in ({"exact": value}, {"within": [value, "a"]}, {"contains": value}):
                question = ({field: condition}, None, (-1, 0))
                assert await answer(mongo, question) == await answer(memory, question), question


async def test_pages_cross_from_values_into_nulls(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
) -> None:
    """Every window over values with equal ones among them, followed by nulls."""
    stored = [Item(key=str(i), number=[None, 3, 1, 3, None, 2][i % 6]) for i in range(12)]
    memory, mongo = collections(pool, mongo_database)
    await memory.insert(stored)
    await mongo.insert(stored)
    for order in ("asc", "desc"):
        for offset in (0, 1, 7, 8, 9, 11, 12, 20):
            for limit in (-1, 0, 1, 2, 4, 12, 2**40):
                sort = {"name": "number", "order": order}
                question = ({"label": {"exact": "new"}}, sort, (limit, offset))
                assert await answer(mongo, question) == await answer(memory, question), question


async def test_keys_are_found_in_insertion_order_however_they_are_asked_for(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
) -> None:
    memory, mongo = collections(pool, mongo_database)
    stored = [Item(key=str(key), rank=key % 3) for key in (5, 3, 9, 1, 7)]
    await memory.insert(stored)
    await mongo.insert(stored)
    many = [str(number) for number in range(300)]
    for keys in (["1", "9", "5", "nobody"], many, []):
        for sort in (None, {"name": "rank", "order": "desc"}):
            for window in ((-1, 0), (2, 1), (0, 0)):
                question = ({"key": {"within": keys}}, sort, window)
                assert await answer(mongo, question) == await answer(memory, question), question


@pytest.mark.parametrize(
    ("filter", "sort", "window"),
    [
        ({"text": {"like": "a"}}, None, (-1, 0)),
        ({"text": {"within": "a"}}, None, (-1, 0)),
        ({"_aggregate": "xor"}, None, (-1, 0)),
        ({"_must": [{"text": {"exact": "a"}}, {"text": {"exact": "b"}}]}, None, (-1, 0)),
        (None, {"name": "nope", "order": "asc"}, (-1, 0)),
        (None, {"name": "text", "order": "up"}, (-1, 0)),
        (None, {"order": "asc"}, (-1, 0)),
        (None, None, (-2, 0)),
        (None, None, (1, -1)),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_asked(
    filter: Any, sort: Any, window: tuple[int, int]
) -> None:
    nowhere = MongoClientPool(mongo_uri="mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=1")
    mongo = MongoBasedCollection(nowhere, "d", "items", "p", ["key"], Item)
    with pytest.raises(InvalidRequestError):
        await mongo.query(filter, sort, *window)
    await nowhere.close()


async def test_partitions_do_not_see_each_other(
    pool: MongoClientPool,
    mongo_database: str,  # noqa: F811
) -> None:
    _, one = collections(pool, mongo_database)
    _, other = collections(pool, mongo_database)
    await one.insert([Item(key="k", rank=1)])
    await other.insert([Item(key="k", rank=2)])
    assert [item.rank for item in await one.query()] == [1]
    assert (await other.query({"_aggregate": "or", "rank": {"exact": 1}})).total == 0
    assert await one.size() == 1
