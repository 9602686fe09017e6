"""One ``up``, ``down`` or ``images`` of a checkout at a time, and one way to interrupt it."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from agl.ops.console import Console
from agl.ops.layout import Layout

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def turn(layout: Layout, console: Console) -> Generator[None]:
    """Wait until no other command changes this checkout's bundle, and keep others out meanwhile.

    The lock is on the ``compose`` folder itself, so nothing is written, and the system gives it
    back however this process ends.
    """
    folder = os.open(layout.compose_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.mark("warn", "another up, down or images is at work here: waiting for its end")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def interruptible() -> Generator[None]:
    """Let SIGTERM, and SIGHUP of a terminal that goes away, end this as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A signal that is ignored (nohup) stays ignored.
    heard = [number for number in _SIGNALS if before[number] == signal.SIG_DFL]
    for number in heard:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
