"""The store's writes as commands of MongoDB.

The driver's bulks take each operation apart and make an object of each result in Python, which
under load costs a server process as much again as the rest of a command. So commands are put
together here, in one piece. The driver does the rest: servers, connections, sessions, encoding.

Nothing is repeated here; every write can be sent twice, and whoever sends it does so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteConcernError

from agl.store.collection.mongo.errors import DUPLICATE_KEY
from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.single_write import Outcome, Write

MOST_WRITES = 30_000
"""Writes in one command. The server takes 100,000, but answers in 16 MB at once."""

MOST_BYTES = 12 * 2**20
"""Bytes in one command, beyond its first write: the server takes 16 MB and a little."""

Answer = Mapping[str, Any]


async def bulk_write(
    database: AsyncDatabase[Document],
    writes: Sequence[Write],
    *,
    again: bool = False,
    session: AsyncClientSession | None = None,
) -> list[Outcome]:
    """Carry out writes to several collections together, each for itself (MongoDB 8.0).

    Args:
        database: Where the collections are.
        writes: What to carry out.
        again: They have been sent before.
        session: Of a transaction: in order then, and all or none.

    Raises:
        PyMongoError: the server refused, or it is open what was done; within a transaction
            also when one of the writes failed.
    """
    found: list[Outcome] = []
    for piece in _pieces(writes):
        places: dict[str, int] = {}
        operations = [
            write.operation(places.setdefault(write.collection, len(places)), again=again)
            for write in piece
        ]
        command = {
            "bulkWrite": 1,
            "ops": operations,
            "nsInfo": [{"ns": f"{database.name}.{name}"} for name in places],
            "ordered": session is not None,
        }
        reply = await _run(database.client.admin, command, session)
        answers = {one["idx"]: one for one in reply["cursor"]["firstBatch"]}
        if session is not None:
            _raise_first(answers)
        found += [_outcome(write, answers[i]) for i, write in enumerate(piece)]
    return found


async def write_to(
    database: AsyncDatabase[Document],
    collection: str,
    writes: Sequence[Write],
    *,
    again: bool = False,
    session: AsyncClientSession | None = None,
) -> list[Outcome]:
    """Carry out inserts, or upserts, or a single update, in one collection.

    Args:
        database: Where it is.
        collection: Its name.
        writes: All inserts, or all upserts, or one update without upsert: of several the server
            does not tell which of them matched.
        again: They have been sent before.
        session: Of a transaction.

    Raises:
        PyMongoError: the server refused, or it is open what was done; within a transaction
            also when one of the writes failed.
    """
    found: list[Outcome] = []
    for piece in _pieces(writes):
        if piece[0].match is None:
            bodies = [write.to_send(again=again) for write in piece]
            command: dict[str, Any] = {"insert": collection, "documents": bodies}
        else:
            updates = [write.update(again=again) for write in piece]
            command = {"update": collection, "updates": updates}
        command["ordered"] = session is not None
        reply = await _run(database, command, session)
        errors = {one["index"]: one for one in reply.get("writeErrors", ())}
        if session is not None:
            _raise_first(errors)
        upserted = {one["index"]: one for one in reply.get("upserted", ())}
        n = reply["n"] if len(piece) == 1 else 1
        found += [
            _outcome(write, errors.get(i) or {"n": n, "upserted": upserted.get(i)})
            for i, write in enumerate(piece)
        ]
    return found


def _pieces(writes: Sequence[Write]) -> Generator[Sequence[Write]]:
    """What goes in one command each."""
    first = size = 0
    for i, write in enumerate(writes):
        size += write.size
        if i > first and (i - first >= MOST_WRITES or size > MOST_BYTES):
            yield writes[first:i]
            first, size = i, write.size
    yield writes[first:]


async def _run(
    database: AsyncDatabase[Document],
    command: dict[str, Any],
    session: AsyncClientSession | None,
) -> Answer:
    if session is None:
        command["writeConcern"] = database.client.write_concern.document
    reply = await database.command(command, session=session)
    concern = reply.get("writeConcernError")
    if concern is not None:
        raise WriteConcernError(concern.get("errmsg", ""), concern.get("code"), concern)
    return reply


def _outcome(write: Write, answer: Answer) -> Outcome:
    if "code" in answer:
        return Outcome(code=answer["code"], message=answer.get("errmsg", ""))
    if write.match is None:
        return Outcome(inserted=True)
    inserted = answer.get("upserted") is not None
    return Outcome(matched=answer["n"] > 0 and not inserted, inserted=inserted)


def _raise_first(answers: Mapping[int, Answer]) -> None:
    for answer in answers.values():
        if "code" in answer:
            kind = DuplicateKeyError if answer["code"] == DUPLICATE_KEY else OperationFailure
            raise kind(answer.get("errmsg", ""), answer["code"], answer)
