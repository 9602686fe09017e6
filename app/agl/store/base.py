"""The contract of a store: what every backend, wrapper, server and client offers.

A *rollout* is one task for an agent, an *attempt* one try at it, a *span* one OpenTelemetry record
of an attempt, *resources* a versioned bundle an attempt uses, a *worker* a process that takes
rollouts.

Every method is a coroutine unless it says otherwise. Times are float seconds since the epoch.
Returned objects are the caller's own: changing them changes nothing in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from agl.errors import BackendError, StoreError
from agl.types import (
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    RUNNING_STATUSES,
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

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class _UnsetType:
    """Type of :data:`UNSET`: an argument that was not given, as distinct from ``None``."""

    _instance: _UnsetType | None = None

    def __new__(cls) -> _UnsetType:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> tuple[type[_UnsetType], tuple[()]]:
        return (_UnsetType, ())


UNSET = _UnsetType()
Unset = _UnsetType

SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]


def is_queuing(rollout: Rollout) -> bool:
    """Whether the rollout waits in the queue."""
    return rollout.status in QUEUING_STATUSES


def is_running(rollout: Rollout) -> bool:
    """Whether an attempt at the rollout is under way."""
    return rollout.status in RUNNING_STATUSES


def is_finished(rollout: Rollout) -> bool:
    """Whether the rollout has ended (failed, succeeded or cancelled)."""
    return rollout.status in FINISHED_STATUSES


class LightningStoreCapabilities(TypedDict, total=False):
    """What a store can do; a missing key means it cannot."""

    thread_safe: bool
    """Safe to call from several threads."""

    async_safe: bool
    """Safe to call from several tasks of one event loop."""

    zero_copy: bool
    """The same object may be used from several processes (state is shared elsewhere)."""

    otlp_traces: bool
    """Takes spans over OTLP at :meth:`LightningStore.otlp_traces_endpoint`."""


class LightningStoreStatistics(TypedDict, total=False):
    """Totals of a store. ``uptime`` in seconds, the others are counts or bytes."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int


