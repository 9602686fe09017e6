"""The store's writes as commands of MongoDB: what becomes of each, how many go in one command."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteConcernError

from agl.store.collection.mongo import commands
from agl.store.collection.mongo.commands import bulk_write, write_to
from agl.store.collection.mongo.single_write import Outcome, Write

Database = AsyncDatabase[dict[str, Any]]
DUPLICATE = 11000


@pytest.fixture
async def database(mongo_server: MongoServer, mongo_database: str) -> AsyncGenerator[Database]:  # noqa: F811
    async with AsyncMongoClient[dict[str, Any]](mongo_server.uri, w="majority") as client:
        await client[mongo_database].create_collection("a")
        await client[mongo_database].create_collection("b")
        await client[mongo_database]["a"].insert_one({"_id": 0, "version": 1})
        yield client[mongo_database]


async def need_bulk_write(database: Database) -> None:
    """Skip on a server that has no ``bulkWrite``."""
    try:
        await bulk_write(database, [update(0, 1)])
    except OperationFailure as error:
        assert error.code == 59, error
        pytest.skip("this server is older than MongoDB 8.0")


def insert(key: int, collection: str = "a") -> Write:
    return Write(collection, {"_id": key})


def update(key: int, version: int, *, upsert: bool = False) -> Write:
    return Write("a", {"$set": {"seen": 1}}, {"_id": key, "version": version}, upsert=upsert)


def shown(outcomes: Sequence[Outcome]) -> list[Any]:
    """The code of what failed, else whether it matched and whether it inserted."""
    return [one.code or (one.matched, one.inserted) for one in outcomes]


async def test_a_bulk_tells_what_became_of_each(database: Database) -> None:
    await need_bulk_write(database)
    writes = [insert(0), update(0, 1), insert(1), update(0, 2), insert(0, "b"), insert(1)]
    writes += [update(2, 0, upsert=True), update(0, 1, upsert=True)]
    assert shown(await bulk_write(database, writes)) == [
        *[DUPLICATE, (True, False), (False, True), (False, False), (False, True), DUPLICATE],
        *[(False, True), (True, False)],
    ]
    assert [one["_id"] async for one in database["a"].find()] == [0, 1, 2]
    assert [one["_id"] async for one in database["b"].find()] == [0]


async def test_a_command_for_one_collection_tells_it_too(database: Database) -> None:
    inserts = await write_to(database, "a", [insert(1), insert(0), insert(2)])
    assert shown(inserts) == [(False, True), DUPLICATE, (False, True)]
    upserts = [update(3, 0, upsert=True), update(0, 1, upsert=True), update(0, 9, upsert=True)]
    assert shown(await write_to(database, "a", upserts)) == [
        (False, True),
        (True, False),
        DUPLICATE,
    ]
    assert shown(await write_to(database, "a", [update(0, 1)])) == [(True, False)]
    assert shown(await write_to(database, "a", [update(0, 2)])) == [(False, False)]


@pytest.mark.parametrize("together", [True, False])
async def test_within_a_transaction_the_first_failure_is_raised(
    together: bool, database: Database
) -> None:
    if together:
        await need_bulk_write(database)
    writes = [insert(1), insert(0)]
    async with database.client.start_session() as session:
        with pytest.raises(DuplicateKeyError):
            async with await session.start_transaction():
                if together:
                    await bulk_write(database, writes, session=session)
                else:
                    await write_to(database, "a", writes, session=session)
    assert [one["_id"] async for one in database["a"].find()] == [0]


@pytest.mark.parametrize("together", [True, False])
async def test_many_go_in_several_commands(
    together: bool, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if together:
        await need_bulk_write(database)
    monkeypatch.setattr(commands, "MOST_WRITES", 3)
    monkeypatch.setattr(commands, "MOST_BYTES", 1000)
    sent: list[int] = []
    run = commands._run

    async def counted(*arguments: Any) -> Any:
        sent.append(len(arguments[1].get("ops") or arguments[1]["documents"]))
        return await run(*arguments)

    monkeypatch.setattr(commands, "_run", counted)
    sizes = [1, 1, 1, 1, 999, 1, 5000, 2, 1]
    writes = [Write("a", {"_id": key}, size=size) for key, size in enumerate(sizes)]
    send = bulk_write if together else lambda d, w: write_to(d, "a", w)
    outcomes = await send(database, writes)

    assert sent == [3, 2, 1, 1, 2]
    assert shown(outcomes) == [DUPLICATE, *[(False, True)] * 8]


async def test_a_failed_write_concern_is_an_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may be answered that a majority has not acknowledged."""
    answer = {"ok": 1, "n": 1, "writeConcernError": {"code": 64, "errmsg": "waiting timed out"}}

    async def command(*_: Any, **__: Any) -> dict[str, Any]:
        return answer

    monkeypatch.setattr(AsyncDatabase, "command", command)
    with pytest.raises(WriteConcernError) as caught:
        await write_to(database, "a", [insert(1)])
    assert caught.value.code == 64
