"""The collections of a store in MongoDB, and the sections in which the store decides.

A section does not lock. It remembers the documents it has read, collects what is decided on them,
and writes that with a compare-and-set; where another one was faster, the callback runs again.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter
from typing import Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from pymongo.errors import PyMongoError

from agl.errors import BackendError, BackendUnavailableError, StoreError
from agl.store.collection.base import AtomicLabels, AtomicMode, LightningCollections
from agl.store.collection.instrumented import CollectionsRecorder, Note
from agl.store.collection.mongo.collection import MongoBasedCollection
from agl.store.collection.mongo.documents import from_document
from agl.store.collection.mongo.errors import translate
from agl.store.collection.mongo.heartbeats import HEARTBEAT_SECONDS, Missed
from agl.store.collection.mongo.indexes import INDEXES, ensure_collection
from agl.store.collection.mongo.key_value import MongoBasedKeyValue
from agl.store.collection.mongo.lane import STATE, ConflictError, Lane, conflict_pause
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.mongo.roots import ROLLOUTS, Root
from agl.store.collection.mongo.section import Section
from agl.store.collection.mongo.section_writes import Call
from agl.store.collection.mongo.totals import COUNTERS
from agl.store.collection.mongo.views import AttemptView, QueueView, RootView
from agl.store.collection.writes import WriteBatch
from agl.types import RUNNING_STATUSES, ResourcesUpdate, Span, Worker
from agl.utils.metrics import MetricsBackend

R = TypeVar("R")

_MOST_CONFLICTS = 60
SPANS_LABEL = "spans"


class MongoLightningCollections(LightningCollections):
    """The collections of one partition.

    Args:
        client_pool: Where clients come from.
        database_name: Database.
        partition_id: Only what belongs to it exists here.
        tracker: Where calls are counted and timed.
        heartbeat_seconds: How long a heartbeat that follows another one may wait.
    """

    collection_name = "router"

    def __init__(
        self,
        client_pool: MongoClientPool,
        database_name: str,
        partition_id: str,
        *,
        spans: MongoBasedCollection[Span] | None = None,
        resources: MongoBasedCollection[ResourcesUpdate] | None = None,
        workers: MongoBasedCollection[Worker] | None = None,
        span_sequence_ids: MongoBasedKeyValue[str, int] | None = None,
        tracker: MetricsBackend | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        where = (client_pool, database_name)
        self.pool = client_pool
        self.database_name = database_name
        self.partition_id = partition_id
        self._tracker = tracker
        self.heartbeat_seconds = heartbeat_seconds
        self.missed_heartbeat: Missed | None = None
        """Told of a heartbeat that came too late, as the status of its attempt had changed."""

        self._spans = spans or MongoBasedCollection[Span](
            *where,
            "spans",
            partition_id,
            ("rollout_id", "attempt_id", "span_id"),
            Span,
            tracker=tracker,
        )
        self._resources = resources or MongoBasedCollection[ResourcesUpdate](
            *where, "resources", partition_id, ("resources_id",), ResourcesUpdate, tracker=tracker
        )
        self._workers = workers or MongoBasedCollection[Worker](
            *where, "workers", partition_id, ("worker_id",), Worker, tracker=tracker
        )
        self._numbers = span_sequence_ids or MongoBasedKeyValue[str, int](
            *where, "span_sequence_ids", partition_id, str, int, tracker=tracker
        )
        self._whole = Section(self, Call(), remembers=False)
        self._start_empty()
        self._recorder = None if tracker is None else CollectionsRecorder(tracker)

    def _start_empty(self) -> None:
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, Lane] = WeakKeyDictionary()
        self.notes: dict[tuple[str, str], Note] = {}

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_mutex", "_pid", "_lanes", "notes", "missed_heartbeat")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.missed_heartbeat = None
        self._start_empty()

    def lane_now(self) -> Lane:
        """What the running event loop shares; it may not be prepared yet."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None or self._pid != os.getpid():
            lane = self._add_lane(loop)
        return lane

    def _add_lane(self, loop: asyncio.AbstractEventLoop) -> Lane:
        if self._pid != os.getpid():
            self._start_empty()
        with self._mutex:
            lane = self._lanes.get(loop)
            if lane is None:
                lane = Lane(
                    self.pool, self.database_name, self.partition_id, self.heartbeat_seconds
                )
                lane.heartbeats.missed = self.missed_heartbeat
                self._lanes[loop] = lane
            return lane

    async def lane(self) -> Lane:
        """What the running event loop shares, ready for use.

        Raises:
            BackendError: the database refused, or cannot be reached.
        """
        lane = self.lane_now()
        if not lane.prepared:
            await lane.prepare(self.ensure_collections)
        return lane

    async def ensure_collections(self) -> None:
        """Make what is missing of the collections and their indexes.

        Raises:
            BackendError: the database refused, or cannot be reached.
        """
        database = self.pool.database(self.database_name)
        generic = (self._spans, self._resources, self._workers, self._numbers)
        ours = (ROLLOUTS, COUNTERS, STATE)
        try:
            await asyncio.gather(
                *(ensure_collection(database, name, INDEXES[name]) for name in ours),
                *(collection.ensure_collection() for collection in generic),
            )
        except PyMongoError as error:
            raise translate(error) from error

    def note(self, operation: str, collection: str, started: float) -> None:
        """Count and time a call that went well."""
        if self._recorder is None:
            return
        key = operation, collection
        note = self.notes.get(key)
        if note is None:
            note = self.notes[key] = self._recorder.note(operation, collection)
        note(started, None)

    @property
    def tracker(self) -> MetricsBackend | None:
        return self._tracker

    @property
    def rollouts(self) -> RootView:
        return self._whole.rollouts

    @property
    def attempts(self) -> AttemptView:
        return self._whole.attempts

    @property
    def spans(self) -> MongoBasedCollection[Span]:
        return self._spans

    @property
    def resources(self) -> MongoBasedCollection[ResourcesUpdate]:
        return self._resources

    @property
    def workers(self) -> MongoBasedCollection[Worker]:
        return self._workers

    @property
    def rollout_queue(self) -> QueueView:
        return self._whole.rollout_queue

    @property
    def span_sequence_ids(self) -> MongoBasedKeyValue[str, int]:
        return self._numbers

    def atomic(
        self,
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
        **kwargs: Any,
    ) -> AbstractAsyncContextManager[Self]:
        return cast(
            "AbstractAsyncContextManager[Self]", self._section(SPANS_LABEL in (labels or ()))
        )

    @asynccontextmanager
    async def _section(self, light: bool) -> AsyncGenerator[Section]:
        section = Section(self, Call(), light=light)
        try:
            yield section
        except ConflictError:
            raise _contended() from None
        await section.finish()

    async def execute(
        self,
        callback: Callable[[Self], Awaitable[R]],
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
        **kwargs: Any,
    ) -> R:
        """As promised by the base; the callback runs again while others are faster."""
        started = perf_counter()
        light = SPANS_LABEL in (labels or ())
        call = Call()
        lane = await self.lane()
        with lane.turns.call():
            for tries in range(_MOST_CONFLICTS):
                section = Section(self, call, light=light, may_guess=tries == 0)
                if light:
                    section.hand_out_no_rollout(math.inf)
                try:
                    result = await callback(cast("Self", section))
                except ConflictError:
                    await conflict_pause(tries)
                    continue
                except StoreError as error:
                    if section.guessed and not isinstance(error, BackendError):
                        continue  # it may owe to what has changed
                    await section.finish()
                    raise
                if section.guessed:
                    continue  # nothing was written, so nothing has shown that it is still so
                await section.finish()
                self.note("execute", self.collection_name, started)
                return result
        raise _contended()

    def section(self) -> Section:
        """A section of one try; a conflict leaves it as :class:`ConflictError`."""
        return Section(self, Call())

    async def due(self, now: float, limit: int, *, adopt: bool) -> list[str]:
        """Rollouts at which the watchdog has to look, the most overdue first.

        Args:
            now: Seconds since the epoch.
            limit: How many at most.
            adopt: Rather those under way that earlier versions left, if any, of which nobody has
                noted when their attempt began.
        """
        lane = await self.lane()
        rollouts = lane.database[ROLLOUTS]
        mine = {"partition_id": self.partition_id}
        if adopt:
            running = {"$in": sorted(RUNNING_STATUSES)}
            match = {**mine, "status": running, "running_since": {"$exists": False}}
            found = await lane.reading(
                lambda: rollouts.find(match, {"rollout_id": 1}, limit=limit).to_list()
            )
            if found:
                return [document["rollout_id"] for document in found]
        match = {**mine, "deadline": {"$lt": now}}
        found = await lane.reading(
            lambda: (
                rollouts.find(match, {"rollout_id": 1}, limit=limit).sort({"deadline": 1}).to_list()
            )
        )
        return [document["rollout_id"] for document in found]

    async def claims(self, attempt_ids: Collection[str], request: str) -> list[Root]:
        """Rollouts under way whose latest attempt was started by the request with this mark and may
        be one of these, as they entered the queue. (Ids of attempts have an index, but are short
        enough for those of others to be among many.)
        """
        lane = await self.lane()
        match = {
            "partition_id": self.partition_id,
            "status": {"$in": sorted(RUNNING_STATUSES)},
            "attempts.attempt_id": {"$in": sorted(attempt_ids)},
        }
        documents = await lane.reading(lambda: lane.database[ROLLOUTS].find(match).to_list())
        roots = [root for root in map(Root, documents) if root.request == request]
        return sorted(roots, key=lambda root: root.queued_at or 0.0)

    async def resources_of_request(self, resources_id: str, request: str) -> ResourcesUpdate | None:
        """The resources, if this request was the last to write them."""
        lane = await self.lane()
        match = {"partition_id": self.partition_id, "resources_id": resources_id}
        found = await lane.reading(lambda: lane.database["resources"].find_one(match))
        if found is None or found.get("request") != request:
            return None
        return from_document(found, ResourcesUpdate)

    async def leave_loop(self) -> None:
        """Let what runs beside calls come to an end, in the running event loop."""
        lane = self._lanes.pop(asyncio.get_running_loop(), None)
        if lane is not None:
            await lane.close()

    async def write(self, batch: WriteBatch) -> None:
        section = Section(self, Call())
        ids = {r.rollout_id for group in batch.rollouts.values() for r in group}
        ids |= {a.rollout_id for group in batch.attempts.values() for a in group}
        ids |= {a.rollout_id for a in batch.new_attempts} | set(batch.requeue)
        await section.roots(list(ids - {r.rollout_id for r in batch.new_rollouts}))
        await section.write(batch)


def _contended() -> BackendUnavailableError:
    return BackendUnavailableError("Others keep changing what this call is about; try again")
