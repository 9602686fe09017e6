"""A database into a stream and out of it: every document, option and index as it was."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime
from typing import Any

import bson
import pymongo
import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures

from agl.config import MongoSettings
from agl.errors import EnvironmentFault
from agl.ops.mongo_dump import check_empty, dump, load

pytestmark = pytest.mark.timeout(180)

Document = dict[str, Any]


def filled(database: Any) -> None:
    """Documents of every kind of value, more than one batch of them, and indexes."""
    kinds = {
        "text": "ü",
        "number": 2**40,
        "fraction": 0.1,
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "binary": b"\x00\xff",
        "nothing": None,
        "list": [1, {"b": 1, "a": 2}],
    }
    database.rollouts.insert_many({**kinds, "partition_id": "p", "n": n} for n in range(1500))
    database.rollouts.create_index([("partition_id", 1), ("n", -1)], unique=True, name="by_n")
    database.rollouts.create_index("text", sparse=True)
    database.spans.insert_one({"_id": {"rollout": 1, "span": "x"}, "a": 1})
    database.create_collection("empty")


def seen(database: Any) -> Document:
    return {
        name: (
            sorted((dict(one) for one in database[name].find()), key=lambda one: str(one["_id"])),
            {index["name"]: index for index in map(dict, database[name].list_indexes())},
        )
        for name in database.list_collection_names()
    }


@pytest.fixture
def settings(mongo_server: MongoServer, mongo_database: str) -> MongoSettings:  # noqa: F811
    return MongoSettings(uri=mongo_server.uri, database=mongo_database)


async def test_what_was_dumped_comes_back_as_it_was(settings: MongoSettings) -> None:
    with pymongo.MongoClient[Document](settings.uri) as client:
        database = client[settings.database]
        filled(database)
        before = seen(database)
        stream = io.BytesIO()
        counts = await dump(settings, stream)
        assert counts == {"empty": 0, "rollouts": 1500, "spans": 1}
        client.drop_database(settings.database)
        database.rollouts.insert_one({"left": "over"})
        database.other.insert_one({"left": "over"})
        stream.seek(0)
        assert await load(settings, stream) == counts
        assert seen(database) == before


async def test_a_dump_is_of_one_point_in_time(
    settings: MongoSettings,
    mongo_server: MongoServer,  # noqa: F811
) -> None:
    """What is written while it reads is not in it, not even in collections that come later."""
    if mongo_server.name != "mongod":
        pytest.skip("the stand-ins accept snapshot sessions, but read the newest all the same")

    class Writing(io.BytesIO):
        def write(self, content: Any) -> int:
            database.spans.insert_one({"late": True})
            return super().write(content)

    with pymongo.MongoClient[Document](settings.uri) as client:
        database = client[settings.database]
        filled(database)
        stream = Writing()
        assert (await dump(settings, stream))["spans"] == 1
        assert database.spans.count_documents({"late": True}) > 0


async def test_content_is_not_overwritten_unasked(settings: MongoSettings) -> None:
    await check_empty(settings)
    with pymongo.MongoClient[Document](settings.uri) as client:
        client[settings.database].counters.insert_one({})
        await check_empty(settings)
        client[settings.database].spans.insert_one({})
    with pytest.raises(EnvironmentFault, match="holds spans already - --replace"):
        await check_empty(settings)


def packed(header: Document, *rest: bytes) -> bytes:
    return gzip.compress(json.dumps(header).encode() + b"\n" + b"".join(rest))


HEADER = {
    "magic": "agl-mongo-dump",
    "format": 1,
    "collections": [{"name": "a", "options": {}, "indexes": []}],
}
ONE = bson.encode({"_id": 1})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no gzip", "Not a gzipped file"),
        (gzip.compress(b"something else"), "was not made by scripts/backup"),
        (packed({**HEADER, "format": 2}), "has format 2"),
        (packed(HEADER, ONE, bytes(4), b'{"counts": {"a": 1}}')[:-9], "ended before"),
        (packed(HEADER, ONE, bytes(4), b'{"counts": {"a": 2}}'), "held"),
        (packed(HEADER, ONE[:-1]), "ends in the middle"),
        (packed(HEADER, b"\x03\x00\x00\x00"), "a document of 3 bytes"),
    ],
    ids=["no gzip", "other", "newer", "cut off", "lacks one", "cut document", "no document"],
)
async def test_a_damaged_one_is_named(
    settings: MongoSettings, content: bytes, problem: str
) -> None:
    with pytest.raises(EnvironmentFault, match=f"the backup is damaged: .*{problem}"):
        await load(settings, io.BytesIO(content))
