"""The store in MongoDB: durable, shared by any number of processes and hosts.

The rules are those of every store. What differs is how a decision is made safe without locks: it
reads one rollout document and replaces it only if nobody else has (``collection/mongo/roots.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from agl.errors import DuplicatedPrimaryKeyError, StoreError
from agl.store import rules
from agl.store._core import LIFECYCLE, Pair
from agl.store._plan import ATTEMPT_DIGITS, Plan, attempt_id_of
from agl.store._state import how_many, oldest_running
from agl.store._waiting import Bell, BellWatch, Watch
from agl.store.base import LightningStoreCapabilities, LightningStoreStatistics
from agl.store.collection.base import AtomicLabels, LightningCollections
from agl.store.collection.mongo.claims import Dequeue, RepeatedClaims
from agl.store.collection.mongo.collections import MongoLightningCollections
from agl.store.collection.mongo.heartbeats import HEARTBEAT_SECONDS
from agl.store.collection.mongo.lane import ConflictError, Lane, conflict_pause
from agl.store.collection.mongo.pool import DEFAULT_MONGO_URI, MongoClientPool
from agl.store.collection.mongo.reconciling import Reconciling, reconcile
from agl.store.collection.mongo.roots import NOT_UNDER_WAY, Pace, Root
from agl.store.collection.mongo.section import Section
from agl.store.collection.mongo.state import read_state
from agl.store.collection.mongo.totals import rollouts_in
from agl.store.collection.mongo.watch import FinishWatcher
from agl.store.collection_based import CollectionBasedLightningStore
from agl.store.operations import operation
from agl.types import (
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    AttemptUpdate,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    Span,
    StoreState,
)
from agl.utils.id import generate_id
from agl.utils.metrics import MetricsBackend
from agl.utils.request_ids import request_ids

logger = logging.getLogger(__name__)

__all__ = ["MongoLightningStore"]

DEFAULT_DATABASE = "agentlightning"
MOST_CLAIMS = 5_000
"""Rollouts that one dequeue claims, however many it asks for: more would hold up all others."""

_LOST_CLAIMS = 32
"""Claims of one dequeue that others may have been faster with; each has drawn an id."""

R = TypeVar("R")


class MongoLightningStore(CollectionBasedLightningStore[MongoLightningCollections]):
    """Keeps everything in MongoDB 8.0 or later (6.0 or later with more round trips).

    Safe to use from many threads and event loops at once, and from many processes: each opens
    connections of its own. Nothing is connected before the first call.

    Args:
        mongo_uri: A replica set.
        mongo_client_kwargs: Options for the driver.
        database_name: Database; ``agentlightning`` by default.
        partition_id: Whose data this is; stores with the same one share it. A new one is drawn by
            default, so give one to find the data again.
        tracker: Where operations are counted and timed.
        scan_debounce_seconds: Shortest time between two looks of the watchdog inside calls.
        heartbeat_seconds: A span that comes so soon after the last heartbeat has its own written
            later, together with others; shorter where the limit on silence is.
    """

    def __init__(
        self,
        *,
        mongo_uri: str = DEFAULT_MONGO_URI,
        mongo_client_kwargs: Mapping[str, Any] | None = None,
        database_name: str | None = None,
        partition_id: str | None = None,
        tracker: MetricsBackend | None = None,
        scan_debounce_seconds: float = 10.0,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._pool = MongoClientPool(
            mongo_uri=mongo_uri, mongo_client_kwargs=mongo_client_kwargs, tracker=tracker
        )
        self.partition_id = partition_id or f"pt-{generate_id(12)}"
        self.database_name = database_name or DEFAULT_DATABASE
        self._bell = Bell()
        self._watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, FinishWatcher] = (
            WeakKeyDictionary()
        )
        self._claims: WeakKeyDictionary[asyncio.AbstractEventLoop, RepeatedClaims] = (
            WeakKeyDictionary()
        )
        self._reconciling = Reconciling()
        self._adopted = False
        super().__init__(
            MongoLightningCollections(
                self._pool,
                self.database_name,
                self.partition_id,
                tracker=tracker,
                heartbeat_seconds=heartbeat_seconds,
            ),
            tracker=tracker,
            scan_debounce_seconds=scan_debounce_seconds,
        )
        self.collections.missed_heartbeat = self._sign_of_life

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; the store cannot be used any more."""
        await self.leave_loop()
        await self._pool.close()

    async def leave_loop(self) -> None:
        """Close what the running event loop holds, before it ends; other loops go on."""
        watcher = self._watchers.pop(asyncio.get_running_loop(), None)
        if watcher is not None:
            await watcher.close()
        claims = self._claims.pop(asyncio.get_running_loop(), None)
        if claims is not None:
            await claims.close()
        await self.collections.leave_loop()
        await self._pool.close_here()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=False
        )

    def _now(self) -> float:
        """By MongoDB's clock, so that hosts agree about timeouts whatever their own clocks say."""
        return super()._now() + self._pool.clock.offset

    async def statistics(self) -> LightningStoreStatistics:
        lane = await self.collections.lane()
        totals = await lane.reading(lambda: lane.totals.read(lane.database))
        return LightningStoreStatistics(
            name=type(self).__name__,
            total_rollouts=rollouts_in(totals),
            total_attempts=totals.get("attempts", 0),
            total_spans=totals.get("spans", 0),
            total_resources=totals.get("resources", 0),
            total_workers=totals.get("workers", 0),
            uptime=super()._now() - self._launch_time,
        )

    async def state(self) -> StoreState:
        lane = await self.collections.lane()
        now = self._now()
        found = await lane.reading(lambda: read_state(lane.totals, lane.database, now))
        age, share = oldest_running(found.running_since, now)
        return StoreState(
            name=type(self).__name__,
            rollouts=found.rollouts,
            queue_depth=how_many(found.rollouts, QUEUING_STATUSES),
            oldest_queued_age_seconds=max(now - found.queued_at, 0.0) if found.queued_at else 0.0,
            running_attempts=how_many(found.rollouts, RUNNING_STATUSES),
            oldest_running_age_seconds=age,
            oldest_running_timeout_ratio=share,
            attempts=found.attempts,
            retries=found.retries,
            workers=found.workers,
            silent_workers=found.silent_workers,
            worker_oldest_heartbeat_age_seconds={
                status: 0.0 if heard is None else max(now - heard, 0.0)
                for status, heard in found.workers_heard.items()
            },
            spans_stored=found.spans,
            spans_evicted=0,
            finished_without_spans=found.without_spans,
            finished_without_reward=found.without_reward,
        )

    # Decisions

    async def _carry_out(self, collections: LightningCollections, plan: Plan) -> None:
        section = _section(collections)
        _note_paces(section, plan)
        try:
            await section.write(plan.writes)
        except DuplicatedPrimaryKeyError:
            if request_ids() is None:
                raise
            # The ids follow from the request: another process has carried it out, and died or lost
            # its connection before the client had the answer.
            logger.info("A request that was sent again had been carried out already")
            return
        self._settled(plan)

    async def _write_section(
        self,
        work: Callable[[MongoLightningCollections], Awaitable[R]],
        labels: Sequence[AtomicLabels] = LIFECYCLE,
        *,
        commit: bool = True,
    ) -> R:
        await self.collections.lane()  # before the clock is asked, which is MongoDB's
        ids = request_ids()
        if ids is None:
            return await super()._write_section(work, labels, commit=commit)

        async def from_the_first_id(c: MongoLightningCollections) -> R:
            ids.restart()
            return await work(c)

        return await super()._write_section(from_the_first_id, labels, commit=commit)

    async def _store_spans(
        self, c: LightningCollections, spans: Sequence[Span], plan: Plan
    ) -> Sequence[Span]:
        section = _section(c)
        _note_paces(section, plan)
        stored = await section.write_with_spans(plan.writes, spans)
        self._settled(plan)
        return stored

    async def _sign_of_life(self, rollout_id: str, attempt_id: str) -> None:
        """Judge a heartbeat again, whose attempt had changed before it was written."""

        async def work(c: MongoLightningCollections) -> None:
            rollout = await c.rollouts.find(rollout_id)
            attempt = await c.attempts.find(rollout_id, attempt_id)
            if rollout is not None and attempt is not None:
                plan = Plan(self._now())
                await self._signs_of_life(c, plan, [(rollout, attempt)])
                plan.late.clear()  # the span was counted when it came
                await self._carry_out(c, plan)

        await self._write_section(work)

    async def _update_attempt(
        self,
        c: MongoLightningCollections,
        rollout_id: str,
        attempt_id: str,
        changes: dict[str, Any],
    ) -> Attempt:
        # Its answer has the last heartbeat, which other processes may have written since.
        _section(c).hand_out_no_rollout(self.collections.heartbeat_seconds)
        return await super()._update_attempt(c, rollout_id, attempt_id, changes)

    def _settled(self, plan: Plan) -> None:
        super()._settled(plan)
        if plan.finished:
            self._bell.ring([rollout.rollout_id for rollout in plan.finished])

    async def _latest_attempt(self, c: LightningCollections, rollout_id: str) -> Attempt | None:
        return await _views(c).attempts.latest(rollout_id)

    async def _latest_attempts(
        self, c: LightningCollections, rollout_ids: Sequence[str]
    ) -> dict[str, Attempt]:
        return await _views(c).attempts.latest_of(rollout_ids)

    @operation
    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        await self.watchdog.look_in_call()
        by_rollout: dict[str, list[int]] = {}
        for i, update in enumerate(updates):
            by_rollout.setdefault(update.rollout_id, []).append(i)
        results: dict[int, Attempt | StoreError] = {}

        async def in_turn(places: Sequence[int]) -> None:
            for i in places:
                results[i] = await self._updated(updates[i])

        await asyncio.gather(*(in_turn(places) for places in by_rollout.values()))
        ordered = [results[i] for i in range(len(updates))]
        return [r if isinstance(r, StoreError) else self._given(r) for r in ordered]

    async def _updated(self, update: AttemptUpdate) -> Attempt | StoreError:
        async def work(c: MongoLightningCollections) -> Attempt:
            return await self._update_attempt(
                c, update.rollout_id, update.attempt_id, update.changes()
            )

        try:
            return await self._write_section(work)
        except StoreError as error:
            return error

    # The queue

    async def _dequeue(self, limit: int, worker_id: str | None) -> list[Pair]:
        """Claims are made one by one and each is whole in itself, so none needs the others."""
        limit = min(limit, MOST_CLAIMS)
        ids = request_ids()
        if ids is None or not ids.sent_again:
            return await self._claim_some(limit, worker_id)
        drawn = set(map(attempt_id_of, ids.first(limit + _LOST_CLAIMS, ATTEMPT_DIGITS)))
        dequeue = Dequeue(ids.mark, drawn)
        claims = self._repeated_claims()
        try:
            told = await claims.told(dequeue, limit)
            if not told and await self._claim_some(limit, worker_id):
                told = await claims.told(dequeue, limit)
            return told
        finally:
            claims.look_after(dequeue)  # not before, lest it gives back what is claimed here

    async def _claim_some(self, limit: int, worker_id: str | None) -> list[Pair]:
        claimed: list[Pair] = []
        synced = True
        tries = 0
        while len(claimed) < limit:
            lane = await self.collections.lane()
            waiting = await lane.queue.take(limit - len(claimed))
            if not waiting:
                break
            won = await self._claim_each(lane, waiting, worker_id)
            claimed += won
            synced = bool(won) and won[-1][0].rollout_id == waiting[-1].rollout_id
            if len(won) < len(waiting):
                await conflict_pause(tries)
                tries += 1
        if not claimed and worker_id:
            await self._note_idle(worker_id)
        elif claimed and worker_id and not synced:
            plan = Plan(self._now())
            plan.sync_worker(claimed[-1][1], dequeued=True)
            await self._carry_out(self.collections.section(), plan)
        return claimed

    def _repeated_claims(self) -> RepeatedClaims:
        loop = asyncio.get_running_loop()
        claims = self._claims.get(loop)
        if claims is None:
            claims = self._claims[loop] = RepeatedClaims(self.collections, self._give_back)
        return claims

    async def _give_back(self, rollout_id: str, is_lost: Callable[[Root], bool]) -> bool:
        async def work(c: MongoLightningCollections) -> bool:
            root = await _section(c).root(rollout_id)
            if root is None or root.latest is None or not is_lost(root):
                return False
            plan = Plan(self._now())
            plan.give_back(root.rollout, root.latest)
            await self._carry_out(c, plan)
            return True

        return await self._write_section(work)

    async def _claim_each(
        self, lane: Lane, waiting: Sequence[Root], worker_id: str | None
    ) -> list[Pair]:
        last = waiting[-1]
        try:
            tries = await asyncio.gather(
                *(self._claim_one(root, worker_id, leads=root is last) for root in waiting),
                return_exceptions=True,
            )
        finally:
            lane.queue.give_back([root.rollout_id for root in waiting])
        won = [pair for pair in tries if isinstance(pair, tuple)]
        lane.queue.note_collisions(len(tries) - len(won))
        failed = [one for one in tries if isinstance(one, BaseException)]
        if failed and not won:
            raise failed[0]
        return won

    async def _claim_one(self, root: Root, worker_id: str | None, *, leads: bool) -> Pair | None:
        plan = Plan(self._now())
        claim = plan.start_attempt(root.rollout, root.latest, worker_id, dequeued=True)
        if leads:
            plan.sync_worker(claim[1], dequeued=True)
        section = self.collections.section()
        section.remember(root)
        try:
            await self._carry_out(section, plan)
        except ConflictError:
            return None
        return claim

    async def _note_idle(self, worker_id: str) -> None:
        async def work(c: MongoLightningCollections) -> None:
            plan = Plan(self._now())
            plan.idle_worker(worker_id, await c.workers.find(worker_id))
            await self._carry_out(c, plan)

        await self._write_section(work, ("workers",))

    # Resources

    async def _default_resources_id(self, c: LightningCollections, *, many: bool) -> str | None:
        return await _section(c).latest_resources_id(many=many)

    async def _latest_resources(self, c: LightningCollections) -> ResourcesUpdate | None:
        lane = await self.collections.lane()
        latest_id = await lane.head.read()
        return None if latest_id is None else await c.resources.find(latest_id)

    async def _put_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        ids = request_ids()
        if ids is not None and ids.sent_again:
            written = await self.collections.resources_of_request(resources_id, ids.mark)
            if written is not None:
                logger.info("A request that was sent again had been carried out already")
                return written
        return await super()._put_resources(resources_id, resources)

    async def _store_resources(
        self,
        c: LightningCollections,
        update: ResourcesUpdate,
        stored: ResourcesUpdate | None,
    ) -> None:
        ids = request_ids()
        await _section(c).put_resources(update, stored, None if ids is None else ids.mark)

    # Waiting

    def _watch(self) -> Watch:
        return _MongoWatch(self._bell.watch(), self._watcher())

    def _watcher(self) -> FinishWatcher:
        loop = asyncio.get_running_loop()
        watcher = self._watchers.get(loop)
        if watcher is None:
            database = self._pool.database(self.database_name)
            watcher = self._watchers[loop] = FinishWatcher(
                database,
                self.partition_id,
                self._bell.ring,
                self._bell.nudge,
                self._bell.awaited,
            )
        return watcher

    # Watchdog

    @operation
    async def _scan_for_unhealthy_rollouts(self, limit: int) -> int:
        """Give up overdue attempts; of several processes that look, one acts."""
        await self.collections.lane()  # before the clock is asked, which is MongoDB's
        now = self._now()
        due = await self.collections.due(now, limit, adopt=not self._adopted)
        self._adopted = self._adopted or len(due) < limit
        await asyncio.gather(*(self._look_at(rollout_id, now) for rollout_id in due))
        if self._reconciling.is_due():
            self.collections.lane_now().run_beside(self._reconcile_in_turn())
        return len(due)

    async def _look_at(self, rollout_id: str, now: float) -> None:
        async def look(c: MongoLightningCollections) -> None:
            _section(c).guard_heartbeats()
            rollout = await c.rollouts.find(rollout_id)
            attempt = await self._latest_attempt(c, rollout_id)
            plan = Plan(now)
            if rollout is not None:
                status = None if attempt is None else rules.overdue(rollout, attempt, now)
                if attempt is None or status is None:
                    plan.touched.append((rollout, attempt))
                else:
                    plan.give_up(rollout, attempt, status)
            await self._carry_out(c, plan)

        await self._write_section(look)

    def reconcile_soon(self) -> None:
        """A server process has died, or may have: compare the totals with what is there soon."""
        self._reconciling.soon()

    async def _reconcile_in_turn(self) -> None:
        await self._reconciling.run(await self.collections.lane())

    async def reconcile(self) -> Mapping[str, int]:
        """Compare the totals with what is there and correct them; returns what was added.

        Nothing is done while anybody writes. Counts all documents of the partition.
        """
        return await reconcile(await self.collections.lane()) or {}


