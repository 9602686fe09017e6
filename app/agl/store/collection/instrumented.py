"""Counts and times calls on collections, under the store operation they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, TypeVar

from agl.store.operations import get_current_store_methods, status_label
from agl.utils.metrics import LATENCY_BUCKETS, MetricsBackend

SectionT = TypeVar("SectionT")

COLLECTION_OPERATIONS = {
    "query": "query",
    "get": "get",
    "find": "get",
    "find_newest": "get",
    "insert": "insert",
    "insert_missing": "insert",
    "update": "update",
    "upsert": "upsert",
    "delete": "delete",
}
"""Method to the ``operation`` it is counted as."""

QUEUE_OPERATIONS = {
    "has": "has",
    "enqueue": "enqueue",
    "enqueue_missing": "enqueue",
    "dequeue": "dequeue",
    "peek": "peek",
    "discard": "discard",
    "size": "size",
}
KEY_VALUE_OPERATIONS = {
    "has": "has",
    "get": "get",
    "set": "set",
    "inc": "inc",
    "inc_many": "inc",
    "chmax": "chmax",
    "chmax_many": "chmax",
    "pop": "pop",
    "size": "size",
}
BUNDLE_OPERATIONS = {"evict_spans_for_rollout": "evict_spans_for_rollout"}

LABELS = ("store_pubmeth", "operation", "collection", "store_privmeth", "status")


class CollectionsRecorder:
    """Writes ``agl.collections.total`` and ``agl.collections.latency``."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        tracker.register_counter("agl.collections.total", LABELS, group_level=2)
        tracker.register_histogram(
            "agl.collections.latency", LABELS, buckets=LATENCY_BUCKETS, group_level=2
        )

    def record(
        self, operation: str, collection: str, started: float, error: BaseException | None
    ) -> None:
        """Note one call that began at ``started`` (of ``time.perf_counter``)."""
        seconds = perf_counter() - started
        public, private = get_current_store_methods()
        labels = {
            "store_pubmeth": public,
            "operation": operation,
            "collection": collection,
            "store_privmeth": private,
            "status": status_label(error),
        }
        self._tracker.inc("agl.collections.total", labels)
        self._tracker.observe("agl.collections.latency", seconds, labels)

    def instrument(self, target: object, collection: str, operations: Mapping[str, str]) -> None:
        """Replace the named coroutine methods of ``target`` by recording ones.

        Done on the instance, so that a collection without a tracker pays nothing.
        """
        for name, operation in operations.items():
            method: Callable[..., Awaitable[Any]] = getattr(target, name)
            setattr(target, name, self._timed(operation, collection, method))

    def _timed(
        self, operation: str, collection: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            started = perf_counter()
            error: BaseException | None = None
            try:
                return await method(*args, **kwargs)
            except BaseException as caught:
                error = caught
                raise
            finally:
                self.record(operation, collection, started, error)

        return run

    def timed_lock(
        self, take: Callable[[str, Any], Awaitable[None]]
    ) -> Callable[[str, Any], Awaitable[None]]:
        """Record each wait for a lock that was not free, under the label it belongs to."""

        async def run(label: str, lock: Any) -> None:
            started = perf_counter()
            await take(label, lock)
            self.record("lock", label, started, None)

        return run

    def timed_section(
        self, collection: str, atomic: Callable[..., AbstractAsyncContextManager[SectionT]]
    ) -> Callable[..., AbstractAsyncContextManager[SectionT]]:
        """Record how long each atomic section lasts."""

        def run(**kwargs: Any) -> AbstractAsyncContextManager[SectionT]:
            return _TimedSection(self, collection, atomic(**kwargs))

        return run


class _TimedSection(Generic[SectionT]):
    def __init__(
        self,
        recorder: CollectionsRecorder,
        collection: str,
        inner: AbstractAsyncContextManager[SectionT],
    ) -> None:
        self._recorder = recorder
        self._collection = collection
        self._inner = inner
        self._started = perf_counter()

    async def __aenter__(self) -> SectionT:
        self._started = perf_counter()
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        swallow = await self._inner.__aexit__(kind, error, trace)
        self._recorder.record("atomic", self._collection, self._started, error)
        return swallow
