"""MongoDB's clock as the driver's monitor hears it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.hello import Hello
from pymongo.monitoring import ServerHeartbeatSucceededEvent

from agl.store.collection.mongo.clock import ServerClock


def heard(clock: ServerClock, ahead: float, took: float = 0.0, **reply: Any) -> None:
    """An answer that was on the way for ``took`` seconds, of a server with another clock."""
    there = datetime.fromtimestamp(time.time() + ahead - took, UTC).replace(tzinfo=None)
    hello = Hello({"ismaster": True, "localTime": there, **reply})
    clock.succeeded(ServerHeartbeatSucceededEvent(took, hello, ("db", 1), awaited=took == 0.0))


@pytest.mark.parametrize(
    ("ahead", "offset"), [(0.0, 0.0), (0.5, 0.0), (60.0, 60.0), (-60.0, -60.0)]
)
def test_only_a_real_difference_counts(ahead: float, offset: float) -> None:
    clock = ServerClock()
    heard(clock, ahead)
    assert clock.offset == pytest.approx(offset, abs=0.3)


def test_a_late_answer_is_no_difference() -> None:
    clock = ServerClock()
    heard(clock, 0.0, took=30.0)
    assert clock.offset == 0.0
    heard(clock, -20.0)  # a machine that slept, say: the best of the last answers counts
    assert clock.offset == 0.0


def test_only_the_primary_is_asked() -> None:
    clock = ServerClock()
    heard(clock, 60.0, ismaster=False)
    assert clock.offset == 0.0
