"""What tests of the store in MongoDB share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pymongo
from pymongo import monitoring

from agl.types import AttemptedRollout, OtelResource, Span, TraceStatus

_NOT_OURS = ("lsid", "$clusterTime", "$db", "txnNumber", "$readPreference")


class Commands(monitoring.CommandListener):
    """Records the commands that are sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if not event.command:  # of a login, once for each connection: the driver shows nothing
            return
        command = {k: v for k, v in event.command.items() if k not in _NOT_OURS}
        self.sent.append(command)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...
    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    @property
    def names(self) -> list[str]:
        return [next(iter(command)) for command in self.sent]

    @property
    def written(self) -> int:
        """How many operations the commands asked for that write."""
        lists = ("ops", "documents", "updates", "deletes")
        return sum(len(command.get(name, ())) for command in self.sent for name in lists)

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Fills the list with the names of the commands sent meanwhile."""
        before = len(self.sent)
        names: list[str] = []
        yield names
        names.extend(self.names[before:])


class Sockets:
    """Connections to MongoDB as the kernel knows them.

    Args:
        uri: Where it is.

    Attributes:
        uri: The same for clients: each watches the servers by ``watching`` connections, which are
            in no pool.
    """

    def __init__(self, uri: str) -> None:
        self.uri = f"{uri}&serverMonitoringMode=poll"
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            client.admin.command("ping")
            self._ports = {port for _, port in client.nodes}
        self.watching = len(self._ports)

    def of(self, pid: int) -> set[int]:
        """Those of a process, by their ports on its side."""
        return {
            one.laddr.port
            for one in psutil.Process(pid).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr.port in self._ports
        }


def make_span(rollout: AttemptedRollout, number: int, **changes: Any) -> Span:
    """A span of the rollout's attempt whose ids follow from ``number``."""
    values: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
        "sequence_id": number,
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": f"span-{number}",
        "status": TraceStatus(status_code="OK"),
        "attributes": {"number": number},
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**{**values, **changes})
