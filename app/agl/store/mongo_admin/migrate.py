"""Data of agent-lightning 0.3, brought into the form that this store writes.

The store reads 0.3's form as it is; this makes it fast. Servers may run meanwhile: every step is
guarded, can be interrupted and called again, and finds only what is left to do.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pymongo import UpdateOne

from agl.store import rules
from agl.store.collection.mongo.documents import from_document, model_fields
from agl.store.collection.mongo.indexes import (
    INDEXES,
    OBSOLETE,
    create_index,
    missing_indexes,
)
from agl.store.mongo_admin.connect import Database, Document
from agl.types import QUEUING_STATUSES, RUNNING_STATUSES, Attempt, Rollout

_BATCH = 500
_NOT_EMBEDDED: Mapping[str, Any] = {"attempts": {"$exists": False}}

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: what is done, how much of it by now, and how much there is."""

    what: str
    done: int
    of: int


async def plan(database: Database) -> list[Step]:
    """What :func:`migrate` would do; changes nothing."""
    steps: list[Step] = []
    for name, wanted in INDEXES.items():
        missing = await missing_indexes(database[name], wanted)
        steps += [Step(f"build index {name}.{index.name}", 0, 1) for index in missing]
        steps += [
            Step(f"drop index {name}.{index}", 0, 1) for index in await _obsolete(database, name)
        ]
    everything: Mapping[str, Any] = {}
    for what, name, condition in (
        ("embed the attempts of rollouts", "rollouts", _NOT_EMBEDDED),
        ("remove attempts that are embedded", "attempts", everything),
        ("remove queue entries", "rollout_queue", everything),
    ):
        count = await database[name].count_documents(condition)
        if count:
            steps.append(Step(what, 0, count))
    return steps


async def migrate(database: Database) -> AsyncGenerator[Step]:
    """Do it all, telling how far it is."""
    async for step in build_indexes(database):
        yield step
    async for step in embed_attempts(database):
        yield step
    async for step in _remove_embedded(database):
        yield step
    async for step in _remove_queue(database):
        yield step


# Indexes


async def build_indexes(database: Database) -> AsyncGenerator[Step]:
    """First those that are missing, then away with those that serve no query."""
    for name, wanted in INDEXES.items():
        for index in await missing_indexes(database[name], wanted):
            what = f"build index {name}.{index.name}"
            yield Step(what, 0, 1)
            await create_index(database[name], index)
            yield Step(what, 1, 1)
    for name in INDEXES:
        for index in await _obsolete(database, name):
            await database[name].drop_index(index)
            yield Step(f"drop index {name}.{index}", 1, 1)


async def _obsolete(database: Database, name: str) -> list[str]:
    unwanted = OBSOLETE.get(name, ())
    stored = await database[name].index_information()
    return [index for index in stored if index in unwanted]


# Attempts


async def embed_attempts(database: Database) -> AsyncGenerator[Step]:
    """Give each rollout document its attempts, its place in the queue and its deadline."""
    what = "embed the attempts of rollouts"
    total, done = await database["rollouts"].count_documents(_NOT_EMBEDDED), 0
    async for documents in _batches(database, "rollouts", _NOT_EMBEDDED):
        attempts = await _attempts_of(database, documents)
        queued = await _queued(database, documents)
        await database["rollouts"].bulk_write(
            [_embedding(one, attempts.get(_key(one), []), queued) for one in documents],
            ordered=False,
        )
        done += len(documents)
        yield Step(what, done, max(total, done))


def _embedding(
    document: Document, attempts: list[Attempt], queued: Mapping[Key, float]
) -> UpdateOne:
    rollout = from_document(document, Rollout)
    latest = max(attempts, key=lambda attempt: attempt.sequence_id, default=None)
    running = rollout.status in RUNNING_STATUSES and latest is not None
    values: Document = {
        "attempts": [model_fields(attempt) for attempt in attempts],
        "deadline": rules.deadline(rollout, latest) if running and latest is not None else None,
        "queued_at": queued.get(_key(document)),
        "version": os.urandom(9).hex(),
        "previous": [],
    }
    # A server that has embedded them meanwhile knows better.
    return UpdateOne({"_id": document["_id"], **_NOT_EMBEDDED}, {"$set": values})


