"""Every document of one database into a stream, and out of it again, through the driver alone.

The stream is gzip around: one line of JSON (what is in it), for each collection its documents as
BSON and four zero bytes, and one more line of JSON (how many there were). Reading happens at one
point in time over all collections (a snapshot), whatever is written meanwhile.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from bson.codec_options import CodecOptions
from bson.json_util import dumps, loads
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from agl.config import MongoSettings
from agl.errors import EnvironmentFault
from agl.store.mongo_admin.connect import connected, fault_of, place

if TYPE_CHECKING:
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.asynchronous.database import AsyncDatabase

MAGIC = "agl-mongo-dump"
FORMAT = 1
BATCH_DOCUMENTS, BATCH_BYTES = 1000, 8 << 20
SNAPSHOT_TOO_OLD = 239
# What tells that a database is in use; the rest a store writes by itself when it starts.
CONTENT = ("rollouts", "spans", "attempts", "resources")

Document = dict[str, Any]
Counts = dict[str, int]
Raw = CodecOptions(document_class=RawBSONDocument)


@dataclass(frozen=True)
class Collection:
    """A collection: its options and indexes, as ``listCollections`` and ``listIndexes`` tell."""

    name: str
    options: Document
    indexes: tuple[Document, ...]


# --- out ----------------------------------------------------------------------------------------


async def dump(settings: MongoSettings, target: IO[bytes], *, snapshot: bool = True) -> Counts:
    """Write the whole database to ``target``; returns the number of documents by collection.

    Raises EnvironmentFault.
    """
    async with connected(settings) as client:
        database = client[settings.database]
        collections = await _collections(database)
        info = await client.admin.command("buildInfo")
        header = {
            "magic": MAGIC,
            "format": FORMAT,
            "database": settings.database,
            "server": info["version"],
            "time": time.time(),
            "collections": [asdict(one) for one in collections],
        }
        counts: Counts = {}
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=3, mtime=0) as out:
            out.write(dumps(header).encode() + b"\n")
            async with client.start_session(snapshot=snapshot) as session:
                for one in collections:
                    counts[one.name] = await _dump_one(database, one.name, session, out)
            out.write(json.dumps({"counts": counts}).encode() + b"\n")
    return counts


async def _collections(database: AsyncDatabase[Document]) -> list[Collection]:
    described: list[Collection] = []
    async for found in await database.list_collections():
        name = str(found["name"])
        if not name.startswith("system.") and found.get("type", "collection") == "collection":
            indexes = [dict(index) async for index in await database[name].list_indexes()]
            options = dict(cast("Document", found.get("options") or {}))
            described.append(Collection(name, options, tuple(indexes)))
    return sorted(described, key=lambda one: one.name)


async def _dump_one(
    database: AsyncDatabase[Document],
    name: str,
    session: AsyncClientSession,
    out: gzip.GzipFile,
) -> int:
    count = 0
    try:
        async for batch in database[name].find_raw_batches({}, session=session):
            count += sum(1 for _ in _documents(cast("bytes", batch)))
            out.write(cast("bytes", batch))
    except OperationFailure as error:
        if error.code != SNAPSHOT_TOO_OLD:
            raise
        raise EnvironmentFault(
            f"collection {name}: reading takes longer than MongoDB keeps a snapshot (5 minutes)",
            remedy="stop the store (docker stop agl-app-1), run this with --no-snapshot, start it",
        ) from error
    out.write(bytes(4))
    return count


def _documents(batch: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(batch):
        end = start + int.from_bytes(batch[start : start + 4], "little")
        yield batch[start:end]
        start = end


# --- in -----------------------------------------------------------------------------------------


async def check_empty(settings: MongoSettings) -> None:
    """Raises EnvironmentFault when the database holds what a store was given."""
    async with connected(settings) as client:
        for name in CONTENT:
            if await client[settings.database][name].find_one({}, {"_id": 1}) is not None:
                raise EnvironmentFault(
                    f"database {settings.database!r} at {place(settings)} holds {name} already",
                    remedy="--replace deletes what it holds",
                )


async def load(settings: MongoSettings, source: IO[bytes]) -> Counts:
    """Make the database what ``source`` holds; returns the number of documents by collection.

    Raises EnvironmentFault; before anything is changed when the stream is none of ours.
    """
    with gzip.GzipFile(fileobj=source, mode="rb") as stream:
        try:
            return await _load(settings, stream)
        except (EOFError, gzip.BadGzipFile, ValueError) as error:
            raise EnvironmentFault(
                f"the backup is damaged: {error}", remedy="restore another one"
            ) from error


async def _load(settings: MongoSettings, stream: gzip.GzipFile) -> Counts:
    collections = _read_header(stream)
    counts: Counts = {}
    async with connected(settings, w="majority") as client:
        database = client[settings.database]
        for name in await database.list_collection_names():
            if not name.startswith("system."):
                await database.drop_collection(name)
        for one in collections:
            await database.create_collection(one.name, **one.options)
            counts[one.name] = await _load_one(database, one.name, stream, settings)
            await _create_indexes(database, one)
    wanted = json.loads(stream.readline() or b"{}").get("counts")
    if counts != wanted:
        raise ValueError(f"it held {counts} documents, and says {wanted}")
    return counts


def _read_header(stream: gzip.GzipFile) -> list[Collection]:
    line = stream.readline(1 << 24)
    header = cast("Document", loads(line)) if line.startswith(b'{"magic"') else {}
    if header.get("magic") != MAGIC:
        raise ValueError("it was not made by scripts/backup")
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, this program reads {FORMAT}")
    return [
        Collection(one["name"], one["options"], tuple(one["indexes"]))
        for one in cast("list[Document]", header["collections"])
    ]


async def _load_one(
    database: AsyncDatabase[Document],
    name: str,
    stream: gzip.GzipFile,
    settings: MongoSettings,
) -> int:
    collection = database.get_collection(
        name, codec_options=cast("Any", Raw), write_concern=WriteConcern("majority")
    )
    count = 0
    for batch in _batches(_read_documents(stream)):
        try:
            await collection.insert_many(cast("Any", batch), ordered=False)
        except PyMongoError as error:
            raise fault_of(error, settings) from error
        count += len(batch)
    return count


def _read_documents(stream: gzip.GzipFile) -> Iterator[RawBSONDocument]:
    while True:
        head = _exactly(stream, 4)
        size = int.from_bytes(head, "little")
        if size == 0:
            return
        if size < 5:
            raise ValueError(f"a document of {size} bytes")
        yield RawBSONDocument(head + _exactly(stream, size - 4))


def _exactly(stream: gzip.GzipFile, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends in the middle")
    return content


def _batches(documents: Iterable[RawBSONDocument]) -> Iterator[list[RawBSONDocument]]:
    batch: list[RawBSONDocument] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.raw)
        if len(batch) >= BATCH_DOCUMENTS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _create_indexes(database: AsyncDatabase[Document], one: Collection) -> None:
    made = {"v", "ns", "background"}
    wanted = [
        {key: value for key, value in index.items() if key not in made}
        for index in one.indexes
        if index["name"] != "_id_"
    ]
    if wanted:
        await database.command({"createIndexes": one.name, "indexes": wanted})
