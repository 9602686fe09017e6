"""MongoDB's clock, which is the same for all hosts of a store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from pymongo import monitoring

LEAST_SECONDS = 1.0
"""A smaller difference is left alone: it may come from a late answer."""

_LOOKS = 8


class ServerClock(monitoring.ServerHeartbeatListener):
    """How far MongoDB's clock is from this machine's, told by what the driver's monitor hears.

    An answer that comes late makes the server look behind, never ahead; so the best of the last
    few answers counts.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._looks: deque[float] = deque(maxlen=_LOOKS)
        self.offset = 0.0
        """Seconds to add to this machine's clock; 0 while both agree."""

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        """Nothing is known yet."""

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        reply = cast("Mapping[str, Any]", event.reply.document)
        there = reply.get("localTime")
        writable = reply.get("isWritablePrimary") or reply.get("ismaster")  # of the first hello
        if writable and isinstance(there, datetime):
            least = there.replace(tzinfo=UTC).timestamp() - time.time()
            most = least if event.awaited else least + event.duration
            self.note(min(max(0.0, least), most))

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """It keeps what it knows."""

    def note(self, ahead: float) -> None:
        """The server's clock was seen to be so many seconds ahead."""
        with self._mutex:
            self._looks.append(ahead)
            best = max(self._looks)
            self.offset = best if abs(best) > LEAST_SECONDS else 0.0
