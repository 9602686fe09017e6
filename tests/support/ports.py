"""Ports for tests that run at the same time, outside of those that the system gives to clients.

A port that the system has just given and taken back may be given to the next client on this machine
before a server takes it; these are given to nobody, and each test process has some of its own.
"""

from __future__ import annotations

import os
import socket
from itertools import count

_FIRST, _LAST = 20_000, 32_000
_EACH = 500
_next = count(0)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on, and that no other test process is given."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lot = (os.getppid() + worker) * _EACH % (_LAST - _FIRST)
    for _ in range(_EACH):
        port = _FIRST + (lot + next(_next) % _EACH) % (_LAST - _FIRST)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
