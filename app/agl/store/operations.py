"""Names store operations, counts them and times them.

A public method of a store is an *operation*; the parts it is made of are *steps*. Which of them is
running is kept in two context variables, which the collections read for their own metrics. Without
a tracker nothing is recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from functools import wraps
from time import perf_counter
from typing import Any, TypeVar, cast

from agl.types.rollout import FINISHED_STATUSES, ROLLOUT_MODES, Attempt, Rollout
from agl.utils.forwarding import forwarding
from agl.utils.metrics import MetricsBackend, Record
from agl.utils.metrics_catalogue import ERRORS, STORE_METHODS, UNKNOWN, register

COLLECTION_STORE_PUBLIC_METHODS: tuple[str, ...] = (
    "start_rollout",
    "enqueue_rollout",
    "enqueue_many_rollouts",
    "dequeue_rollout",
    "dequeue_many_rollouts",
    "start_attempt",
    "query_rollouts",
    "get_rollout_by_id",
    "update_rollout",
    "wait_for_rollouts",
    "wait_for_rollout",
    "query_attempts",
    "get_latest_attempt",
    "find_stuck",
    "update_attempt",
    "update_many_attempts",
    "get_next_span_sequence_id",
    "get_many_span_sequence_ids",
    "add_span",
    "add_many_spans",
    "add_otel_span",
    "query_spans",
    "query_resources",
    "add_resources",
    "update_resources",
    "get_resources_by_id",
    "get_latest_resources",
    "query_workers",
    "get_worker_by_id",
    "update_worker",
)
WAITS = ("wait_for_rollouts", "wait_for_rollout")

ERROR_LABELS = frozenset(ERRORS.values - {"OK"})
"""Every ``status`` label of a failed call: the nearest of these classes it is an instance of."""

REACHABLE_ERRORS = (
    "AttemptNotFoundError",
    "CancelledError",
    "ConflictError",
    "Exception",
    "InvalidRequestError",
    "RolloutNotFoundError",
    "StoreError",
    "ValueError",
)
"""Those that a caller of a public method may meet; their counters are there from the start."""

Methods = tuple[str, str]
"""A public method, and the step of it or itself."""


class Running:
    """A public method of a store under way, and the step of it or itself.

    Of each pair there is one, made by :func:`running`: what it is looked up with costs no more than
    its address.
    """

    __slots__ = ("methods",)

    def __init__(self, methods: Methods) -> None:
        self.methods = methods


_known: dict[Methods, Running] = {}


def running(public: str, method: str) -> Running:
    """The only one of its kind."""
    return _known.setdefault((public, method), Running((public, method)))


_OUTSIDE = running(UNKNOWN, UNKNOWN)
_running: ContextVar[Running] = ContextVar("agl_running", default=_OUTSIDE)

get_running: Callable[[], Running] = _running.get


def get_current_store_methods() -> Methods:
    """Name of the running operation and of its step, each ``unknown`` outside of one."""
    return get_running().methods


def status_label(error: BaseException | None) -> str:
    """``OK``, or the class of the error out of a bounded list."""
    if error is None:
        return "OK"
    return next(
        (c.__name__ for c in type(error).__mro__ if c.__name__ in ERROR_LABELS), "Exception"
    )


class StoreRecorder:
    """Writes the metrics of the store; the label sets known beforehand exist from the start."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        self.timers = defaultdict[Running, Record](self._timer_of_running)
        """What takes the seconds of successful calls; to be asked for what runs just now."""

        self._rollouts: dict[tuple[str, str], Record] = {}
        self._claims: dict[str, Record] = {}
        self._register()
        self._touch()

    def _register(self) -> None:
        register(self._tracker, "agl.store.total", "agl.store.latency", "agl.store.waits")
        register(self._tracker, "agl.rollouts.total", "agl.rollouts.duration")
        register(self._tracker, "agl.rollouts.claims.total", "agl.rollouts.claim.delay")
        register(self._tracker, "agl.rollouts.late.total")
        register(self._tracker, "agl.spans.duplicates.total", "agl.spans.evicted.total")

    def _touch(self) -> None:
        for method in COLLECTION_STORE_PUBLIC_METHODS:
            labels = {"method": method, "store_pubmeth": method, "status": "OK"}
            self._tracker.touch_counter("agl.store.total", labels)
            self._tracker.touch_histogram(_latency_metric(method), labels)
            for error in REACHABLE_ERRORS:
                self._tracker.touch_counter("agl.store.total", {**labels, "status": error})
        for status in sorted(FINISHED_STATUSES):
            for mode in (*ROLLOUT_MODES, UNKNOWN):
                self._tracker.touch_counter("agl.rollouts.total", {"status": status, "mode": mode})
                self._tracker.touch_histogram(
                    "agl.rollouts.duration", {"status": status, "mode": mode}
                )
        for mode in (*ROLLOUT_MODES, UNKNOWN):
            for attempt in ("first", "retry"):
                labels = {"attempt": attempt, "mode": mode}
                self._tracker.touch_counter("agl.rollouts.claims.total", labels)
            self._tracker.touch_histogram("agl.rollouts.claim.delay", {"mode": mode})
        for event in ("span", "attempt"):
            self._tracker.touch_counter("agl.rollouts.late.total", {"event": event})
        self._tracker.touch_counter("agl.spans.duplicates.total")
        self._tracker.touch_counter("agl.spans.evicted.total")

    def _timer_of_running(self) -> Record:
        return self._timer(get_running(), status_label(None))

    def failed(self, here: Running, seconds: float, error: BaseException) -> None:
        """Note a call of an operation or step that raised."""
        self._timer(here, status_label(error))(seconds)

    def _timer(self, here: Running, status: str) -> Record:
        public, method = here.methods
        labels = {"method": method, "store_pubmeth": public, "status": status}
        return self._tracker.timer("agl.store.total", _latency_metric(method), labels)

    def claimed(self, claims: Iterable[tuple[Rollout, Attempt]]) -> None:
        """Note rollouts that were taken from the queue, and how long those waited that are new.

        When a retry entered the queue is not known.
        """
        for rollout, attempt in claims:
            mode = rollout.mode or UNKNOWN
            if attempt.sequence_id > 1:
                labels = {"attempt": "retry", "mode": mode}
                self._tracker.inc("agl.rollouts.claims.total", labels)
                continue
            timer = self._claims.get(mode)
            if timer is None:
                timer = self._claims[mode] = self._tracker.timer(
                    "agl.rollouts.claims.total",
                    "agl.rollouts.claim.delay",
                    {"attempt": "first", "mode": mode},
                )
            timer(max(attempt.start_time - rollout.start_time, 0.0))

    def finished(self, rollouts: Iterable[Rollout]) -> None:
        """Note rollouts that have just finished."""
        for rollout in rollouts:
            key = rollout.status, rollout.mode or UNKNOWN
            timer = self._rollouts.get(key)
            if timer is None:
                timer = self._rollouts[key] = self._tracker.timer(
                    "agl.rollouts.total",
                    "agl.rollouts.duration",
                    {"status": key[0], "mode": key[1]},
                )
            timer((rollout.end_time or rollout.start_time) - rollout.start_time)

    def late(self, event: str) -> None:
        """Note a ``span`` or ``attempt`` update that came after the end of its rollout."""
        self._tracker.inc("agl.rollouts.late.total", {"event": event})

    def duplicate_spans(self, count: int) -> None:
        """Note spans that were stored already."""
        self._tracker.inc("agl.spans.duplicates.total", amount=count)

    def evicted_spans(self, count: int) -> None:
        """Note spans given up to free memory."""
        self._tracker.inc("agl.spans.evicted.total", amount=count)