def _section(c: LightningCollections) -> Section:
    """What ``execute`` gives to its callback."""
    if not isinstance(c, Section):
        raise TypeError(f"a section of a MongoDB store is needed, not {type(c).__name__}")
    return c


def _views(c: LightningCollections) -> Section | MongoLightningCollections:
    if not isinstance(c, Section | MongoLightningCollections):
        raise TypeError(f"collections in MongoDB are needed, not {type(c).__name__}")
    return c


def _note_paces(section: Section, plan: Plan) -> None:
    for rollout, attempt in plan.touched:
        section.plan_pace(rollout.rollout_id, _pace(rollout, attempt))


def _pace(rollout: Rollout, attempt: Attempt | None) -> Pace:
    if attempt is None or rollout.status not in RUNNING_STATUSES:
        return NOT_UNDER_WAY
    return Pace(rules.deadline(rollout, attempt), attempt.start_time)


class _MongoWatch:
    """Woken by finishes in this process, and through the watcher by those in others."""

    def __init__(self, inner: BellWatch, watcher: FinishWatcher) -> None:
        self._inner = inner
        self._watcher = watcher
        self._sleeps = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        if self._sleeps:
            self._watcher.leave()

    def arm(self, rollout_ids: Iterable[str]) -> None:
        self._inner.arm(rollout_ids)

    def narrow(self, rollout_ids: Iterable[str]) -> None:
        self._inner.narrow(rollout_ids)

    async def sleep(self, seconds: float | None) -> None:
        """As promised. When the watcher begins to see finishes, it has everybody look once more."""
        if not self._sleeps:
            self._sleeps = True
            self._watcher.enter()
        await self._inner.sleep(seconds)
