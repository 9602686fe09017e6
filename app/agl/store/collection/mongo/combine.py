"""Group commit: the writes of many calls go to the server together.

While one write is under way, all further writes of this event loop gather and go as one unordered
bulk over several collections (MongoDB 8.0, wire version 25). A call is answered only after its own
writes are acknowledged by a majority. On older servers there is one bulk for each collection,
and each conditional update goes alone, because only so is it known which of them matched.

Every write can be sent twice with the effect of once, so after a failure that leaves open whether
anything was done, the same writes are sent again, for up to half a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError

from agl.errors import BackendUnavailableError, StoreError
from agl.store.collection.mongo.commands import MOST_BYTES, MOST_WRITES, bulk_write, write_to
from agl.store.collection.mongo.errors import is_passing, translate
from agl.store.collection.mongo.gathering import Gathering, Side, Turns
from agl.store.collection.mongo.metrics import DriverMetrics
from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.single_write import Outcome, Write

logger = logging.getLogger(__name__)

MANY = 3
"""Inserts or upserts of one collection that are worth a command of their own."""

MANY_GUARDS = 6
"""Guards of one collection that are worth a read of their own."""

PATIENCE_SECONDS = 30.0
"""How long writes are sent again while the server cannot be reached."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_UNKNOWN_COMMAND = 59
_PASSING_CODES = frozenset((112, 11600, 11602, 10107, 189, 91, 262))


class Submission(NamedTuple):
    """The writes of one decision, and how the totals change by them."""

    writes: Sequence[Write]
    delta: Mapping[str, int]


