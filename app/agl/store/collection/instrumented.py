"""Counts and times calls on collections, under the store operation they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from agl.store.operations import Running, get_running, status_label
from agl.utils.forwarding import forwarding
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


_TIMED = """
async def run({parameters}):
    _started = _clock()
    try:
        _result = await _method({arguments})
    except BaseException as _error:
        _failed(_clock() - _started, _error)
        raise
    _timers[_running()](_clock() - _started)
    return _result
"""
_TIMED_AT_ONCE = _TIMED.replace("await ", "")

Note = Callable[[float, BaseException | None], None]
"""Told when something is over: when it began (of ``time.perf_counter``), and how it failed."""


class Timers:
    """What takes the seconds of one operation on one collection.

    Attributes:
        known: Those of successful calls, to be asked for the store's method that runs just now.
    """

    def __init__(self, tracker: MetricsBackend, operation: str, collection: str) -> None:
        OPERATIONS.add((operation,))
        COLLECTIONS.add((collection,))
        self._tracker = tracker
        self._operation = operation
        self._collection = collection
        self.known = defaultdict[Running, Record](self._timer_of_running)

    def _timer_of_running(self) -> Record:
        return self._timer(get_running(), "OK")

    def failed(self, seconds: float, error: BaseException) -> None:
        """Note a call that raised."""
        self._timer(get_running(), status_label(error))(seconds)

    def _timer(self, here: Running, status: str) -> Record:
        public, private = here.methods
        labels = {
            "store_pubmeth": public,
            "operation": self._operation,
            "collection": self._collection,
            "store_privmeth": private,
            "status": status,
        }
        return self._tracker.timer("agl.collections.total", "agl.collections.latency", labels)


class CollectionsRecorder:
    """Writes ``agl.collections.total`` and ``agl.collections.latency``."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        register(tracker, "agl.collections.total", "agl.collections.latency")

    def timers(self, operation: str, collection: str) -> Timers:
        """For those that spell out what :meth:`note` does."""
        return Timers(self._tracker, operation, collection)

    def note(self, operation: str, collection: str) -> Note:
        """What to call at the end of each such operation."""
        timers = self.timers(operation, collection)
        known = timers.known

        def note(started: float, error: BaseException | None = None) -> None:
            seconds = perf_counter() - started
            if error is not None:
                timers.failed(seconds, error)
                return
            known[get_running()](seconds)

        return note

    def instrument(self, target: object, collection: str, operations: Mapping[str, str]) -> None:
        """Replace the named coroutine methods of ``target`` by recording ones.

        Done on the instance, so that a collection without a tracker pays nothing. Where there is
        a ``NAME_now``, which does the same without a coroutine, it is called instead.
        """
        for name, operation in operations.items():
            method: Callable[..., Any] = getattr(target, name)
            at_once: Callable[..., Any] | None = getattr(target, f"{name}_now", None)
            setattr(target, name, self._timed(operation, collection, method, at_once))

    def _timed(
        self,
        operation: str,
        collection: str,
        method: Callable[..., Awaitable[Any]],
        at_once: Callable[..., Any] | None,
    ) -> Callable[..., Awaitable[Any]]:
        timers = self.timers(operation, collection)
        return forwarding(
            method,
            _TIMED if at_once is None else _TIMED_AT_ONCE,
            _method=at_once or method,
            _timers=timers.known,
            _failed=timers.failed,
            _running=get_running,
            _clock=perf_counter,
        )

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
