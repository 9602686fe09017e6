"""Any store, made safe to share between threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from agl.errors import StoreError
from agl.store.base import (
    UNSET,
    FilterLogic,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    SortOrder,
    Unset,
)
from agl.store.watchdog import Watchdog
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    AttemptUpdate,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    StoreState,
    StuckItem,
    TaskInput,
    Worker,
    WorkerStatus,
)
from agl.utils.locks import AsyncLock

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class LightningStoreThreaded(LightningStore):
    """Lets one call at a time into the wrapped store, from whatever thread or event loop.

    Waiting for one's turn blocks no event loop. Calls that wait for rollouts take no turn. The
    watchdog of the wrapped store, if it has one, is offered as ``watchdog`` and takes turns too.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._lock = AsyncLock()
        watchdog: Any = getattr(store, "watchdog", None)
        if isinstance(watchdog, Watchdog):
            self.watchdog = watchdog.taking_turns(self._lock)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        inner = self.store.capabilities
        return LightningStoreCapabilities(
            thread_safe=True,
            async_safe=True,
            zero_copy=inner.get("zero_copy", False),
            otlp_traces=inner.get("otlp_traces", False),
        )

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    async def statistics(self) -> LightningStoreStatistics:
        async with self._lock:
            return await self.store.statistics()

    async def state(self) -> StoreState:
        async with self._lock:
            return await self.store.state()

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        async with self._lock:
            return await self.store.start_rollout(
                input, mode, resources_id, config, metadata, worker_id
            )

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        async with self._lock:
            return await self.store.enqueue_rollout(input, mode, resources_id, config, metadata)

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        async with self._lock:
            return await self.store.enqueue_many_rollouts(rollouts)

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        async with self._lock:
            return await self.store.dequeue_rollout(worker_id)

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        async with self._lock:
            return await self.store.dequeue_many_rollouts(limit=limit, worker_id=worker_id)

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        async with self._lock:
            return await self.store.start_attempt(rollout_id, worker_id)

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        async with self._lock:
            return await self.store.query_rollouts(
                status_in=status_in,
                rollout_id_in=rollout_id_in,
                rollout_id_contains=rollout_id_contains,
                filter_logic=filter_logic,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
                status=status,
                rollout_ids=rollout_ids,
            )

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        async with self._lock:
            return await self.store.get_rollout_by_id(rollout_id)

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        async with self._lock:
            return await self.store.update_rollout(
                rollout_id, input, mode, resources_id, status, config, metadata
            )

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        return await self.store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        async with self._lock:
            return await self.store.query_attempts(
                rollout_id, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset
            )

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        async with self._lock:
            return await self.store.get_latest_attempt(rollout_id)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        async with self._lock:
            return await self.store.update_attempt(
                rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata
            )

    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        async with self._lock:
            return await self.store.update_many_attempts(updates)

    async def find_stuck(self, limit: int = 20) -> Sequence[StuckItem]:
        async with self._lock:
            return await self.store.find_stuck(limit)

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        async with self._lock:
            return await self.store.get_next_span_sequence_id(rollout_id, attempt_id)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        async with self._lock:
            return await self.store.get_many_span_sequence_ids(rollout_attempt_ids)

    async def add_span(self, span: Span) -> Span | None:
        async with self._lock:
            return await self.store.add_span(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        async with self._lock:
            return await self.store.add_many_spans(spans)

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        async with self._lock:
            return await self.store.add_otel_span(
                rollout_id, attempt_id, readable_span, sequence_id
            )

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        async with self._lock:
            return await self.store.query_spans(
                rollout_id,
                attempt_id,
                trace_id=trace_id,
                trace_id_contains=trace_id_contains,
                span_id=span_id,
                span_id_contains=span_id_contains,
                parent_id=parent_id,
                parent_id_contains=parent_id_contains,
                name=name,
                name_contains=name_contains,
                filter_logic=filter_logic,
                limit=limit,
                offset=offset,
                sort_by=sort_by,
                sort_order=sort_order,
            )

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        async with self._lock:
            return await self.store.query_resources(
                resources_id=resources_id,
                resources_id_contains=resources_id_contains,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
            )

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        async with self._lock:
            return await self.store.add_resources(resources)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        async with self._lock:
            return await self.store.update_resources(resources_id, resources)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        async with self._lock:
            return await self.store.get_resources_by_id(resources_id)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        async with self._lock:
            return await self.store.get_latest_resources()

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        async with self._lock:
            return await self.store.query_workers(
                status_in=status_in,
                worker_id_contains=worker_id_contains,
                filter_logic=filter_logic,
                sort_by=sort_by,
                sort_order=sort_order,
                limit=limit,
                offset=offset,
            )

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        async with self._lock:
            return await self.store.get_worker_by_id(worker_id)

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        async with self._lock:
            return await self.store.update_worker(worker_id, heartbeat_stats)
