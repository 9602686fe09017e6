"""Collections in the memory of the process."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, get_args

from agl.store.collection.base import (
    AtomicLabels,
    AtomicMode,
    Collection,
    LightningCollections,
)
from agl.store.collection.instrumented import (
    BUNDLE_OPERATIONS,
    COLLECTION_OPERATIONS,
    CollectionsRecorder,
    Note,
)
from agl.store.collection.items import Items, Observer
from agl.store.collection.memory_queue import DequeBasedQueue, DictBasedKeyValue
from agl.store.collection.memory_spans import SpanCollection
from agl.store.collection.query import (
    Order,
    Query,
    check_window,
    page,
    parse_filter,
    resolve_sort_options,
    sort_items,
    window,
)
from agl.store.collection.scan import SLICE, Gathered
from agl.types import (
    Attempt,
    FilterOptions,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    SortOptions,
    Worker,
)
from agl.utils.locks import AsyncLock, Guarded
from agl.utils.metrics import MetricsBackend

T = TypeVar("T")
R = TypeVar("R")

__all__ = [
    "DequeBasedQueue",
    "DictBasedKeyValue",
    "InMemoryLightningCollections",
    "ListBasedCollection",
    "SpanCollection",
]

LockType = Literal["thread", "asyncio"]

_TAKEN_WHOLE = (
    ("attempts", "rollout_queue", "rollouts", "workers"),
    ("span_sequence_ids", "spans"),
)
"""Labels that are nearly always taken together, and so share a lock."""


class ListBasedCollection(Guarded, Collection[T]):
    """Items in a dictionary by primary key, with indexes for the questions that must not scan.

    Args:
        items: What it holds at first.
        item_type: Class of the items, a pydantic model.
        primary_keys: One or more string fields.
        id: Name under which calls are tracked.
        tracker: Where calls are counted and timed.
        indexes: Fields asked for with ``exact`` or ``within``. The first field of a primary key
            of several fields is always indexed.

    Raises:
        ValueError: no primary keys.
        TypeError: ``item_type`` is not a class with fields.
    """

    def __init__(
        self,
        items: Sequence[T],
        item_type: type[T],
        primary_keys: Sequence[str],
        id: str | None = None,
        tracker: MetricsBackend | None = None,
        *,
        indexes: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if not primary_keys:
            raise ValueError("primary_keys must name at least one field")
        if issubclass(item_type, Mapping):
            raise TypeError(f"items must be models, not {item_type.__name__}")
        self._items: Items[T] = Items(item_type, tuple(primary_keys), tuple(indexes))
        self._items.add_all(items)
        self._id = id or str(uuid.uuid4())
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, self._id, COLLECTION_OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self._items.item_type.__name__}] ({len(self._items)})>"

    def observe(self, fields: Sequence[str], changed: Callable[[T | None, T | None], None]) -> None:
        """Have ``changed(before, after)`` told of new and removed items and changes of ``fields``.

        It is called while the collection is locked.
        """
        with self._mutex:
            self._items.observer = Observer(frozenset(fields), changed)

    def primary_keys(self) -> Sequence[str]:
        return self._items.primary_keys

    def item_type(self) -> type[T]:
        return self._items.item_type

    async def size(self) -> int:
        return len(self._items)

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[T]:
        check_window(limit, offset)
        order = resolve_sort_options(sort, self._items.item_type)
        query = parse_filter(filter)
        with self._mutex:
            selection = self._items.select(query)
            front = min(_wanted(limit, offset), selection.looked_at)
            if order is None and selection.total is not None and front <= SLICE:
                items = window(selection.items, limit, offset)
                return page(items, limit, offset, selection.total)
            few = selection.looked_at <= SLICE
            matches = list(selection.items) if few else []
        if not few:
            return await self._query_in_slices(query, order, limit, offset)
        total = len(matches)
        if order is not None and limit != 0:
            matches = sort_items(matches, *order, head=None if limit == -1 else offset + limit)
        return page(window(matches, limit, offset), limit, offset, total)

    async def _query_in_slices(
        self, query: Query, order: tuple[str, Order] | None, limit: int, offset: int
    ) -> PaginatedResult[T]:
        """A page whose making lets other calls in between."""
        gathered = Gathered[T](order, limit, offset)
        with self._mutex:
            scan = self._items.begin_scan(query)
        try:
            while True:
                with self._mutex:
                    found = scan.step()
                if found is None:
                    break
                gathered.add(found)
                await asyncio.sleep(0)
        finally:
            with self._mutex:
                self._items.end_scan(scan)
        items: list[T] = []
        for part in gathered.slices():
            items += part
            await asyncio.sleep(0)
        return page(items, limit, offset, gathered.total)

    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> T | None:
        order = resolve_sort_options(sort, self._items.item_type)
        query = parse_filter(filter)
        with self._mutex:
            items = self._items.select(query).items
            if order is None:
                return next(iter(items), None)
            matches = list(items)
        return next(iter(sort_items(matches, *order, head=1)), None)

    async def find(self, *key: str) -> T | None:
        return self.find_now(*key)

    def find_now(self, *key: str) -> T | None:
        with self._mutex:
            return self._items.get(key[0] if len(key) == 1 else key)

    async def find_newest(self, first_key: str, field: str) -> T | None:
        """Of the items whose first key field has this value, the one with the highest ``field``."""
        return self.find_newest_now(first_key, field)

    def find_newest_now(self, first_key: str, field: str) -> T | None:
        with self._mutex:
            return self._items.newest(first_key, field)

    async def insert(self, items: Sequence[T]) -> None:
        self.insert_now(items)

    def insert_now(self, items: Sequence[T]) -> None:
        with self._mutex:
            self._items.add_all(items)

    async def insert_missing(self, items: Sequence[T]) -> Sequence[T]:
        with self._mutex:
            return self._items.add_missing(items)

    async def update(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        return self.update_now(items, update_fields)

    def update_now(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        with self._mutex:
            self._items.require_all(items)
            return [self._items.put(item, update_fields) for item in items]

    async def upsert(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        with self._mutex:
            return [self._items.put(item, update_fields) for item in items]

    async def delete(self, items: Sequence[T]) -> None:
        with self._mutex:
            self._items.require_all(items)
            for item in items:
                self._items.remove(self._items.key_of(item))


def _wanted(limit: int, offset: int) -> float:
    """How many matches from the front are needed."""
    return math.inf if limit == -1 else offset + limit


Take = Callable[[str, AsyncLock], Awaitable[object]]


async def _wait_for(label: str, lock: AsyncLock) -> None:
    await lock.acquire()


class _Section:
    """Holds one lock for each label, taken in the order given."""

    __slots__ = ("_collections", "_locks", "_note", "_started", "_taken", "_wait_for")

    def __init__(
        self,
        collections: InMemoryLightningCollections,
        locks: Sequence[tuple[str, AsyncLock]],
        wait_for: Take,
        note: Note | None,
    ) -> None:
        self._collections = collections
        self._locks = locks
        self._wait_for = wait_for
        self._note = note
        self._started = 0.0
        self._taken = 0

    async def __aenter__(self) -> InMemoryLightningCollections:
        if self._note is not None:
            self._started = perf_counter()
        try:
            for label, lock in self._locks:
                if not lock.try_acquire():
                    await self._wait_for(label, lock)
                self._taken += 1
        except BaseException:
            self._release()
            raise
        return self._collections

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()
        if self._note is not None:
            self._note(self._started, error)

    def _release(self) -> None:
        for _, lock in reversed(self._locks[: self._taken]):
            lock.release()


class InMemoryLightningCollections(LightningCollections):
    """The collections of a store in memory.

    An atomic section takes one lock for each label; there is no rollback, so the store decides
    first and writes last.

    Args:
        lock_type: What the caller needs, ``asyncio`` (one thread, several event loops in turn) or
            ``thread`` (threads and event loops at once). One kind of lock serves both.
        tracker: Where calls are counted and timed.
    """

    collection_name = "router"

    def __init__(self, lock_type: LockType, tracker: MetricsBackend | None = None) -> None:
        self._tracker = tracker
        self._wait_for: Take = _wait_for
        self._note_section: Note | None = None
        self.lock_type = lock_type
        self._locks = _locks_by_label()
        self._lock_sets: dict[tuple[str, ...], list[tuple[str, AsyncLock]]] = {}
        self._rollouts = ListBasedCollection[Rollout](
            [], Rollout, ["rollout_id"], "rollouts", tracker, indexes=["status"]
        )
        self._attempts = ListBasedCollection[Attempt](
            [], Attempt, ["rollout_id", "attempt_id"], "attempts", tracker
        )
        self._spans = SpanCollection("spans", tracker)
        self._resources = ListBasedCollection[ResourcesUpdate](
            [], ResourcesUpdate, ["resources_id"], "resources", tracker
        )
        self._workers = ListBasedCollection[Worker](
            [], Worker, ["worker_id"], "workers", tracker, indexes=["status"]
        )
        self._rollout_queue = DequeBasedQueue[str](str, [], "rollout_queue", tracker)
        self._span_sequence_ids = DictBasedKeyValue[str, int]({}, "span_sequence_ids", tracker)
        if tracker is not None:
            recorder = CollectionsRecorder(tracker)
            recorder.instrument(self, self.collection_name, BUNDLE_OPERATIONS)
            self._note_section = recorder.note("atomic", self.collection_name)
            self._wait_for = recorder.timed_lock(_wait_for)

    @property
    def tracker(self) -> MetricsBackend | None:
        return self._tracker

    @property
    def rollouts(self) -> ListBasedCollection[Rollout]:
        return self._rollouts

    @property
    def attempts(self) -> ListBasedCollection[Attempt]:
        return self._attempts

    @property
    def spans(self) -> SpanCollection:
        return self._spans

    @property
    def resources(self) -> ListBasedCollection[ResourcesUpdate]:
        return self._resources

    @property
    def workers(self) -> ListBasedCollection[Worker]:
        return self._workers

    @property
    def rollout_queue(self) -> DequeBasedQueue[str]:
        return self._rollout_queue

    @property
    def span_sequence_ids(self) -> DictBasedKeyValue[str, int]:
        return self._span_sequence_ids

    def atomic(
        self,
        *,
        mode: AtomicMode = "rw",
        snapshot: bool = False,
        commit: bool = False,
        labels: Sequence[AtomicLabels] | None = None,
        **kwargs: Any,
    ) -> AbstractAsyncContextManager[Self]:
        locks = () if mode == "r" and not snapshot else self._locks_for(labels)
        section = _Section(self, locks, self._wait_for, self._note_section)
        return cast("AbstractAsyncContextManager[Self]", section)

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
        """As promised by the base, without the objects that :meth:`atomic` needs."""
        if mode == "r" and not snapshot:
            return await callback(self)
        note = self._note_section
        started = 0.0 if note is None else perf_counter()
        taken: list[AsyncLock] = []
        failure: BaseException | None = None
        try:
            for label, lock in self._locks_for(labels):
                if not lock.try_acquire():
                    await self._wait_for(label, lock)
                taken.append(lock)
            return await callback(self)
        except BaseException as error:
            failure = error
            raise
        finally:
            while taken:
                taken.pop().release()
            if note is not None:
                note(started, failure)

    async def evict_spans_for_rollout(self, rollout_id: str) -> Mapping[str, int]:
        """Remove all spans of a rollout; returns how many by attempt id."""
        return self._spans.remove_rollout(rollout_id)

    def _locks_for(self, labels: Sequence[AtomicLabels] | None) -> Sequence[tuple[str, AsyncLock]]:
        wanted = tuple(labels or ())
        locks = self._lock_sets.get(wanted)
        if locks is None:
            label_of = {self._locks[label]: label for label in sorted(wanted or self._locks)}
            in_order = dict.fromkeys(self._locks.values())
            locks = [(label_of[lock], lock) for lock in in_order if lock in label_of]
            self._lock_sets[wanted] = locks
        return locks


def _locks_by_label() -> dict[str, AsyncLock]:
    """Locks in the order in which they are taken."""
    locks = {label: AsyncLock() for label in sorted(get_args(AtomicLabels))}
    for first, *others in _TAKEN_WHOLE:
        locks.update(dict.fromkeys(others, locks[first]))
    return locks
