"""Metrics of the driver: commands, connections, repeats and batches (``agl.mongo.*``)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Literal

from pymongo import monitoring

from agl.utils.metrics import MetricsBackend, Record
from agl.utils.metrics_catalogue import (
    MONGO_CONNECTIONS,
    MONGO_OUTCOMES,
    MONGO_RETRIED,
    register,
)
from agl.utils.process_metrics import add_figure

Retried = Literal["write", "transaction", "commit"]
Outcome = Literal["committed", "aborted"]
BatchKind = Literal["write", "read"]


class DriverMetrics:
    """Registers the metrics and writes them."""

    def __init__(self, tracker: MetricsBackend) -> None:
        self._tracker = tracker
        register(tracker, "agl.mongo.commands.total", "agl.mongo.commands.latency")
        register(tracker, "agl.mongo.pool.connections.total", "agl.mongo.pool.wait")
        register(tracker, "agl.mongo.retries.total", "agl.mongo.transactions.total")
        register(tracker, "agl.mongo.batch.size")
        self._timers: dict[tuple[str, str], Record] = {}
        self._touch()
        add_figure("agl_mongo_pool_size", open_connections)

    def _touch(self) -> None:
        touch = self._tracker.touch_counter
        for event in sorted(MONGO_CONNECTIONS.values):
            touch("agl.mongo.pool.connections.total", {"event": event})
        for operation in sorted(MONGO_RETRIED.values):
            touch("agl.mongo.retries.total", {"operation": operation})
        for outcome in sorted(MONGO_OUTCOMES.values):
            touch("agl.mongo.transactions.total", {"outcome": outcome})

    def listeners(self) -> Sequence[Any]:
        """What to give to a client."""
        return (_Commands(self), _Connections(self._tracker))

    def command(self, name: str, status: str, seconds: float) -> None:
        """One command ended."""
        timer = self._timers.get((name, status))
        if timer is None:
            timer = self._timers[name, status] = self._tracker.timer(
                "agl.mongo.commands.total",
                "agl.mongo.commands.latency",
                {"command": name, "status": status},
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


class OpenConnections(monitoring.ConnectionPoolListener):
    """Counts the connections of a client's pools; to be given to it, and to no other."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.open = 0
        _listening.add(weakref.ref(self, _listening.discard))

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        self.open += 1

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        self.open -= 1

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...
    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...
    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...
    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...
    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None: ...
    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...
    def connection_check_out_failed(
        self, event: monitoring.ConnectionCheckOutFailedEvent
    ) -> None: ...
    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None: ...
    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...


_listening: set[weakref.ref[OpenConnections]] = set()
"""One for each client that was not dropped."""


def open_connections() -> int:
    """How many connections the pools of this process have, those of all its clients.

    Those by which the driver watches the servers are in no pool.
    """
    pid = os.getpid()  # a fork inherits listeners, and no connection
    listeners = [ref() for ref in tuple(_listening)]
    return sum(one.open for one in listeners if one is not None and one.pid == pid)


class _Connections(OpenConnections):
    def __init__(self, tracker: MetricsBackend) -> None:
        super().__init__()
        self._tracker = tracker

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        super().connection_created(event)
        self._tracker.inc("agl.mongo.pool.connections.total", {"event": "created"})

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        super().connection_closed(event)
        self._tracker.inc("agl.mongo.pool.connections.total", {"event": "closed"})

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        self._tracker.observe("agl.mongo.pool.wait", event.duration or 0.0, {"status": "OK"})

    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None:
        self._tracker.observe("agl.mongo.pool.wait", event.duration or 0.0, {"status": "failed"})
