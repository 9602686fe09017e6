"""Partitions of a database: which there are, who they are, and how they are removed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from agl.errors import EnvironmentFault
from agl.store.mongo_admin.connect import Database, Document
from agl.types import FINISHED_STATUSES

PARTITIONS = "partitions"
"""One document for each partition that a server has served: its instance id, and since when."""

OF_UPSTREAM = (
    "rollouts",
    "attempts",
    "spans",
    "resources",
    "workers",
    "rollout_queue",
    "span_sequence_ids",
)
"""Collections that agent-lightning 0.3 writes as well; every document names its partition."""

OWN = ("counters", "state")
_BATCH = 2000
_SAMPLE = 200


@dataclass
class Partition:
    """What a partition holds.

    Attributes:
        partition_id: Its name.
        counts: Documents by collection.
        size_bytes: About what they take, without indexes and compression.
        unfinished: Rollouts that are neither succeeded, failed nor cancelled.
        last_activity: Seconds since the epoch of the youngest start, end or heartbeat.
        instance_id: Who it is in health answers; ``None`` when it was never served by this version.
    """

    partition_id: str
    counts: dict[str, int] = field(default_factory=dict[str, int])
    size_bytes: int = 0
    unfinished: int = 0
    last_activity: float | None = None
    instance_id: str | None = None


async def instance_of(database: Database, partition_id: str) -> str:
    """The id by which health answers name this partition: the same in every server process, on
    every host and after every restart, as is the data; drawn when first asked for."""
    drawn = {"instance_id": uuid.uuid4().hex}
    await database[PARTITIONS].update_one(
        {"_id": partition_id},
        {"$setOnInsert": drawn, "$currentDate": {"served_at": True}},
        upsert=True,
    )
    instance_id = await known_instance(database, partition_id)
    if instance_id is None:
        raise EnvironmentFault(f"partition {partition_id!r} was pruned a moment ago")
    return instance_id


async def known_instance(database: Database, partition_id: str) -> str | None:
    """The same, but ``None`` when nobody has asked for it yet."""
    record = await database[PARTITIONS].find_one({"_id": partition_id})
    return None if record is None else str(record["instance_id"])


async def unfinished_rollouts(database: Database, partition_id: str) -> int:
    """Rollouts of the partition that still wait or run."""
    return await database["rollouts"].count_documents(
        {"partition_id": partition_id, "status": {"$nin": sorted(FINISHED_STATUSES)}}
    )


async def list_partitions(database: Database) -> list[Partition]:
    """Every partition of the database, by name. Counts through indexes; reads all rollouts."""
    found: dict[str, Partition] = {}
    there = await database.list_collection_names()
    for name in (name for name in OF_UPSTREAM if name in there):
        for partition_id in await database[name].distinct("partition_id"):
            partition = found.setdefault(partition_id, Partition(partition_id))
            count = await database[name].count_documents({"partition_id": partition_id})
            partition.counts[name] = count
            partition.size_bytes += int(count * await _average_size(database, name, partition_id))
    async for record in database[PARTITIONS].find():
        partition = found.setdefault(record["_id"], Partition(record["_id"]))
        partition.instance_id = record.get("instance_id")
    for partition in found.values():
        await _look_at_rollouts(database, partition)
    return sorted(found.values(), key=lambda partition: partition.partition_id)


async def _average_size(database: Database, name: str, partition_id: str) -> float:
    """Bytes of a document, by a few of them."""
    pipeline = [
        {"$match": {"partition_id": partition_id}},
        {"$limit": _SAMPLE},
        {"$group": {"_id": None, "size": {"$avg": {"$bsonSize": "$$ROOT"}}}},
    ]
    async for found in await database[name].aggregate(pipeline):
        return float(found["size"])
    return 0.0


async def _look_at_rollouts(database: Database, partition: Partition) -> None:
    partition.unfinished = await unfinished_rollouts(database, partition.partition_id)
    times: list[float | None] = [
        await _youngest(database, name, partition.partition_id, fields)
        for name, fields in (
            ("rollouts", ("start_time", "end_time")),
            ("workers", ("last_heartbeat_time", "last_busy_time", "last_idle_time")),
        )
    ]
    known = [moment for moment in times if moment is not None]
    partition.last_activity = max(known, default=None)


async def _youngest(
    database: Database, name: str, partition_id: str, fields: tuple[str, ...]
) -> float | None:
    grouping: Document = {"_id": None} | {field: {"$max": f"${field}"} for field in fields}
    pipeline = [{"$match": {"partition_id": partition_id}}, {"$group": grouping}]
    async for youngest in await database[name].aggregate(pipeline):
        known = [youngest[field] for field in fields if youngest.get(field) is not None]
        return max(known, default=None)
    return None


async def prune(database: Database, partition_id: str) -> AsyncGenerator[tuple[str, int]]:
    """Remove a partition; yields collection and number of documents after each batch.

    May be interrupted at any time and called again. Spans go first and the record of the partition
    last, so that what is left can still be found.
    """
    for name in ("spans", *(name for name in OF_UPSTREAM if name != "spans"), *OWN, "servers"):
        wanted = of_partition(partition_id)
        while True:
            ids = [
                document["_id"]
                async for document in database[name].find(wanted, {"_id": 1}).limit(_BATCH)
            ]
            if not ids:
                break
            gone = await database[name].delete_many({"_id": {"$in": ids}})
            yield name, gone.deleted_count
    await database[PARTITIONS].delete_one({"_id": partition_id})


def of_partition(partition_id: str) -> Document:
    """Selects the documents of a partition."""
    return {"partition_id": partition_id}
