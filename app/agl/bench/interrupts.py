"""Ctrl-C and SIGTERM: end the run, keep what it has done."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any

from agl.bench.results import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_WISH_SECONDS = 0.3
"""Within this time a signal is the same wish: ``timeout`` sends it to the process and its group."""


class Interruption:
    """Whether somebody wants the run to end, and what is then to be called."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None
        self._since = 0.0
        self._stop: Callable[[], object] = lambda: None

    @property
    def reason(self) -> str | None:
        """What ``Result.partial`` is to say; ``None`` while nothing has come."""
        return f"{INTERRUPTED} by {self._signal.name}" if self._signal else None

    def wished(self) -> bool:
        """Whether the run is to end."""
        return self._signal is not None

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Say what ends the part that begins; called at once when the wish is there already."""
        self._stop = stop
        if self._signal is not None:
            stop()

    async def until(self, work: Coroutine[Any, Any, object]) -> None:
        """Do it to its end, or until the wish comes; :attr:`reason` tells which."""
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        self.stop_with(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            await task
        except asyncio.CancelledError:
            if self.reason is None:
                raise

    def take(self, number: int, frame: FrameType | None) -> None:
        """Be the handler of a signal.

        Raises:
            KeyboardInterrupt: it is the second one.
        """
        now = time.monotonic()
        if self._signal is not None:
            if now - self._since > _ONE_WISH_SECONDS:
                raise KeyboardInterrupt
            return
        self._signal, self._since = signal.Signals(number), now
        self._stop()


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Generator[None]:
    """Let SIGTERM raise KeyboardInterrupt while inside, so that what was started is ended.

    Once: ``timeout`` sends it to the process and its group, and the second would disturb the end.
    """

    def take(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, take)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interruption() -> Generator[Interruption]:
    """Take SIGINT and SIGTERM as a wish to end early while inside; in the main thread only."""
    found = Interruption()
    before = {number: signal.signal(number, found.take) for number in _SIGNALS}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
