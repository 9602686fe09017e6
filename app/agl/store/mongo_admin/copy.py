"""Copies the data of a running MongoDB into another one.

What is the same on both sides already is left alone, so an interrupted copy goes on where it was,
and a second one brings what was written during the first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import ConnectionFailure

from agl.errors import EnvironmentFault
from agl.store.mongo_admin.connect import Client, Database, Document
from agl.store.mongo_admin.partitions import OF_UPSTREAM

SOURCE_PATIENCE_SECONDS = 60.0
"""How long a source that was just started may take until it can be read."""

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_BATCH = 500
_BATCH_BYTES = 16 << 20
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)

Raw = AsyncCollection[RawBSONDocument]


@dataclass(slots=True)
class Copied:
    """How far the copy of one collection is.

    Attributes:
        name: The collection.
        of: Documents in the source, when it began.
        seen: Documents looked at.
        written: Documents that were missing or different in the target.
        ours: Documents that a server of this version has written to in the target; left alone.
        missing: Documents of the source that the target has not, counted at the end.
    """

    name: str
    of: int
    seen: int = 0
    written: int = 0
    ours: int = 0
    missing: int = 0


async def wait_until_readable(source: Client, waiting: Callable[[], None]) -> None:
    """Until a server that was just started has opened its data and found its place in its set.

    Args:
        source: The server.
        waiting: Called as long as it cannot be read.

    Raises:
        EnvironmentFault: It is neither primary nor secondary of the replica set that it is in.
        PyMongoError: It cannot be reached.
    """
    deadline = time.monotonic() + SOURCE_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(TimeoutError, ConnectionFailure):
            async with asyncio.timeout(_ANSWER_SECONDS):
                if _is_readable(await source.admin.command("hello")):
                    return
        waiting()
        await asyncio.sleep(_LOOK_SECONDS)
    if not _is_readable(await source.admin.command("hello")):
        raise EnvironmentFault(
            "the server that --from names is neither primary nor secondary of its replica set",
            remedy="see why, there: mongosh --eval 'rs.status()'",
        )


def _is_readable(hello: Document) -> bool:
    in_a_set = "setName" in hello or bool(hello.get("isreplicaset"))
    return not in_a_set or bool(hello.get("isWritablePrimary") or hello.get("secondary"))


async def check_different(source: Client, target: Client, databases: tuple[str, str]) -> None:
    """Refuse to copy a database onto itself.

    Raises:
        EnvironmentFault: Both are the same.
    """
    if databases[0] != databases[1]:
        return
    ids = [
        (await client.admin.command("hello")).get("topologyVersion", {}).get("processId")
        for client in (source, target)
    ]
    same_server = ids[0] is not None and ids[0] == ids[1]
    if same_server or await source.address == await target.address:
        raise EnvironmentFault(
            "--from names the database that is to be copied to",
            remedy="name the old server by --from and the new one by --mongo-uri",
        )


async def copy(
    source: Database, target: Database, partition_id: str | None = None
) -> AsyncGenerator[Copied]:
    """Copy all collections, telling how far each is; the last word on each has ``missing``.

    Args:
        source: Is only read.
        target: Is written to.
        partition_id: Copies this partition; all of them by default.
    """
    wanted = {} if partition_id is None else {"partition_id": partition_id}
    for name in OF_UPSTREAM:
        from_, to = _raw(source, name), _raw(target, name)
        progress = Copied(name, await from_.count_documents(wanted))
        async for batch in _batches(from_, wanted):
            await _copy_batch(batch, to, progress)
            yield progress
        progress.missing = await _missing(from_, to, wanted)
        yield progress


def _raw(database: Database, name: str) -> Raw:
    return database.get_collection(name, codec_options=_RAW)  # pyright: ignore[reportReturnType]  # the codec's class


async def _batches(
    source: Raw, wanted: Mapping[str, Any], projection: Mapping[str, int] | None = None
) -> AsyncGenerator[list[RawBSONDocument]]:
    batch: list[RawBSONDocument] = []
    size = 0
    async for document in source.find(wanted, projection).sort("_id", 1):
        batch.append(document)
        size += len(document.raw)
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _copy_batch(batch: list[RawBSONDocument], target: Raw, progress: Copied) -> None:
    there = {
        document["_id"]: document
        async for document in target.find({"_id": {"$in": [one["_id"] for one in batch]}})
    }
    writes: list[ReplaceOne[RawBSONDocument]] = []
    for document in batch:
        known = there.get(document["_id"])
        if known is not None and "version" in known and "version" not in document:
            progress.ours += 1
        elif known is None or known.raw != document.raw:
            writes.append(ReplaceOne({"_id": document["_id"]}, document, upsert=True))
    if writes:
        await target.bulk_write(writes, ordered=False)
    progress.seen += len(batch)
    progress.written += len(writes)


async def _missing(source: Raw, target: Raw, wanted: Mapping[str, Any]) -> int:
    """Ids of the source that the target has not, looked up again after everything is written."""
    missing = 0
    async for batch in _batches(source, wanted, {"_id": 1}):
        ids = [document["_id"] for document in batch]
        missing += len(ids) - await target.count_documents({"_id": {"$in": ids}})
    return missing