def _latency_metric(method: str) -> str:
    return "agl.store.waits" if method in WAITS else "agl.store.latency"


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def operation(method: F) -> F:
    """Mark a public method of a store; its name becomes the label of everything inside it.

    The object it belongs to has a ``recorder``, which may be ``None``.
    """
    name = method.__name__
    return _timed(method, _OPERATION, _here=running(name, name))


def step(method: F) -> F:
    """Mark a part of an operation that deserves figures of its own."""
    name = method.__name__
    inside: dict[Running, Running] = {}

    def enter(outer: Running) -> Running:
        inside[outer] = running(outer.methods[0], name)
        return inside[outer]

    return _timed(method, _STEP, _inside=inside, _enter=enter)


# Everything is spelt out here because this runs several times in every request.

_OPERATION = """
async def run({parameters}):
    _recorder = self.recorder
    if _recorder is None:
        return await _method({arguments})
    _token = _running.set(_here)
    _started = _clock()
    try:
        _result = await _method({arguments})
        _recorder.timers[_here](_clock() - _started)
        return _result
    except BaseException as _error:
        _recorder.failed(_here, _clock() - _started, _error)
        raise
    finally:
        _running.reset(_token)
"""
_STEP = _OPERATION.replace(
    "    _token =",
    """
    try:
        _here = _inside[_running.get()]
    except KeyError:
        _here = _enter(_running.get())
    _token =""",
)


def _timed(method: F, template: str, **names: Any) -> F:
    STORE_METHODS.add((method.__name__,))
    run = forwarding(
        method, template, _method=method, _running=_running, _clock=perf_counter, **names
    )
    return cast("F", wraps(method)(run))
