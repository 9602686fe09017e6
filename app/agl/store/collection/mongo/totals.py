"""Totals of a partition, kept as counters, so that nobody has to count.

Each event loop of each server process counts for itself in a document of its own (its *slot*),
which rides in the bulks that make the difference. It holds absolute numbers and rises by a serial
number, so it can be sent twice. What a transaction adds is added within it, in further documents of
the slot. A *base* document holds what was there before and what :meth:`Totals.reconcile` found.
The sum of all is exact whenever nothing is under way.

Names: ``rollouts:STATUS:MODE``, ``attempts`` and those of them by status ``attempts:STATUS`` and
not the first of their rollout ``retries``, ``spans``, and of the rollouts that succeeded or failed
those that lack something ``without_spans:MODE`` and ``without_reward:MODE``. Workers and resources
are few and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pymongo
from pymongo.asynchronous.database import AsyncDatabase

from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.single_write import Write
from agl.types.state import JUDGED_STATUSES
from agl.utils.id import generate_id

logger = logging.getLogger(__name__)

COUNTERS = "counters"
COUNTED_DIRECTLY = ("workers", "resources")
LACKS = ("spans", "reward")
FLUSH_SECONDS = 0.05
"""How long a correction waits for other writes to ride with."""

SLOT_SECONDS = 6 * 3600.0
"""A slot is given up when it has not been written for so long; others may then fold it."""

FOLD_SECONDS = 2 * SLOT_SECONDS
NAMES = 2
"""Which names a base counts by; one of an earlier version is counted anew."""

LOOK_SECONDS = 1.0
"""Between the two looks of a reconciliation."""

COUNT_SECONDS = 1800.0
"""How long counting the documents of a partition may take, which grows with them; no other command
of the store does, so the driver's patience is 30 s for those."""


