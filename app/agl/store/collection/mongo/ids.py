"""Object ids that sort in the order in which they were made."""

from __future__ import annotations

import os
import threading
import time

from bson import ObjectId

_lock = threading.Lock()
_last = 0
_process = os.urandom(3)
_pid = os.getpid()
_SECOND_BITS = 32
_COUNTER_BITS = 8


def new_id() -> ObjectId:
    """The next id: 4 bytes seconds, 4 bytes of its fraction, 3 bytes of the process, 1 of a count.

    Ids of one process rise strictly, whatever the clock does; ids of several processes sort by
    their clocks. The first four bytes are seconds as in every object id, so ids of
    agent-lightning 0.3 sort among them.
    """
    return ObjectId(_next_bytes())


def new_ids(count: int) -> list[ObjectId]:
    """Ids that rise in the order returned."""
    return [new_id() for _ in range(count)]


def _next_bytes() -> bytes:
    global _last, _process, _pid
    nanoseconds = time.time_ns()
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    now = (seconds << _SECOND_BITS | (rest << _SECOND_BITS) // 1_000_000_000) << _COUNTER_BITS
    with _lock:
        if _pid != os.getpid():
            _pid, _process = os.getpid(), os.urandom(3)
        _last = max(_last + 1, now)
        made = _last
    instant, count = divmod(made, 1 << _COUNTER_BITS)
    return instant.to_bytes(8, "big") + _process + bytes((count,))