class Combiner:
    """Sends the writes of one event loop.

    Args:
        database: Where the collections are, through the client of the event loop.
        metrics: Counts batches and repeats.
        totals: Told what is about to be written; returns a write that goes with it, if any.
        failed: Told what was not written after all.
        turns: Those of the event loop.
    """

    def __init__(
        self,
        database: AsyncDatabase[Document],
        metrics: DriverMetrics | None,
        totals: Callable[[Mapping[str, int]], Write | None],
        failed: Callable[[Mapping[str, int]], None],
        turns: Turns,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._totals = totals
        self._failed = failed
        self.by_collection = False
        """The server knows no bulk over several collections."""

        self._gathering = Gathering[Submission, list[Outcome]](
            self._send_all, _how_many, turns=turns, side=Side.WRITE
        )

    async def submit(
        self, writes: Sequence[Write], delta: Mapping[str, int] | None = None
    ) -> list[Outcome]:
        """Carry out writes, each on its own, and return what became of them, in their order.

        Raises:
            BackendError: the server refused, or could not be reached for half a minute.
        """
        return await self._gathering.ask(Submission(writes, delta or {}))

    async def _send_all(self, submissions: list[Submission]) -> list[list[Outcome]]:
        delta = _sum(submissions)
        ours = self._totals(delta)
        batch = _Batch(submissions, ours)
        if self._metrics is not None:
            self._metrics.batch("write", len(batch.writes))
        try:
            outcomes = await self.send(batch.writes)
        except BaseException:
            self._failed(delta)
            raise
        return batch.answers(outcomes)

    async def send(self, writes: Sequence[Write]) -> list[Outcome]:
        """Send writes until each has an outcome.

        Raises:
            BackendError: the server refused, or could not be reached for half a minute.
        """
        outcomes: dict[int, Outcome] = {}
        left: list[int] = list(range(len(writes)))
        retry = Patience()
        while left:
            try:
                found = await self._once([writes[i] for i in left], again=retry.tries > 0)
            except PyMongoError as error:
                if not is_passing(error):
                    raise translate(error) from error
                await self._pause(retry, error)
                continue
            for i, outcome in zip(left, found, strict=True):
                outcomes[i] = outcome._replace(resent=retry.tries > 0)
            again = [i for i in left if _to_repeat(writes[i], outcomes[i])]
            if again:
                await self._pause(retry, None, outcomes[again[0]])
            left = again
        return [outcomes[i] for i in range(len(writes))]

    async def _pause(
        self, retry: Patience, error: PyMongoError | None, outcome: Outcome | None = None
    ) -> None:
        if self._metrics is not None:
            self._metrics.retried("write")
        await retry.pause(translate(error) if error is not None else None, outcome)

    async def _once(self, writes: list[Write], *, again: bool) -> list[Outcome]:
        if not self.by_collection:
            try:
                return await self._mostly_together(writes, again=again)
            except OperationFailure as error:
                if error.code != _UNKNOWN_COMMAND:
                    raise
                logger.info("MongoDB before 8.0: one bulk for each collection")
                self.by_collection = True
        return await self._by_collection(writes, again=again)

    async def _mostly_together(self, writes: list[Write], *, again: bool) -> list[Outcome]:
        """A bulk, and beside it commands of their own for what there is much of.

        Servers take plain inserts and updates at about half the cost of those in a bulk over
        collections, and read a document for less than an update that changes nothing. For
        conditional updates a plain bulk does not tell which of them matched.
        """
        groups: dict[tuple[str, bool], list[int]] = {}
        guards: dict[str, list[int]] = {}
        for i, write in enumerate(writes):
            if write.guards:
                guards.setdefault(write.collection, []).append(i)
            elif write.match is None or write.upsert:
                groups.setdefault((write.collection, write.upsert), []).append(i)
        apart = {key: group for key, group in groups.items() if len(group) >= MANY}
        looks = {key: group for key, group in guards.items() if len(group) >= MANY_GUARDS}
        if not apart and not looks:
            return await bulk_write(self._database, writes, again=again)
        found = [Outcome()] * len(writes)
        chosen = {i for group in (*apart.values(), *looks.values()) for i in group}
        others = [i for i in range(len(writes)) if i not in chosen]

        async def together() -> None:
            rest = [writes[i] for i in others]
            outcomes = await bulk_write(self._database, rest, again=again)
            for i, outcome in zip(others, outcomes, strict=True):
                found[i] = outcome

        parts = [
            *(self._apart(name, group, writes, found, again) for (name, _), group in apart.items()),
            *(self._look(name, group, writes, found) for name, group in looks.items()),
        ]
        await _all([*parts, together()] if others else parts)
        return found

    async def _look(
        self, name: str, group: list[int], writes: Sequence[Write], found: list[Outcome]
    ) -> None:
        """Whether guards match: versions are never used twice, so when they are read is all one."""
        wanted = {i: dict(writes[i].match or {}) for i in group}
        fields = {field for match in wanted.values() for field in match}
        ids = list({match["_id"] for match in wanted.values()})
        cursor = self._database[name].find(
            {"_id": {"$in": ids}}, dict.fromkeys(fields, 1), batch_size=len(ids) + 1
        )
        stored = {document["_id"]: document for document in await cursor.to_list()}
        for i, match in wanted.items():
            found[i] = Outcome(matched=stored.get(match["_id"]) == match)

    async def _by_collection(self, writes: Sequence[Write], *, again: bool) -> list[Outcome]:
        groups: dict[tuple[str, bool], list[int]] = {}
        alone: list[tuple[str, list[int]]] = []
        for i, write in enumerate(writes):
            if write.match is not None and not write.upsert:
                alone.append((write.collection, [i]))
            else:
                groups.setdefault((write.collection, write.upsert), []).append(i)
        found = [Outcome()] * len(writes)
        several = [*((name, group) for (name, _), group in groups.items()), *alone]
        await _all([self._apart(name, group, writes, found, again) for name, group in several])
        return found

    async def _apart(
        self,
        name: str,
        group: list[int],
        writes: Sequence[Write],
        found: list[Outcome],
        again: bool,
    ) -> None:
        chosen = [writes[i] for i in group]
        outcomes = await write_to(self._database, name, chosen, again=again)
        for i, outcome in zip(group, outcomes, strict=True):
            found[i] = outcome

    async def within(self, session: AsyncClientSession, writes: Sequence[Write]) -> list[Outcome]:
        """Carry out writes in a transaction, in order, up to the first that fails.

        Raises:
            PyMongoError: as the driver raises it, for whoever runs the transaction.
        """
        if not self.by_collection:
            try:
                return await bulk_write(self._database, writes, session=session)
            except OperationFailure as error:
                if error.code != _UNKNOWN_COMMAND:
                    raise
                self.by_collection = True
        return await self._within_by_collection(session, writes)

    async def _within_by_collection(
        self, session: AsyncClientSession, writes: Sequence[Write]
    ) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        inserts: dict[str, list[int]] = {}
        for i, write in enumerate(writes):
            if write.match is None:
                inserts.setdefault(write.collection, []).append(i)
            else:
                [found[i]] = await write_to(
                    self._database, write.collection, [write], session=session
                )
        for name, group in inserts.items():
            chosen = [writes[i] for i in group]
            outcomes = await write_to(self._database, name, chosen, session=session)
            found.update(zip(group, outcomes, strict=True))
        return [found[i] for i in range(len(writes))]


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all, then raise the first failure."""
    for failure in await asyncio.gather(*parts, return_exceptions=True):
        if failure is not None:
            raise failure


class Patience:
    """Pauses between tries that grow, until they have lasted long enough."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self.tries = 0
        self._give_up = time.monotonic() + seconds

    async def pause(self, error: StoreError | Any, outcome: Outcome | None = None) -> None:
        """Before the next try.

        Raises:
            BackendUnavailableError: it has been tried for long enough.
        """
        if time.monotonic() > self._give_up:
            if isinstance(error, StoreError):
                raise error
            code = f" (code {outcome.code})" if outcome is not None else ""
            raise BackendUnavailableError(f"MongoDB cannot answer just now{code}; try again")
        await asyncio.sleep(min(_FIRST_PAUSE * 2**self.tries, _LONGEST_PAUSE))
        self.tries += 1


class _Batch:
    """The writes of submissions, those that can be joined joined."""

    def __init__(self, submissions: Sequence[Submission], ours: Write | None) -> None:
        self.writes: list[Write] = []
        self._places: list[list[int]] = []
        merged: dict[Hashable, int] = {}
        for submission in submissions:
            self._places.append([self._add(write, merged) for write in submission.writes])
        if ours is not None:
            self.writes.append(ours)

    def _add(self, write: Write, merged: dict[Hashable, int]) -> int:
        if write.merge is not None:
            place = merged.setdefault(
                (write.collection, write.match is None, write.merge), len(self.writes)
            )
            if place < len(self.writes):
                if write.match is not None:
                    self.writes[place] = self.writes[place].joined(write)
                return place
        self.writes.append(write)
        return len(self.writes) - 1

    def answers(self, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
        return [[outcomes[place] for place in places] for places in self._places]


def _how_many(submissions: Sequence[Submission]) -> int:
    """How many submissions one bulk takes."""
    count = writes = size = 0
    for submission in submissions:
        writes += len(submission.writes)
        size += sum(write.size for write in submission.writes)
        if count and (writes > MOST_WRITES or size > MOST_BYTES):
            break
        count += 1
    return count


def _sum(submissions: Sequence[Submission]) -> dict[str, int]:
    total: dict[str, int] = {}
    for submission in submissions:
        for name, number in submission.delta.items():
            total[name] = total.get(name, 0) + number
    return {name: number for name, number in total.items() if number}


def _to_repeat(write: Write, outcome: Outcome) -> bool:
    """Whether the server asks to try this write again.

    Two upserts of one key can meet: one of them finds it taken and has to be an update.
    """
    if outcome.code in _PASSING_CODES:
        return True
    return outcome.duplicate and write.upsert and write.merge is not None
