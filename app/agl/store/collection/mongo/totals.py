"""Totals of a partition, kept as counters, so that nobody has to count.

Each event loop of each server process counts for itself in a document of its own (its *slot*),
which rides in the bulks that make the difference. It holds absolute numbers and rises by a serial
number, so it can be sent twice. What a transaction adds is added within it, in further documents of
the slot. A *base* document holds what was there before and what :meth:`Totals.reconcile` found.
The sum of all is exact whenever nothing is under way.

Names: ``rollouts:STATUS``, ``attempts``, ``spans``. Workers and resources are few and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pymongo.asynchronous.database import AsyncDatabase

from agl.store.collection.mongo.combine import Write
from agl.store.collection.mongo.pool import Document
from agl.utils.id import generate_id

logger = logging.getLogger(__name__)

COUNTERS = "counters"
COUNTED_DIRECTLY = ("workers", "resources")
FLUSH_SECONDS = 0.05
"""How long a correction waits for other writes to ride with."""

SLOT_SECONDS = 6 * 3600.0
"""A slot is given up when it has not been written for so long; others may then fold it."""

FOLD_SECONDS = 2 * SLOT_SECONDS
LOOK_SECONDS = 1.0
"""Between the two looks of a reconciliation."""


class Totals:
    """The counters of one event loop. Not safe to share between threads."""

    def __init__(self, partition_id: str) -> None:
        self._partition_id = partition_id
        self._busy_lanes: set[int] = set()
        self._dirty = False
        self._flush: asyncio.TimerHandle | None = None
        self.flush_now = lambda: None
        """Sends what :meth:`write` has to send, soon."""

        self._take_slot({})

    def _take_slot(self, numbers: Mapping[str, int]) -> None:
        self._slot = generate_id(16)
        self._numbers: dict[str, int] = dict(numbers)
        self._serial = 0
        self._written = time.monotonic()

    def write(self, delta: Mapping[str, int]) -> Write | None:
        """Count ``delta``; returns what makes the slot's document say so, if anything changed."""
        if time.monotonic() - self._written > SLOT_SECONDS and not self._dirty:
            self._take_slot({})
        self._add(delta, 1)
        if not delta and not self._dirty:
            return None
        self._dirty = False
        self._serial += 1
        self._written = time.monotonic()
        values = {
            "partition_id": self._partition_id,
            "numbers": dict(self._numbers),
            "serial": self._serial,
            "seen": time.time(),
        }
        match = {"_id": self._document_id("w"), "serial": {"$lt": self._serial}}
        return Write(COUNTERS, {"$set": values}, match, upsert=True)

    def take_back(self, delta: Mapping[str, int]) -> None:
        """What was counted did not happen."""
        if not delta:
            return
        self._add(delta, -1)
        self.correct()

    def count(self, delta: Mapping[str, int]) -> None:
        """Count what is known only afterwards."""
        if delta:
            self._add(delta, 1)
            self.correct()

    def correct(self) -> None:
        """See to it that the document follows, even if nothing else is written."""
        self._dirty = True
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(FLUSH_SECONDS, self._send)

    def flush_last(self) -> None:
        """Do not wait any longer."""
        if self._flush is not None:
            self._flush.cancel()
            self._send()

    def _send(self) -> None:
        self._flush = None
        if self._dirty:
            self.flush_now()

    def _add(self, delta: Mapping[str, int], sign: int) -> None:
        for name, number in delta.items():
            self._numbers[name] = self._numbers.get(name, 0) + sign * number

    def _document_id(self, lane: str) -> str:
        return f"{self._partition_id}/{self._slot}/{lane}"

    def transaction(self) -> TransactionLane:
        """The counters of one transaction; no two of this slot meet."""
        number = next(n for n in range(len(self._busy_lanes) + 1) if n not in self._busy_lanes)
        return TransactionLane(
            self._partition_id, self._document_id(f"t{number}"), self._busy_lanes, number
        )

    async def read(self, database: AsyncDatabase[Document]) -> dict[str, int]:
        """All totals, in one round trip."""
        pipeline: list[Mapping[str, Any]] = [{"$match": {"partition_id": self._partition_id}}]
        pipeline += [_counted(name, self._partition_id) for name in COUNTED_DIRECTLY]
        documents = await (await database[COUNTERS].aggregate(pipeline)).to_list()
        totals = self.sum(document for document in documents if "serial" in document)
        totals.update((d["name"], d["count"]) for d in documents if "name" in d)
        return totals

    async def read_counters(self, database: AsyncDatabase[Document]) -> dict[str, int]:
        """The totals that are counters, in one round trip."""
        found = database[COUNTERS].find({"partition_id": self._partition_id}, batch_size=10_000)
        return self.sum(await found.to_list())

    def sum(self, documents: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """The totals that counter documents make; our own as we know them."""
        ours = self._document_id("w")
        totals = dict(self._numbers)
        for document in documents:
            if document["_id"] != ours:
                for name, number in document["numbers"].items():
                    totals[name] = totals.get(name, 0) + number
        return totals


class TransactionLane:
    """Counters written within one transaction, in a document that no other one writes."""

    def __init__(self, partition_id: str, document_id: str, busy: set[int], number: int) -> None:
        self._partition_id = partition_id
        self._document_id = document_id
        self._busy = busy
        self._number = number

    def __enter__(self) -> TransactionLane:
        self._busy.add(self._number)
        return self

    def __exit__(self, *_: object) -> None:
        self._busy.discard(self._number)

    def write(self, delta: Mapping[str, int]) -> Write:
        """The write to carry out within the transaction."""
        update: dict[str, Any] = {
            "$inc": {f"numbers.{name}": number for name, number in delta.items()},
            "$set": {"partition_id": self._partition_id, "serial": 0, "seen": time.time()},
        }
        return Write(COUNTERS, update, {"_id": self._document_id}, upsert=True)


def _counted(collection: str, partition_id: str) -> Mapping[str, Any]:
    pipeline: list[Mapping[str, Any]] = [
        {"$match": {"partition_id": partition_id}},
        {"$group": {"_id": None, "count": {"$sum": 1}}},
        {"$project": {"_id": 0, "count": 1, "name": {"$literal": collection}}},
    ]
    return {"$unionWith": {"coll": collection, "pipeline": pipeline}}


class _Look(NamedTuple):
    truth: dict[str, int]
    counted: dict[str, int]
    serials: list[tuple[str, int]]


class Reconciler:
    """Compares the counters of a partition with what is there."""

    def __init__(self, database: AsyncDatabase[Document], partition_id: str) -> None:
        self._database = database
        self._partition_id = partition_id
        self._base = f"{partition_id}/base"

    async def prepare(self) -> None:
        """Count once what was there before there were counters."""
        counters = self._database[COUNTERS]
        if await counters.find_one({"_id": self._base}, {"_id": 1}) is not None:
            return
        look = await self._look()
        base = {
            "partition_id": self._partition_id,
            "numbers": _difference(look),
            "serial": 0,
            "seen": time.time(),
        }
        await counters.update_one({"_id": self._base}, {"$setOnInsert": base}, upsert=True)

    async def reconcile(self) -> dict[str, int]:
        """Correct a difference that stays the same over two looks while nobody writes.

        Returns what was added to the counters.
        """
        first = await self._look()
        await asyncio.sleep(LOOK_SECONDS)
        second = await self._look()
        difference = _difference(second)
        if not difference or first != second:
            return {}
        changes = {f"numbers.{name}": number for name, number in difference.items()}
        match = {"_id": self._base, "serial": dict(second.serials)[self._base]}
        result = await self._database[COUNTERS].update_one(
            match, {"$inc": {**changes, "serial": 1}}
        )
        if result.matched_count:
            logger.warning("Totals of partition %s corrected: %s", self._partition_id, difference)
        return difference if result.matched_count else {}

    async def fold(self) -> int:
        """Add what slots of ended processes hold to the base; returns how many documents went."""
        match = {
            "partition_id": self._partition_id,
            "_id": {"$ne": self._base},
            "seen": {"$lt": time.time() - FOLD_SECONDS},
        }
        old = await self._database[COUNTERS].find(match, limit=1000).to_list()
        folded = 0
        for document in old:
            folded += await self._fold_one(document)
        return folded

    async def _fold_one(self, document: Mapping[str, Any]) -> int:
        counters = self._database[COUNTERS]
        same = {"_id": document["_id"], "seen": document["seen"]}
        changes = {f"numbers.{name}": n for name, n in document["numbers"].items() if n}

        async def move(session: Any) -> int:
            gone = (await counters.delete_one(same, session=session)).deleted_count
            if gone:
                update = {"$inc": {**changes, "serial": 1}}
                await counters.update_one({"_id": self._base}, update, session=session)
            return gone

        async with self._database.client.start_session() as session:
            return await session.with_transaction(move)

    async def _look(self) -> _Look:
        counters = await (
            self._database[COUNTERS]
            .find({"partition_id": self._partition_id}, batch_size=10_000)
            .to_list()
        )
        truth = await self._count()
        counted: dict[str, int] = {}
        for document in counters:
            for name, number in document["numbers"].items():
                counted[name] = counted.get(name, 0) + number
        return _Look(truth, counted, sorted((d["_id"], d["serial"]) for d in counters))

    async def _count(self) -> dict[str, int]:
        mine = {"$match": {"partition_id": self._partition_id}}
        size: Mapping[str, Any] = {"$size": {"$ifNull": ["$attempts", []]}}
        group: Mapping[str, Any] = {"_id": "$status", "n": {"$sum": 1}, "attempts": {"$sum": size}}
        cursor = await self._database["rollouts"].aggregate([mine, {"$group": group}])
        rows = await cursor.to_list()
        truth = {f"rollouts:{row['_id']}": row["n"] for row in rows}
        truth["attempts"] = sum(row["attempts"] for row in rows) + await self._legacy_attempts()
        truth["spans"] = await self._database["spans"].count_documents(mine["$match"])
        return truth

    async def _legacy_attempts(self) -> int:
        """Attempts that 0.3 wrote and that are not yet embedded in their rollouts."""
        mine = {"partition_id": self._partition_id}
        if await self._database["attempts"].find_one(mine, {"_id": 1}) is None:
            return 0
        total = 0
        ids: list[str] = []
        apart = {**mine, "attempts": {"$exists": False}}
        async for one in self._database["rollouts"].find(apart, {"rollout_id": 1}):
            ids.append(one["rollout_id"])
            if len(ids) == 1000:
                total += await self._attempts_of(ids)
                ids = []
        return total + (await self._attempts_of(ids) if ids else 0)

    async def _attempts_of(self, rollout_ids: list[str]) -> int:
        match = {"partition_id": self._partition_id, "rollout_id": {"$in": rollout_ids}}
        return await self._database["attempts"].count_documents(match)


def _difference(look: _Look) -> dict[str, int]:
    names = sorted(look.truth.keys() | look.counted.keys())
    found = {name: look.truth.get(name, 0) - look.counted.get(name, 0) for name in names}
    return {name: number for name, number in found.items() if number}
