"""Reads that several calls share: rollout documents by id, the head of the queue."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError

from agl.store.collection.mongo.combine import Patience
from agl.store.collection.mongo.documents import from_document
from agl.store.collection.mongo.errors import is_passing, translate
from agl.store.collection.mongo.gathering import Gathering, Side, Turns
from agl.store.collection.mongo.metrics import DriverMetrics
from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.roots import LIGHT, ROLLOUTS, Root
from agl.types import QUEUING_STATUSES, Attempt

LEGACY_ATTEMPTS = "attempts"
MOST_READ = 1000
"""Documents asked for in one read."""

_MOST_PLACES = 100_000
"""Rollouts whose ``_id`` is remembered."""

WAITING = sorted(QUEUING_STATUSES)
_DEEPEST_CONTENTION = 6


async def roots_of(
    database: AsyncDatabase[Document], partition_id: str, documents: Sequence[Document]
) -> list[Root]:
    """Rollout documents with their attempts, which 0.3 kept elsewhere: one more read for those."""
    legacy = [d["rollout_id"] for d in documents if "attempts" not in d]
    attempts: dict[str, list[Attempt]] = {}
    if legacy:
        cursor = database[LEGACY_ATTEMPTS].find(
            {"partition_id": partition_id, "rollout_id": {"$in": legacy}}
        )
        async for one in cursor.sort({"sequence_id": 1, "_id": 1}):
            attempt = from_document(one, Attempt)
            attempts.setdefault(attempt.rollout_id, []).append(attempt)
    return [
        Root(d) if "attempts" in d else Root(d, attempts.get(d["rollout_id"], []))
        for d in documents
    ]


class _Wanted(NamedTuple):
    rollout_id: str
    light: bool


class RootLoader:
    """Rollout documents by id; calls that ask at the same time share one read."""

    def __init__(
        self,
        database: AsyncDatabase[Document],
        partition_id: str,
        metrics: DriverMetrics | None,
        turns: Turns,
    ) -> None:
        self._database = database
        self._partition_id = partition_id
        self._metrics = metrics
        self._places: OrderedDict[str, ObjectId] = OrderedDict()
        self._gathering = Gathering[_Wanted, Root | None](
            self._read, _how_many, turns=turns, side=Side.READ
        )

    def learn(self, rollout_id: str, document_id: ObjectId) -> None:
        """Which document is that of a rollout; it never changes."""
        places = self._places
        places[rollout_id] = document_id
        places.move_to_end(rollout_id)
        if len(places) > _MOST_PLACES:
            places.popitem(last=False)

    async def load(self, rollout_id: str, *, light: bool = False) -> Root | None:
        """The document as it is after this call began; ``None`` if there is none.

        Args:
            rollout_id: Which.
            light: Without input and metadata of the rollout.
        """
        if not _can_be_sent(rollout_id):
            return None
        return await self._gathering.ask(_Wanted(rollout_id, light))

    async def load_many(
        self, rollout_ids: Sequence[str], *, light: bool = False
    ) -> dict[str, Root]:
        """Those of the documents that there are."""
        ids = [key for key in dict.fromkeys(rollout_ids) if _can_be_sent(key)]
        asked = [self._gathering.ask(_Wanted(key, light)) for key in ids]
        found = [await answer for answer in asked]
        return {root.rollout_id: root for root in found if root is not None}

    async def _read(self, wanted: list[_Wanted]) -> list[Root | None]:
        ids = list(dict.fromkeys(one.rollout_id for one in wanted))
        light = all(one.light for one in wanted)
        if self._metrics is not None:
            self._metrics.batch("read", len(ids))
        match = self._match(ids)
        retry = Patience()
        while True:
            try:
                documents = await (
                    self._database[ROLLOUTS]
                    .find(match, projection=LIGHT if light else None, batch_size=MOST_READ)
                    .to_list()
                )
                roots = await roots_of(self._database, self._partition_id, documents)
                break
            except PyMongoError as error:
                if not is_passing(error):
                    raise translate(error) from error
                await retry.pause(translate(error))
        by_id = {root.rollout_id: root for root in roots}
        for root in roots:
            self.learn(root.rollout_id, root.document_id)
        return [by_id.get(one.rollout_id) for one in wanted]

    def _match(self, rollout_ids: Sequence[str]) -> dict[str, Any]:
        """Each by the key of one document: with many keys in a range of the partition a planner
        may prefer to read all of it.
        """
        known = [self._places[key] for key in rollout_ids if key in self._places]
        others = [
            {"partition_id": self._partition_id, "rollout_id": key}
            for key in rollout_ids
            if key not in self._places
        ]
        by_place = [{"_id": known[0] if len(known) == 1 else {"$in": known}}] if known else []
        either: list[dict[str, Any]] = [*by_place, *others]
        return either[0] if len(either) == 1 else {"$or": either}


def _how_many(wanted: Sequence[_Wanted]) -> int:
    return min(len(wanted), MOST_READ)


def _can_be_sent(rollout_id: Any) -> bool:
    """Whether it is text that the protocol can carry; nothing else can be an id."""
    if not isinstance(rollout_id, str):
        return False
    try:
        rollout_id.encode()
    except UnicodeEncodeError:
        return False
    return True


class QueueHead:
    """Hands out what waits in the queue; calls that ask at the same time share one read.

    What one call has been given is given to no other of this process until it is handed back, so
    that only processes can collide. After a collision this one reads deeper and picks at random.
    """

    def __init__(self, database: AsyncDatabase[Document], partition_id: str, turns: Turns) -> None:
        self._database = database
        self._partition_id = partition_id
        self._out: dict[str, ObjectId] = {}
        self._back: dict[str, ObjectId] = {}
        self._contention = 0
        self._gathering = Gathering[int, list[Root]](self._read, turns=turns, side=Side.READ)

    async def take(self, limit: int) -> list[Root]:
        """Up to ``limit`` documents from the front, to be handed back with :meth:`give_back`."""
        answer = self._gathering.ask(limit)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self._nobody_took)
            raise

    def _nobody_took(self, answer: asyncio.Future[list[Root]]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.give_back([root.rollout_id for root in answer.result()])

    def give_back(self, rollout_ids: Sequence[str]) -> None:
        """They have been claimed, by this process or by another one, or were left alone."""
        for rollout_id in rollout_ids:
            document_id = self._out.pop(rollout_id, None)
            if document_id is not None:
                self._back[rollout_id] = document_id

    def note_collisions(self, count: int) -> None:
        """So many of those taken had been claimed by another process."""
        change = 1 if count else -1
        self._contention = min(max(self._contention + change, 0), _DEEPEST_CONTENTION)

    async def _read(self, limits: list[int]) -> list[list[Root]]:
        self._back.clear()  # a read that begins now sees what became of them
        wanted = sum(limits)
        documents = await self._find(wanted * (1 + 2 * self._contention))
        roots = await roots_of(self._database, self._partition_id, documents)
        free = [r for r in roots if r.rollout_id not in self._out | self._back]
        if len(free) > wanted:
            chosen = sorted(random.sample(range(len(free)), wanted))
            free = [free[i] for i in chosen]
        shares: list[list[Root]] = []
        for limit in limits:
            share, free = free[:limit], free[limit:]
            self._out.update({root.rollout_id: root.document_id for root in share})
            shares.append(share)
        return shares

    async def _find(self, limit: int) -> list[Document]:
        match: dict[str, Any] = {
            "partition_id": self._partition_id,
            "status": {"$in": WAITING},
        }
        if self._out:
            match["_id"] = {"$nin": list(self._out.values())}
        retry = Patience()
        while True:
            try:
                found = self._database[ROLLOUTS].find(match, limit=limit, batch_size=limit)
                return await found.sort({"queued_at": 1, "_id": 1}).to_list()
            except PyMongoError as error:
                if not is_passing(error):
                    raise translate(error) from error
                await retry.pause(translate(error))
