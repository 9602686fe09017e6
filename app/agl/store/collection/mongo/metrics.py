"""Metrics of the driver: commands, connections, repeats and batches.

=================================== =========== ===========================================
``agl.mongo.commands.total``        counter     ``command``, ``status``
``agl.mongo.commands.latency``      histogram   ``command``, ``status``; seconds
``agl.mongo.pool.connections.total``counter     ``event``: created, closed
``agl.mongo.pool.wait``             histogram   ``status``; seconds until a connection was free
``agl.mongo.retries.total``         counter     ``operation``: write, transaction, commit
``agl.mongo.transactions.total``    counter     ``outcome``: committed, aborted
``agl.mongo.batch.size``            histogram   ``kind``: write, read; operations in one call
=================================== =========== ===========================================

The connections open now are ``created`` less ``closed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pymongo import monitoring

from agl.utils.metrics import LATENCY_BUCKETS, MetricsBackend, Record

COMMANDS = frozenset(
    (
        "abortTransaction",
        "aggregate",
        "bulkWrite",
        "commitTransaction",
        "count",
        "create",
        "createIndexes",
        "delete",
        "find",
        "findAndModify",
        "getMore",
        "hello",
        "insert",
        "ping",
        "update",
    )
)
"""Commands with a label of their own; the others are ``other``."""

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
STATUSES = ("OK", "refused", "unreachable")

Retried = Literal["write", "transaction", "commit"]
Outcome = Literal["committed", "aborted"]
BatchKind = Literal["write", "read"]


class DriverMetrics:
    """Registers the metrics and writes them."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        counter, histogram = tracker.register_counter, tracker.register_histogram
        counter("agl.mongo.commands.total", ("command", "status"), group_level=1)
        histogram(
            "agl.mongo.commands.latency",
            ("command", "status"),
            buckets=LATENCY_BUCKETS,
            group_level=1,
        )
        counter("agl.mongo.pool.connections.total", ("event",))
        histogram("agl.mongo.pool.wait", ("status",), buckets=LATENCY_BUCKETS)
        counter("agl.mongo.retries.total", ("operation",))
        counter("agl.mongo.transactions.total", ("outcome",))
        histogram("agl.mongo.batch.size", ("kind",), buckets=BATCH_BUCKETS)
        self._timers: dict[tuple[str, str], Record] = {}
        self._touch()

    def _touch(self) -> None:
        touch = self._tracker.touch_counter
        for event in ("created", "closed"):
            touch("agl.mongo.pool.connections.total", {"event": event})
        for operation in ("write", "transaction", "commit"):
            touch("agl.mongo.retries.total", {"operation": operation})
        for outcome in ("committed", "aborted"):
            touch("agl.mongo.transactions.total", {"outcome": outcome})

    def listeners(self) -> Sequence[Any]:
        """What to give to a client."""
        return (_Commands(self), _Connections(self._tracker))

    def command(self, name: str, status: str, seconds: float) -> None:
        """One command ended."""
        known = name if name in COMMANDS else "other"
        timer = self._timers.get((known, status))
        if timer is None:
            timer = self._timers[known, status] = self._tracker.timer(
                "agl.mongo.commands.total",
                "agl.mongo.commands.latency",
                {"command": known, "status": status},
            )
        timer(seconds)

    def retried(self, operation: Retried) -> None:
        """Something is sent again after a failure."""
        self._tracker.inc("agl.mongo.retries.total", {"operation": operation})

    def transaction(self, outcome: Outcome) -> None:
        """A transaction ended."""
        self._tracker.inc("agl.mongo.transactions.total", {"outcome": outcome})

    def batch(self, kind: BatchKind, operations: int) -> None:
        """So many operations went in one call."""
        self._tracker.observe("agl.mongo.batch.size", operations, {"kind": kind})


class _Commands(monitoring.CommandListener):
    def __init__(self, metrics: DriverMetrics) -> None:
        self._metrics = metrics

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Nothing is counted before it ends."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self._metrics.command(event.command_name, "OK", event.duration_micros / 1e6)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        refused = "code" in event.failure
        status = "refused" if refused else "unreachable"
        self._metrics.command(event.command_name, status, event.duration_micros / 1e6)


class _Connections(monitoring.ConnectionPoolListener):
    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker

    def _count(self, event: str) -> None:
        self._tracker.inc("agl.mongo.pool.connections.total", {"event": event})

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        self._count("created")

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        self._count("closed")

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        self._tracker.observe("agl.mongo.pool.wait", event.duration or 0.0, {"status": "OK"})

    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None:
        self._tracker.observe("agl.mongo.pool.wait", event.duration or 0.0, {"status": "failed"})

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...
    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...
    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...
    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...
    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None: ...
    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...
    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...
