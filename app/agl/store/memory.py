"""The store in the memory of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import cast

from agl.errors import InvalidRequestError
from agl.store._core import Pair
from agl.store._eviction import SpanBudget
from agl.store._plan import Plan
from agl.store._state import StateTally, how_many
from agl.store._waiting import Bell, Watch
from agl.store.base import (
    LightningStoreCapabilities,
    LightningStoreStatistics,
    is_finished,
    is_queuing,
)
from agl.store.collection.base import LightningCollections
from agl.store.collection.memory import InMemoryLightningCollections
from agl.store.collection_based import CollectionBasedLightningStore
from agl.store.watchdog import Deadlines
from agl.types import (
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    ResourcesUpdate,
    Span,
    StoreState,
)
from agl.utils.cgroup import memory_limit
from agl.utils.metrics import MetricsBackend

__all__ = ["InMemoryLightningStore", "InMemoryStoreStatistics"]

_DEFAULT_CAPACITY = 8 * 2**30
_EVICTION_SECONDS = 0.005
"""Longest that one call spends on giving up spans; the next call goes on."""


class InMemoryStoreStatistics(LightningStoreStatistics, total=False):
    """Totals of a store in memory."""

    evicted_spans: int
    """Spans given up to free memory."""

    evicted_rollouts: int
    """Rollouts whose spans, or some of them, were given up."""


class InMemoryLightningStore(CollectionBasedLightningStore[InMemoryLightningCollections]):
    """Keeps everything in memory; spans of the oldest finished rollouts go when it runs short.

    Args:
        thread_safe: Allow calls from several threads and event loops at once.
        eviction_memory_threshold: Bytes of spans (int), or share of the memory that this process
            may take of the machine, by its cgroup too (float), above which spans are given up;
            70 % of the memory by default.
        safe_memory_threshold: Bytes or share at which that ends; 80 % of the threshold by default.
        span_size_estimator: Bytes that a span takes; by default what it is known to take.
        tracker: Where operations are counted and timed.
        scan_debounce_seconds: Shortest time between two looks of the watchdog inside calls.

    Raises:
        InvalidRequestError: thresholds that make no sense (a ``ValueError``).
    """

    def __init__(
        self,
        *,
        thread_safe: bool = False,
        eviction_memory_threshold: float | int | None = None,
        safe_memory_threshold: float | int | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        tracker: MetricsBackend | None = None,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        self._thread_safe = thread_safe
        self._memory_capacity = _detect_total_memory_bytes()
        threshold = _eviction_threshold(eviction_memory_threshold, self._memory_capacity)
        safe = _safe_threshold(safe_memory_threshold, threshold, self._memory_capacity)
        self._budget = SpanBudget(threshold, safe)
        self._estimate = span_size_estimator
        self._bell = Bell()
        self._deadlines = Deadlines()
        self._latest_resources_id: str | None = None
        super().__init__(
            InMemoryLightningCollections("thread" if thread_safe else "asyncio", tracker),
            tracker=tracker,
            scan_debounce_seconds=scan_debounce_seconds,
        )
        self._tally = StateTally(self._now)
        c = self.collections
        c.rollouts.observe(("status", "mode"), self._tally.rollout)
        c.attempts.observe(("status",), self._tally.attempt)
        heard = ("status", "last_heartbeat_time", "last_dequeue_time")
        c.workers.observe(heard, self._tally.worker)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=self._thread_safe, async_safe=True, zero_copy=False, otlp_traces=False
        )

    async def statistics(self) -> InMemoryStoreStatistics:
        totals = cast("InMemoryStoreStatistics", await super().statistics())
        totals.update(
            total_span_bytes=self._budget.total,
            eviction_threshold_bytes=self._budget.threshold,
            safe_threshold_bytes=self._budget.safe,
            memory_capacity_bytes=self._memory_capacity,
            evicted_spans=self._budget.evicted_spans,
            evicted_rollouts=self._budget.evicted_rollouts,
        )
        return totals

    async def state(self) -> StoreState:
        now = self._now()
        c, budget = self.collections, self._budget
        figures = self._tally.figures(now)
        return StoreState(
            name=type(self).__name__,
            queue_depth=how_many(figures["rollouts"], QUEUING_STATUSES),
            oldest_queued_age_seconds=await self._longest_wait(now),
            running_attempts=how_many(figures["rollouts"], RUNNING_STATUSES),
            spans_stored=await c.spans.size(),
            spans_evicted=budget.evicted_spans,
            span_bytes=budget.total,
            eviction_threshold_bytes=budget.threshold,
            safe_threshold_bytes=budget.safe,
            memory_capacity_bytes=self._memory_capacity,
            **figures,
        )

    async def _longest_wait(self, now: float) -> float:
        c = self.collections
        for rollout_id in await c.rollout_queue.peek():
            rollout = await c.rollouts.find(rollout_id)
            if rollout is not None and is_queuing(rollout):
                return max(now - self._tally.entered_queue(rollout), 0.0)
        return 0.0

    def _settled(self, plan: Plan) -> None:
        super()._settled(plan)
        self._tally.under_way(plan.touched)
        for rollout, attempt in plan.touched:
            if attempt is not None:
                self._deadlines.watch(rollout, attempt)
        if plan.reopened:
            self._budget.reopen([rollout.rollout_id for rollout in plan.reopened])
        if plan.finished:
            finished = [rollout.rollout_id for rollout in plan.finished]
            self._budget.finish(finished)
            self._bell.ring(finished)

    def _watch(self) -> Watch:
        return self._bell.watch()

    async def _latest_attempt(self, c: LightningCollections, rollout_id: str) -> Attempt | None:
        return await self.collections.attempts.find_newest(rollout_id, "sequence_id")

    # Watchdog

    def _nothing_due(self, now: float) -> bool:
        return not self._deadlines.any_due(now)

    async def _watched_rollouts(
        self, c: LightningCollections, now: float, limit: int
    ) -> tuple[list[Pair], int]:
        due = self._deadlines.take_due(now, limit)
        rollouts = await self._rollouts_by_id(c, due)
        latest = await self._latest_attempts(c, due)
        pairs = [
            (rollout, latest[rollout_id])
            for rollout_id, rollout in rollouts.items()
            if rollout_id in latest
        ]
        return pairs, len(due)

    def _looked_after(self) -> None:
        self._deadlines.done()

    # Resources

    async def _latest_resources(self, c: LightningCollections) -> ResourcesUpdate | None:
        if self._latest_resources_id is None:
            return None
        return await c.resources.find(self._latest_resources_id)

    def _resources_written(self, update: ResourcesUpdate) -> None:
        self._latest_resources_id = update.resources_id

    # Eviction

    def _check_spans_kept(self, rollout_id: str, attempt_id: str | None) -> None:
        self._budget.check_kept(rollout_id, attempt_id)

    async def _spans_stored(
        self, c: InMemoryLightningCollections, spans: Sequence[Span], attempts: Sequence[Pair]
    ) -> None:
        if not spans:
            return
        self._tally.spans(spans, attempts)
        finished = {rollout.rollout_id: is_finished(rollout) for rollout, _ in attempts}
        estimate = self._estimate or c.spans.bytes_of
        for span in spans:
            size = max(0, int(estimate(span)))
            self._budget.add(span.rollout_id, size, finished=finished[span.rollout_id])
        if self._budget.over():
            await self._evict(c, finished)

    async def _evict(self, c: InMemoryLightningCollections, writing: dict[str, bool]) -> None:
        give_up = perf_counter() + _EVICTION_SECONDS
        while (victim := self._budget.next_victim(writing)) is not None:
            spans = await c.evict_spans_for_rollout(victim)
            self._budget.evicted(victim, spans)
            if self.recorder is not None:
                self.recorder.evicted_spans(sum(spans.values()))
            if perf_counter() > give_up:
                return


def _detect_total_memory_bytes() -> int:
    """What the machine has, or the container may take of it."""
    try:
        import psutil
    except ImportError:
        total = _DEFAULT_CAPACITY
    else:
        total = psutil.virtual_memory().total
    return min(total, memory_limit() or total)


def _eviction_threshold(value: float | int | None, capacity: int) -> int:
    if value is None:
        return int(0.7 * capacity)
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise InvalidRequestError(
                f"eviction_memory_threshold as a share must be above 0 and at most 1, not {value}"
            )
        return int(value * capacity)
    if value < 0:
        raise InvalidRequestError("eviction_memory_threshold must be non-negative")
    if value < 1:
        raise InvalidRequestError("eviction_memory_threshold must be at least 1 bytes")
    return value


def _safe_threshold(value: float | int | None, threshold: int, capacity: int) -> int:
    if value is None:
        return int(0.8 * threshold)
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise InvalidRequestError(
                f"safe_memory_threshold as a share must be between 0 and 1, not {value}"
            )
        value = int(value * capacity)
    if value < 0:
        raise InvalidRequestError("safe_memory_threshold must be non-negative")
    if value >= threshold:
        raise InvalidRequestError(
            "safe_memory_threshold must be smaller than eviction_memory_threshold"
        )
    return value