async def _attempts_of(
    database: Database, rollouts: Iterable[Document]
) -> dict[Key, list[Attempt]]:
    found: dict[Key, list[Attempt]] = {}
    cursor = database["attempts"].find(_of_rollouts(rollouts, "rollout_id"))
    async for document in cursor.sort([("sequence_id", 1), ("_id", 1)]):
        found.setdefault(_key(document), []).append(from_document(document, Attempt))
    return found


async def _queued(database: Database, rollouts: Iterable[Document]) -> dict[Key, float]:
    """When those that wait were put into 0.3's queue; the last time counts."""
    waiting = [one for one in rollouts if one.get("status") in QUEUING_STATUSES]
    if not waiting:
        return {}
    wanted = {**_of_rollouts(waiting, "value"), "consumed": False}
    return {
        (entry["partition_id"], entry["value"]): _seconds(entry)
        async for entry in database["rollout_queue"].find(wanted).sort("_id", 1)
    }


def _seconds(entry: Document) -> float:
    created: Any = entry.get("created_at")
    if not isinstance(created, datetime):
        created = entry["_id"].generation_time
    return created.replace(tzinfo=UTC).timestamp()


def _of_rollouts(documents: Iterable[Document], field: str) -> Document:
    by_partition: dict[str, list[str]] = {}
    for document in documents:
        by_partition.setdefault(document["partition_id"], []).append(document["rollout_id"])
    return {
        "$or": [
            {"partition_id": partition_id, field: {"$in": ids}}
            for partition_id, ids in by_partition.items()
        ]
    }


# What is left over


async def _remove_embedded(database: Database) -> AsyncGenerator[Step]:
    """An attempt without a rollout that has it is kept."""
    what = "remove attempts that are embedded"
    total, done = await database["attempts"].count_documents({}), 0
    async for documents in _batches(database, "attempts", {}):
        embedded = await _embedded(database, documents)
        ids = [one["_id"] for one in documents if (*_key(one), one.get("attempt_id")) in embedded]
        await database["attempts"].delete_many({"_id": {"$in": ids}})
        done += len(documents)
        yield Step(what, done, max(total, done))


async def _embedded(database: Database, attempts: Iterable[Document]) -> set[tuple[str, str, str]]:
    projection = {"partition_id": 1, "rollout_id": 1, "attempts.attempt_id": 1}
    return {
        (*_key(root), attempt["attempt_id"])
        async for root in database["rollouts"].find(
            _of_rollouts(attempts, "rollout_id"), projection
        )
        for attempt in root.get("attempts", ())
    }


async def _remove_queue(database: Database) -> AsyncGenerator[Step]:
    """Consumed entries mean nothing; of the others the rollout documents know by now."""
    what = "remove queue entries"
    total, done = await database["rollout_queue"].count_documents({}), 0
    async for documents in _batches(database, "rollout_queue", {}):
        waiting = [one for one in documents if not one.get("consumed")]
        kept = await _not_embedded(database, waiting)
        ids = [
            one["_id"] for one in documents if (one["partition_id"], one.get("value")) not in kept
        ]
        await database["rollout_queue"].delete_many({"_id": {"$in": ids}})
        done += len(documents)
        yield Step(what, done, max(total, done))


async def _not_embedded(database: Database, entries: list[Document]) -> set[Key]:
    if not entries:
        return set()
    named = [{**entry, "rollout_id": entry["value"]} for entry in entries]
    wanted = {**_of_rollouts(named, "rollout_id"), **_NOT_EMBEDDED}
    projection = {"partition_id": 1, "rollout_id": 1}
    return {_key(root) async for root in database["rollouts"].find(wanted, projection)}


async def _batches(
    database: Database, name: str, condition: Mapping[str, Any]
) -> AsyncGenerator[list[Document]]:
    """All documents in the order of ``_id``, some at a time; those of before are not seen again."""
    last: Any = None
    while True:
        after = {} if last is None else {"_id": {"$gt": last}}
        found = database[name].find({**condition, **after}).sort("_id", 1).limit(_BATCH)
        documents = await found.to_list()
        if not documents:
            return
        yield documents
        last = documents[-1]["_id"]


def _key(document: Document) -> Key:
    return document["partition_id"], document["rollout_id"]
