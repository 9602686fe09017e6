"""Requests of many calls, answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Gathering(Generic[Q, A]):
    """Requests of many calls, answered together; while some are under way, further ones gather.

    Args:
        send: Answers requests, one answer each, in their order.
        take: How many of the waiting requests go next.
    """

    def __init__(
        self,
        send: Callable[[list[Q]], Awaitable[Sequence[A]]],
        take: Callable[[Sequence[Q]], int] = len,
    ) -> None:
        self._send = send
        self._take = take
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._running: asyncio.Task[None] | None = None

    def ask(self, request: Q) -> asyncio.Future[A]:
        """The answer, from a round trip that begins after this call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append((request, answer))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._next()
                await asyncio.sleep(0)  # those answered may ask, or give back, before the next
        finally:
            self._running = None
            for _, answer in self._waiting:  # only when this task was cancelled
                answer.cancel()
            self._waiting.clear()

    async def _next(self) -> None:
        waiting = self._waiting
        count = self._take([request for request, _ in waiting])
        batch = [waiting.popleft() for _ in range(max(1, count))]
        try:
            answers = await self._send([request for request, _ in batch])
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # whoever asked may be gone
            return
        except BaseException:
            for _, answer in batch:
                answer.cancel()
            raise
        for (_, answer), result in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(result)