class LightningStore:
    """Base of every store. Methods a subclass does not offer raise ``NotImplementedError``."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do; nothing, unless a subclass says so."""
        return LightningStoreCapabilities(
            thread_safe=False, async_safe=False, zero_copy=False, otlp_traces=False
        )

    def otlp_traces_endpoint(self) -> str:
        """URL that takes OTLP traces over HTTP (not a coroutine).

        Raises:
            NotImplementedError: the store has none.
        """
        raise NotImplementedError

    async def statistics(self) -> LightningStoreStatistics:
        """Totals; at least the ``name`` of the store."""
        return LightningStoreStatistics(name=type(self).__name__)

    async def state(self) -> StoreState:
        """Figures to watch: statuses, ages, what is missing; cheap however much is stored.

        They are those of the whole store, whichever of its processes is asked.

        Raises:
            NotImplementedError: the store does not keep them.
        """
        raise NotImplementedError(f"{type(self).__name__} does not keep the figures of its state")

    # Rollouts

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout with its first attempt under way, past the queue.

        ``resources_id`` defaults to the latest resources and is not checked. With ``worker_id``
        the worker becomes busy with it.
        """
        raise NotImplementedError

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Create a rollout at the end of the queue."""
        raise NotImplementedError

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Create rollouts at the end of the queue, in the order given."""
        raise NotImplementedError

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        """Claim the oldest queued rollout and start an attempt; ``None`` when none is queued."""
        raise NotImplementedError

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        """Claim up to ``limit`` rollouts, oldest first; fewer when the queue is short."""
        raise NotImplementedError

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        """Start one more attempt, whatever the rollout's status; ``max_attempts`` is not checked.

        Raises:
            RolloutNotFoundError: no such rollout.
        """
        raise NotImplementedError

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
        """A page of rollouts, each with its latest attempt where it has one.

        ``status`` and ``rollout_ids`` are the deprecated names of ``status_in`` and
        ``rollout_id_in``, used only where the new one is ``None``.

        Raises:
            InvalidRequestError: ``sort_by`` is not a field of :class:`Rollout`.
        """
        raise NotImplementedError

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """The rollout, with its latest attempt where it has one; ``None`` when unknown."""
        raise NotImplementedError

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
        """Write the fields given. A finishing status sets ``end_time``; any other clears it.

        A status of queuing or requeuing puts the rollout into the queue unless it is there.

        Raises:
            RolloutNotFoundError: no such rollout.
            pydantic.ValidationError: a value of the wrong type.
        """
        raise NotImplementedError

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        """Wait until all are finished or ``timeout`` seconds have passed.

        Returns the finished ones in the order asked; unknown ids are left out at once.
        """
        raise NotImplementedError

    # Attempts

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """A page of the rollout's attempts; empty when the rollout is unknown."""
        raise NotImplementedError

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The attempt with the highest ``sequence_id``; ``None`` when there is none."""
        raise NotImplementedError

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        """Write the fields given; a status on the latest attempt moves the rollout along.

        Raises:
            RolloutNotFoundError: no such rollout.
            AttemptNotFoundError: no such attempt, or no attempt at all.
            pydantic.ValidationError: a value of the wrong type.
        """
        raise NotImplementedError

    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        """Update attempts one after the other.

        Returns for each update, in the order given, the attempt as it is then, or the error that
        ``update_attempt`` raised; one failure does not stop the others.

        Raises:
            BackendError: the database failed.
        """
        results: list[Attempt | StoreError] = []
        for update in updates:
            try:
                results.append(
                    await self.update_attempt(
                        update.rollout_id, update.attempt_id, **update.changes()
                    )
                )
            except BackendError:
                raise
            except StoreError as error:
                results.append(error)
        return results

    async def find_stuck(self, limit: int = 20) -> Sequence[StuckItem]:
        """The rollouts that have been queued, running and silent longest, ``limit`` of each kind.

        The running and silent ones are chosen among the 1,000 oldest rollouts under way.

        Raises:
            NotImplementedError: the store cannot tell.
        """
        raise NotImplementedError

    # Spans

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """The next number of the rollout's span counter, which starts at 1 and never repeats.

        The counter belongs to the rollout, whose attempts share it; the rollout need not exist.
        """
        raise NotImplementedError

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """One number for each (rollout id, attempt id), in the order asked."""
        raise NotImplementedError

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; ``None`` when the attempt already has one with this span id.

        Raises:
            RolloutNotFoundError, AttemptNotFoundError: it belongs to nothing known.
        """
        raise NotImplementedError

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans and return the newly stored ones in the order given.

        Raises:
            RolloutNotFoundError, AttemptNotFoundError: a span belongs to nothing known.
        """
        raise NotImplementedError

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        """Convert a span of the OpenTelemetry SDK and store it; a number is issued if missing."""
        raise NotImplementedError

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
        """A page of the rollout's spans.

        Rollout and attempt always apply; ``filter_logic`` joins the other filters.

        Raises:
            SpansEvictedError: they were given up to free memory.
        """
        raise NotImplementedError

    # Resources

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
        """A page of resources; both filters must match."""
        raise NotImplementedError

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store new resources as version 1 under a new id; they become the latest."""
        raise NotImplementedError

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        """Replace resources and raise their version, or create them; they become the latest."""
        raise NotImplementedError

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources, or ``None`` when unknown."""
        raise NotImplementedError

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The resources added or updated last, or ``None``."""
        raise NotImplementedError

    # Workers

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
        """A page of workers."""
        raise NotImplementedError

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """The worker, or ``None`` when unknown."""
        raise NotImplementedError

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        """Note a heartbeat, with its statistics if given; a new worker is created."""
        raise NotImplementedError
