"""Requests that wait: how many at once, and their release when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from agl.store.rest.errors import ClientGoneError
from agl.store.rest.limits import ServerLimits, overloaded, stopping

T = TypeVar("T")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class WaitingRoom:
    """Where requests wait for something to happen in the store.

    A request leaves when it has its answer, when its client is gone, or when the server is about
    to stop. The room belongs to the event loop that serves.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limit = limits.max_waits
        self._waiting = 0
        self._closing: asyncio.Event = asyncio.Event()

    def open(self) -> None:
        """Let requests wait; called when serving begins."""
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Release all who wait and let nobody in; called when the server is about to stop."""
        self._closing.set()

    async def wait(self, answer: Awaitable[T], receive: Receive) -> T:
        """The answer, once it is there.

        Raises:
            HttpError: 503, the room is full or the server stops.
            ClientGoneError: the client left.
        """
        task = asyncio.ensure_future(answer)
        try:
            if self._closing.is_set():
                raise stopping()
            if self._waiting >= self._limit:
                raise overloaded(f"{self._limit} requests wait already (--max-waits)", 5)
            self._waiting += 1
            try:
                return await self._first(task, receive)
            finally:
                self._waiting -= 1
        finally:
            await _ended(task)

    async def _first(self, answer: asyncio.Future[T], receive: Receive) -> T:
        gone = asyncio.ensure_future(_client_left(receive))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((answer, gone, closing), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise ClientGoneError if gone.done() else stopping()
        finally:
            await _ended(gone)
            await _ended(closing)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
