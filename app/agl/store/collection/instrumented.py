"""Counts and times calls on collections, under the store operation they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from agl.store.operations import Methods, Timers, get_current_store_methods, status_label
from agl.utils.metrics import MetricsBackend, Record
from agl.utils.metrics_catalogue import COLLECTIONS, OPERATIONS, register

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


Note = Callable[[float, BaseException | None], None]
"""Told when something is over: when it began (of ``time.perf_counter``), and how it failed."""


class CollectionsRecorder:
    """Writes ``agl.collections.total`` and ``agl.collections.latency``."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        register(tracker, "agl.collections.total", "agl.collections.latency")

    def note(self, operation: str, collection: str) -> Note:
        """What to call at the end of each such operation."""
        timers = self._timers(operation, collection)

        def note(started: float, error: BaseException | None = None) -> None:
            seconds = perf_counter() - started
            methods = get_current_store_methods()
            if error is None:
                timers[methods](seconds)
            else:
                self._timer(operation, collection, methods, status_label(error))(seconds)

        return note

    def _timers(self, operation: str, collection: str) -> Timers:
        OPERATIONS.add((operation,))
        COLLECTIONS.add((collection,))
        return Timers(lambda methods: self._timer(operation, collection, methods, "OK"))

    def _timer(self, operation: str, collection: str, methods: Methods, status: str) -> Record:
        public, private = methods
        labels = {
            "store_pubmeth": public,
            "operation": operation,
            "collection": collection,
            "store_privmeth": private,
            "status": status,
        }
        return self._tracker.timer("agl.collections.total", "agl.collections.latency", labels)

    def instrument(self, target: object, collection: str, operations: Mapping[str, str]) -> None:
        """Replace the named coroutine methods of ``target`` by recording ones.

        Done on the instance, so that a collection without a tracker pays nothing. Where there is
        a ``NAME_now``, which does the same without a coroutine, it is called instead.
        """
        for name, operation in operations.items():
            method: Callable[..., Any] = getattr(target, name)
            at_once: Callable[..., Any] | None = getattr(target, f"{name}_now", None)
            setattr(target, name, self._timed(operation, collection, method, at_once))

    # Everything is spelt out below because it runs several times in every request.

    def _timed(
        self,
        operation: str,
        collection: str,
        method: Callable[..., Awaitable[Any]],
        at_once: Callable[..., Any] | None,
    ) -> Callable[..., Awaitable[Any]]:
        timers = self._timers(operation, collection)
        running = get_current_store_methods

        def failed(started: float, error: BaseException) -> None:
            seconds = perf_counter() - started
            self._timer(operation, collection, running(), status_label(error))(seconds)

        async def run(*args: Any, **kwargs: Any) -> Any:
            started = perf_counter()
            try:
                result = await method(*args, **kwargs)
            except BaseException as error:
                failed(started, error)
                raise
            timers[running()](perf_counter() - started)
            return result

        if at_once is None:
            return run

        async def run_at_once(*args: Any, **kwargs: Any) -> Any:
            started = perf_counter()
            try:
                result = at_once(*args, **kwargs)
            except BaseException as error:
                failed(started, error)
                raise
            timers[running()](perf_counter() - started)
            return result

        return run_at_once

    def timed_lock(
        self, take: Callable[[str, Any], Awaitable[None]]
    ) -> Callable[[str, Any], Awaitable[None]]:
        """Record each wait for a lock that was not free, under the label it belongs to."""
        notes: dict[str, Note] = {}

        async def run(label: str, lock: Any) -> None:
            started = perf_counter()
            await take(label, lock)
            note = notes.get(label)
            if note is None:
                note = notes[label] = self.note("lock", label)
            note(started, None)

        return run
