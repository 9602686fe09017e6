"""The seam between the store and its backends: typed collections, a queue, counters.

The rules of the store live above this seam, the drivers below it. Calls that touch several items
take them in bulk, so that a backend can answer with one round trip.

Items handed to a collection belong to it, and items it returns must not be changed: a change is
written by passing a new item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal, Self, TypeVar

from agl.errors import DuplicatedPrimaryKeyError
from agl.store.collection.query import (
    FilterMap,
    merge_must_filters,
    normalize_filter_options,
    resolve_sort_options,
)
from agl.store.collection.writes import WriteBatch
from agl.types import (
    Attempt,
    FilterOptions,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    SortOptions,
    Span,
    Worker,
)
from agl.utils.metrics import MetricsBackend

__all__ = [
    "AtomicLabels",
    "AtomicMode",
    "Collection",
    "DuplicatedPrimaryKeyError",
    "FilterMap",
    "FilterOptions",
    "KeyValue",
    "LightningCollections",
    "PaginatedResult",
    "Queue",
    "SortOptions",
    "ensure_numeric",
    "merge_must_filters",
    "normalize_filter_options",
    "resolve_sort_options",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

AtomicMode = Literal["r", "w", "rw"]
AtomicLabels = Literal[
    "rollouts",
    "attempts",
    "spans",
    "resources",
    "workers",
    "rollout_queue",
    "span_sequence_ids",
    "generic",
]


class Collection(ABC, Generic[T]):
    """Items with a primary key of one or more string fields."""

    @abstractmethod
    def primary_keys(self) -> Sequence[str]:
        """Names of the fields that make the primary key."""

    @abstractmethod
    def item_type(self) -> type[T]:
        """Class of the items."""

    @abstractmethod
    async def size(self) -> int:
        """Number of items."""

    @abstractmethod
    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[T]:
        """A page of the items that match; ``total`` counts all of them.

        Raises:
            InvalidRequestError: an unknown operator, aggregate, sort field or order.
        """

    @abstractmethod
    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> T | None:
        """The first match, or ``None``.

        Raises:
            InvalidRequestError: as :meth:`query`.
        """

    async def find(self, *key: str) -> T | None:
        """The item with this primary key, or ``None``."""
        fields = zip(self.primary_keys(), key, strict=True)
        return await self.get({field: {"exact": value} for field, value in fields})

    @abstractmethod
    async def insert(self, items: Sequence[T]) -> None:
        """Store new items, all of them or none.

        Raises:
            DuplicatedPrimaryKeyError: a key is stored already or occurs twice in ``items``.
            TypeError: an item is of the wrong class.
        """

    @abstractmethod
    async def insert_missing(self, items: Sequence[T]) -> Sequence[T]:
        """Store the items whose key is not stored yet and return them, in the order given.

        Of items with the same key the first is stored.

        Raises:
            TypeError: an item is of the wrong class.
        """

    @abstractmethod
    async def update(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        """Replace stored items, or only ``update_fields`` of them, and return what is stored now.

        Raises:
            NotFoundError: a key is not stored (a ``ValueError``).
        """

    @abstractmethod
    async def upsert(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        """Store new items whole; of those stored already, replace all or only ``update_fields``.

        With an empty list of fields, stored items stay as they are. Returns what is stored now.
        """

    @abstractmethod
    async def delete(self, items: Sequence[T]) -> None:
        """Remove items.

        Raises:
            NotFoundError: a key is not stored (a ``ValueError``).
        """


class Queue(ABC, Generic[T]):
    """First in, first out; the same item may be in it more than once."""

    @abstractmethod
    def item_type(self) -> type[T]:
        """Class of the items."""

    @abstractmethod
    async def has(self, item: T) -> bool:
        """Whether the item waits in the queue."""

    @abstractmethod
    async def enqueue(self, items: Sequence[T]) -> Sequence[T]:
        """Append items and return them.

        Raises:
            TypeError: an item is of the wrong class; nothing is appended.
        """

    async def enqueue_missing(self, items: Sequence[T]) -> Sequence[T]:
        """Append the items that are not in the queue yet, and return them."""
        added: list[T] = []
        for item in items:
            if not await self.has(item):
                added.extend(await self.enqueue([item]))
        return added

    @abstractmethod
    async def dequeue(self, limit: int = 1) -> Sequence[T]:
        """Take up to ``limit`` items from the front."""

    @abstractmethod
    async def peek(self, limit: int = 1) -> Sequence[T]:
        """The first ``limit`` items, which stay in the queue."""

    @abstractmethod
    async def discard(self, items: Sequence[T]) -> int:
        """Remove items wherever they are in the queue, and return how many entries went."""

    @abstractmethod
    async def size(self) -> int:
        """Number of entries."""


class KeyValue(ABC, Generic[K, V]):
    """A mapping with atomic counters."""

    @abstractmethod
    async def has(self, key: K) -> bool:
        """Whether the key is stored."""

    @abstractmethod
    async def get(self, key: K, default: V | None = None) -> V | None:
        """The value, or ``default``."""

    @abstractmethod
    async def set(self, key: K, value: V) -> None:
        """Store a value."""

    @abstractmethod
    async def inc(self, key: K, amount: V) -> V:
        """Add to a number (a missing one counts as 0) and return the sum.

        Raises:
            TypeError: the amount or the stored value is not a number.
        """

    @abstractmethod
    async def chmax(self, key: K, value: V) -> V:
        """Raise a number to at least ``value`` and return the result.

        Raises:
            TypeError: the value or the stored value is not a number.
        """

    async def inc_many(self, amounts: Mapping[K, V]) -> Mapping[K, V]:
        """:meth:`inc` for several keys; returns the sums."""
        return {key: await self.inc(key, amount) for key, amount in amounts.items()}

    async def chmax_many(self, values: Mapping[K, V]) -> Mapping[K, V]:
        """:meth:`chmax` for several keys; returns the results."""
        return {key: await self.chmax(key, value) for key, value in values.items()}

    @abstractmethod
    async def pop(self, key: K, default: V | None = None) -> V | None:
        """Remove a key and return its value, or ``default``."""

    @abstractmethod
    async def size(self) -> int:
        """Number of keys."""


class LightningCollections(ABC):
    """The seven collections of a store."""

    @property
    @abstractmethod
    def tracker(self) -> MetricsBackend | None:
        """Where calls are counted and timed."""

    @property
    @abstractmethod
    def rollouts(self) -> Collection[Rollout]:
        """Key ``rollout_id``."""

    @property
    @abstractmethod
    def attempts(self) -> Collection[Attempt]:
        """Key ``rollout_id``, ``attempt_id``."""

    @property
    @abstractmethod
    def spans(self) -> Collection[Span]:
        """Key ``rollout_id``, ``attempt_id``, ``span_id``.

        Unlike the others it keeps none of the objects it is given, and returns new ones.
        """

    @property
    @abstractmethod
    def resources(self) -> Collection[ResourcesUpdate]:
        """Key ``resources_id``."""

    @property
    @abstractmethod
    def workers(self) -> Collection[Worker]:
        """Key ``worker_id``."""

    @property
    @abstractmethod
    def rollout_queue(self) -> Queue[str]:
        """Ids of the rollouts that wait for a worker."""

    @property
    @abstractmethod
    def span_sequence_ids(self) -> KeyValue[str, int]:
        """Highest span number issued or seen, by rollout id."""

    @abstractmethod
    def atomic(
        self,
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
        **kwargs: Any,
    ) -> AbstractAsyncContextManager[Self]:
        """A section in which nobody else touches the collections named by ``labels``.

        Mode ``r`` without ``snapshot`` excludes nobody. No labels mean all. Sections do not nest.
        ``commit`` asks for a transaction where the backend has them.
        """

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
        """Run ``callback`` on the collections in an atomic section; a backend may repeat it."""
        async with self.atomic(
            mode=mode, snapshot=snapshot, commit=commit, labels=labels, **kwargs
        ) as collections:
            return await callback(collections)

    async def write(self, batch: WriteBatch) -> None:
        """Carry out all writes of one decision, with as few calls as possible.

        To be called inside an atomic section that covers what the batch touches.
        """
        if batch.new_rollouts:
            await self.rollouts.insert(batch.new_rollouts)
        if batch.new_attempts:
            await self.attempts.insert(batch.new_attempts)
        for fields, rollouts in batch.rollouts.items():
            await self.rollouts.update(rollouts, fields)
        for fields, attempts in batch.attempts.items():
            await self.attempts.update(attempts, fields)
        if batch.take:
            await self.rollout_queue.dequeue(batch.take)
        if batch.leave_queue:
            await self.rollout_queue.discard(batch.leave_queue)
        if batch.enqueue:
            await self.rollout_queue.enqueue(batch.enqueue)
        if batch.requeue:
            await self.rollout_queue.enqueue_missing(batch.requeue)
        for fields, workers in batch.workers.items():
            await self.workers.upsert(workers, fields)


def ensure_numeric(value: Any, what: str = "value") -> int | float:
    """The value itself.

    Raises:
        TypeError: it is not a number (a bool is none).
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    return value
