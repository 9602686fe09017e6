"""Locks for coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import TracebackType
from typing import Any


class Guarded:
    """Base of objects whose short steps exclude other threads; pickles with a fresh mutex."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_mutex"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._mutex = threading.Lock()


class AsyncLock:
    """Excludes coroutines of all event loops and threads from each other; waiting blocks no loop.

    Taking a free lock costs a fraction of a microsecond. Not fair: a newcomer may overtake. Pickles
    as a fresh lock.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        return self._held.acquire(blocking=False)

    async def acquire(self) -> None:
        """Take the lock, waiting for it if need be."""
        while not self._held.acquire(blocking=False):
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, turn))
            if self._held.acquire(blocking=False):
                turn.cancel()  # released between the two tries; our own release wakes the next
                return
            try:
                await turn
            except asyncio.CancelledError:
                self._wake_next()
                raise

    def release(self) -> None:
        """Release the lock and wake one waiter.

        Raises:
            RuntimeError: it is not held.
        """
        try:
            self._held.release()
        except RuntimeError:
            raise RuntimeError("Lock released without being acquired") from None
        if self._waiting:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting and not self._held.locked():
            try:
                loop, turn = self._waiting.popleft()
            except IndexError:
                return
            if not turn.done() and _wake(loop, turn):
                return

    async def __aenter__(self) -> AsyncLock:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __reduce__(self) -> tuple[type[AsyncLock], tuple[()]]:
        return (AsyncLock, ())


def _wake(loop: asyncio.AbstractEventLoop, turn: asyncio.Future[None]) -> bool:
    def resolve() -> None:
        if not turn.done():
            turn.set_result(None)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:  # the loop is closed, nobody waits there any more
        return False
    return True