def rollouts_in(totals: Mapping[str, int], statuses: Collection[str] = ()) -> int:
    """Rollouts of some statuses, or of all."""
    found = ((name.split(":"), number) for name, number in totals.items())
    return sum(
        number
        for parts, number in found
        if parts[0] == "rollouts" and (not statuses or parts[1] in statuses)
    )


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
        self._leave_old_slot()
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

    def _leave_old_slot(self) -> None:
        """Others may fold it from now on; what it holds is stored and counts as theirs."""
        if time.monotonic() - self._written > SLOT_SECONDS and not self._dirty:
            self._take_slot({})

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

    @property
    def partition_id(self) -> str:
        return self._partition_id

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
        self._leave_old_slot()
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
        base = await counters.find_one({"_id": self._base}, {"names": 1})
        if base is not None and base.get("names") == NAMES:
            return
        difference = _difference(await self._look())
        if base is not None:
            changes = {f"numbers.{name}": number for name, number in difference.items()}
            match = {"_id": self._base, "names": {"$ne": NAMES}}
            update = {"$inc": {**changes, "serial": 1}, "$set": {"names": NAMES}}
            await counters.update_one(match, update)
            return
        first = {
            "partition_id": self._partition_id,
            "numbers": difference,
            "names": NAMES,
            "serial": 0,
            "seen": time.time(),
        }
        await counters.update_one({"_id": self._base}, {"$setOnInsert": first}, upsert=True)

    async def reconcile(self) -> dict[str, int] | None:
        """Correct a difference that stays the same over two looks while nobody writes.

        Returns what was added to the counters; ``None`` if somebody wrote meanwhile.
        """
        first = await self._look()
        await asyncio.sleep(LOOK_SECONDS)
        second = await self._look()
        difference = _difference(second)
        if not difference:
            return {}
        if first != second:
            return None
        changes = {f"numbers.{name}": number for name, number in difference.items()}
        match = {"_id": self._base, "serial": dict(second.serials)[self._base]}
        result = await self._database[COUNTERS].update_one(
            match, {"$inc": {**changes, "serial": 1}}
        )
        if not result.matched_count:
            return None
        logger.warning("Totals of partition %s corrected: %s", self._partition_id, difference)
        return difference

    async def take_turn(self, since: float) -> bool:
        """Whether to reconcile: nobody else has begun since then, in seconds since the epoch."""
        match = {"_id": self._base, "reconciled": {"$not": {"$gt": since}}}
        update = {"$set": {"reconciled": time.time()}}
        return (await self._database[COUNTERS].update_one(match, update)).matched_count > 0

    async def give_turn_back(self) -> None:
        """It came to nothing."""
        await self._database[COUNTERS].update_one(
            {"_id": self._base}, {"$unset": {"reconciled": True}}
        )

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
        with pymongo.timeout(COUNT_SECONDS):
            truth = await self._count()
        counted: dict[str, int] = {}
        for document in counters:
            for name, number in document["numbers"].items():
                counted[name] = counted.get(name, 0) + number
        return _Look(truth, counted, sorted((d["_id"], d["serial"]) for d in counters))

    async def _count(self) -> dict[str, int]:
        truth: dict[str, int] = {}
        for row in await self._rollout_rows():
            _add_to(truth, _rollout_names(row["_id"]), row["n"])
        for row in [*await self._embedded_attempts(), *await self._legacy_attempts()]:
            _add_to(truth, _attempt_names(row["_id"]), row["n"])
        mine = {"partition_id": self._partition_id}
        truth["spans"] = await self._database["spans"].count_documents(mine)
        return truth

    async def _rollout_rows(self) -> list[Document]:
        fields = ("status", "mode", "lacks_spans", "lacks_reward")
        return await self._grouped("rollouts", {}, {name: f"${name}" for name in fields})

    async def _embedded_attempts(self) -> list[Document]:
        key = {"status": "$attempts.status", "number": "$attempts.sequence_id"}
        return await self._grouped("rollouts", {}, key, {"$unwind": "$attempts"})

    async def _grouped(
        self,
        collection: str,
        match: Mapping[str, Any],
        key: Mapping[str, Any],
        *before: Mapping[str, Any],
    ) -> list[Document]:
        mine = {"$match": {"partition_id": self._partition_id, **match}}
        group: Mapping[str, Any] = {"$group": {"_id": key, "n": {"$sum": 1}}}
        return await (await self._database[collection].aggregate([mine, *before, group])).to_list()

    async def _legacy_attempts(self) -> list[Document]:
        """Attempts that 0.3 wrote and that are not yet embedded in their rollouts."""
        mine = {"partition_id": self._partition_id}
        if await self._database["attempts"].find_one(mine, {"_id": 1}) is None:
            return []
        rows: list[Document] = []
        ids: list[str] = []
        apart = {**mine, "attempts": {"$exists": False}}
        async for one in self._database["rollouts"].find(apart, {"rollout_id": 1}):
            ids.append(one["rollout_id"])
            if len(ids) == 1000:
                rows += await self._attempts_of(ids)
                ids = []
        return rows + (await self._attempts_of(ids) if ids else [])

    async def _attempts_of(self, rollout_ids: list[str]) -> list[Document]:
        key = {"status": "$status", "number": "$sequence_id"}
        return await self._grouped("attempts", {"rollout_id": {"$in": rollout_ids}}, key)


def _add_to(totals: dict[str, int], names: Iterable[str], number: int) -> None:
    for name in names:
        totals[name] = totals.get(name, 0) + number


def _rollout_names(key: Mapping[str, Any]) -> list[str]:
    mode = key.get("mode") or "unknown"
    names = [f"rollouts:{key['status']}:{mode}"]
    if key["status"] in JUDGED_STATUSES:
        names += [f"without_{what}:{mode}" for what in LACKS if key.get(f"lacks_{what}")]
    return names


def _attempt_names(key: Mapping[str, Any]) -> list[str]:
    names = ["attempts", f"attempts:{key['status']}"]
    return [*names, "retries"] if key["number"] > 1 else names


def _difference(look: _Look) -> dict[str, int]:
    names = sorted(look.truth.keys() | look.counted.keys())
    found = {name: look.truth.get(name, 0) - look.counted.get(name, 0) for name in names}
    return {name: number for name, number in found.items() if number}
