"""What the calls of one event loop share: the client, batches of reads and writes, totals."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from agl.errors import DuplicatedPrimaryKeyError
from agl.store.collection.mongo.combine import Combiner, Patience
from agl.store.collection.mongo.errors import (
    DUPLICATE_KEY,
    error_code,
    is_passing,
    translate,
)
from agl.store.collection.mongo.gathering import Gathering, Side, Turns
from agl.store.collection.mongo.heartbeats import HEARTBEAT_SECONDS, Heartbeats
from agl.store.collection.mongo.known_roots import KnownRoots
from agl.store.collection.mongo.loader import QueueHead, RootLoader
from agl.store.collection.mongo.numbers import KnownNumbers
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.mongo.single_write import Outcome, Write
from agl.store.collection.mongo.totals import Reconciler, Totals
from agl.store.collection.mongo.transaction import in_transaction

logger = logging.getLogger(__name__)

STATE = "state"
_WRITE_CONFLICT = 112
_CLOSE_SECONDS = 5.0
_KEYS: Mapping[str, tuple[str, ...]] = {
    "rollouts": ("rollout_id",),
    "spans": ("rollout_id", "attempt_id", "span_id"),
}
"""Keys of what is inserted, where it matters whether it met itself."""


class ConflictError(Exception):
    """Something that a decision was based on has changed; it has to be made again."""


class Lane:
    """One event loop's access to a partition."""

    def __init__(
        self,
        pool: MongoClientPool,
        database_name: str,
        partition_id: str,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.client = pool.client()
        self.database = pool.database(database_name)
        self.metrics = pool.metrics
        self.partition_id = partition_id
        self.totals = Totals(partition_id)
        self.turns = Turns()
        self.combiner = Combiner(
            self.database,
            self.metrics,
            self.totals.write,
            self.totals.take_back,
            self.turns,
        )
        self.heartbeat_seconds = heartbeat_seconds
        self.known = KnownRoots()
        self.heartbeats = Heartbeats(
            self.combiner, self.run_beside, heartbeat_seconds, self.known.heard
        )
        self.loader = RootLoader(self.database, partition_id, self.metrics, self.turns)
        self.queue = QueueHead(self.database, partition_id, self.turns)
        self.numbers = KnownNumbers()
        self.head = ResourcesHead(self)
        self._background: set[asyncio.Task[Any]] = set()
        self.totals.flush_now = self._flush_totals
        self._prepared: asyncio.Task[None] | None = None

    async def prepare(self, ensure: Callable[[], Awaitable[None]]) -> None:
        """Once: collections, indexes, the base of the totals."""
        if self._prepared is None or (
            self._prepared.done()
            and (self._prepared.cancelled() or self._prepared.exception() is not None)
        ):
            self._prepared = asyncio.get_running_loop().create_task(self._prepare(ensure))
        if not self._prepared.done():
            await asyncio.shield(self._prepared)
        elif self._prepared.exception() is not None:
            await self._prepared

    @property
    def prepared(self) -> bool:
        return (
            self._prepared is not None
            and self._prepared.done()
            and not self._prepared.cancelled()
            and self._prepared.exception() is None
        )

    async def _prepare(self, ensure: Callable[[], Awaitable[None]]) -> None:
        await ensure()
        try:
            await Reconciler(self.database, self.partition_id).prepare()
        except PyMongoError as error:
            raise translate(error) from error

    def run_beside(self, work: Awaitable[Any]) -> None:
        """Carry something out without waiting for it; a failure is logged."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._beside_done)

    def _beside_done(self, task: asyncio.Future[Any]) -> None:
        self._background.discard(task)  # type: ignore[arg-type] # ensure_future made it a task
        if not task.cancelled() and task.exception() is not None:
            logger.warning("Work beside calls failed: %s", task.exception())

    async def close(self) -> None:
        """Send what the totals still have to send, and wait for work beside calls."""
        self.heartbeats.flush_last()
        self.totals.flush_last()
        if self._background:
            await asyncio.wait(self._background, timeout=_CLOSE_SECONDS)

    def _flush_totals(self) -> None:
        self.run_beside(self.combiner.submit([]))

    # Writes

    async def submit(self, writes: Sequence[Write], delta: Mapping[str, int]) -> list[Outcome]:
        """Carry out writes; an insert whose key is taken by itself counts as done."""
        outcomes = await self.combiner.submit(writes, delta)
        taken = [
            i
            for i, outcome in enumerate(outcomes)
            if outcome.duplicate and writes[i].match is None and writes[i].collection in _KEYS
        ]
        for i in await self._our_own(writes, taken):
            outcomes[i] = Outcome(inserted=True, resent=True)
        return outcomes

    async def _our_own(self, writes: Sequence[Write], taken: Sequence[int]) -> list[int]:
        """Those of the inserts that met themselves: they were sent twice."""
        by_collection: dict[str, list[int]] = {}
        for i in taken:
            by_collection.setdefault(writes[i].collection, []).append(i)
        own: list[int] = []
        for name, places in by_collection.items():
            own += await self._our_own_in(name, {i: writes[i].body for i in places})
        return own

    async def _our_own_in(self, name: str, bodies: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """A key that is taken by nobody to be seen is looked for again: its insert is under way."""
        left = {i: {f: body[f] for f in _KEYS[name]} for i, body in bodies.items()}
        fields = ("_id", *_KEYS[name])
        own: list[int] = []
        retry = Patience()
        while left:
            match = {"$or": [{"partition_id": self.partition_id, **key} for key in left.values()]}
            found = await self.reading(
                lambda match=match: (
                    self.database[name].find(match, dict.fromkeys(fields, 1)).to_list()
                )
            )
            owners = {tuple(d[f] for f in _KEYS[name]): d["_id"] for d in found}
            seen = [i for i, key in left.items() if tuple(key.values()) in owners]
            own += [i for i in seen if owners[tuple(left[i].values())] == bodies[i]["_id"]]
            left = {i: key for i, key in left.items() if i not in seen}
            if left:
                await retry.pause(None)
        return own

    async def reading(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """A read, repeated while the server cannot answer."""
        retry = Patience()
        while True:
            try:
                return await read()
            except PyMongoError as error:
                if not is_passing(error):
                    raise translate(error) from error
                await retry.pause(translate(error))

    async def transact(self, writes: Sequence[Write], delta: Mapping[str, int]) -> None:
        """Carry out writes all or none; each update without upsert has to match.

        Raises:
            ConflictError: an update did not match, or another transaction was faster.
            DuplicatedPrimaryKeyError: a key is taken.
        """
        with self.totals.transaction() as counters:
            all_writes = [*writes, counters.write(delta)] if delta else list(writes)

            async def carry_out(session: AsyncClientSession) -> None:
                outcomes = await self.combiner.within(session, all_writes)
                for write, outcome in zip(all_writes, outcomes, strict=True):
                    if write.match is not None and not write.upsert and not outcome.matched:
                        raise ConflictError

            try:
                await in_transaction(self.client, carry_out, metrics=self.metrics)
            except PyMongoError as error:
                _raise_translated(error)


def _raise_translated(error: PyMongoError) -> NoReturn:
    code = error_code(error)
    if code == _WRITE_CONFLICT:
        raise ConflictError from error
    if code == DUPLICATE_KEY:
        raise DuplicatedPrimaryKeyError("A new id is taken already") from error
    raise translate(error) from error


class ResourcesHead:
    """Which resources are the latest: one small document, so that nobody has to sort."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._gathering = Gathering[None, str | None](self._read, turns=lane.turns, side=Side.READ)
        self._known = False
        self._cached: str | None = None
        self._document_id = f"{lane.partition_id}/latest_resources"

    async def read(self) -> str | None:
        """Id of the latest resources, as it is after this call began."""
        return await self._gathering.ask(None)

    async def guess(self) -> str | None:
        """The id as last seen here; to be used with :meth:`guard`."""
        return self._cached if self._known else await self.read()

    def forget(self) -> None:
        """The guess was wrong."""
        self._known = False

    def guard(self, resources_id: str | None) -> Write:
        """For a transaction: matches only while these are the latest. Changes nothing."""
        return Write(
            STATE,
            {"$set": {"resources_id": resources_id}},
            {"_id": self._document_id, "resources_id": resources_id},
        )

    def move(self, resources_id: str, update_time: float) -> Write:
        """For a transaction: makes these the latest."""
        values = {"resources_id": resources_id, "update_time": update_time}
        return Write(
            STATE,
            {"$set": {"partition_id": self._lane.partition_id, **values}},
            {"_id": self._document_id},
            upsert=True,
        )

    def moved(self, resources_id: str) -> None:
        """They are the latest now."""
        self._cached, self._known = resources_id, True

    async def _read(self, asked: list[None]) -> list[str | None]:
        found = await self._lane.reading(self._find)
        self._cached, self._known = found, True
        return [found] * len(asked)

    async def _find(self) -> str | None:
        state = self._lane.database[STATE]
        match = {"_id": self._document_id}
        while (head := await state.find_one(match)) is None:
            latest = await self._newest()
            values = {"partition_id": self._lane.partition_id, "resources_id": latest}
            await state.update_one(match, {"$setOnInsert": values}, upsert=True)
        return head["resources_id"]

    async def _newest(self) -> str | None:
        """What 0.3 took for the latest; there is no head yet."""
        mine = {"partition_id": self._lane.partition_id}
        found = await self._lane.database["resources"].find_one(
            mine, {"resources_id": 1}, sort=[("update_time", -1), ("_id", -1)]
        )
        return None if found is None else found["resources_id"]


async def conflict_pause(tries: int) -> None:
    """Let the others finish; longer each time, at random so that not all come back at once."""
    await asyncio.sleep(random.uniform(0, min(0.002 * 2**tries, 0.2)))  # noqa: S311 - no secret
