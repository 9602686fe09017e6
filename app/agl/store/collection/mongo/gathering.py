"""Requests of many calls, answered together.

A command costs a process about as much as the rest of a whole request, so what counts under load is
how few there are. Two things make batches larger: reads and writes of an event loop take turns, so
that those answered by one go on together into the other; and where many have come together lately,
the next batch waits a moment for as many. Nobody who is alone waits for anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

HOLD_SECONDS = 0.02
"""How long one side waits for the other at most: a stalled write holds up no reads."""

MANY = 4
"""From how many requests on that come together usually the next ones are waited for."""

LINGER_SECONDS = 0.002
"""How long they are waited for at most."""

_SHARE_AWAITED = 0.75
_WEIGHT_OF_LAST = 0.25


class Side(Enum):
    """What takes turns."""

    READ = 0
    WRITE = 1

    @property
    def other(self) -> Side:
        return Side.WRITE if self is Side.READ else Side.READ


class Turns:
    """Lets reads and writes of one event loop take turns; reads may go beside each other."""

    def __init__(self) -> None:
        self._under_way = {Side.READ: 0, Side.WRITE: 0}
        self._waiting: dict[Side, list[asyncio.Future[None]]] = {Side.READ: [], Side.WRITE: []}

    async def begin(self, side: Side) -> None:
        """Wait for one's turn, but not for long; to be followed by :meth:`end`."""
        others_wait = self._under_way[side] and self._waiting[side.other]
        if self._under_way[side.other] or others_wait:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[side].append(turn)
            timer = turn.get_loop().call_later(HOLD_SECONDS, self._grant, side, turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self.end(side)
                raise
            finally:
                timer.cancel()
        else:
            self._under_way[side] += 1

    def end(self, side: Side) -> None:
        """Give way to the other side."""
        self._under_way[side] -= 1
        if not self._under_way[side]:
            waiting, self._waiting[side.other] = self._waiting[side.other], []
            for turn in waiting:
                self._grant(side.other, turn)

    def _grant(self, side: Side, turn: asyncio.Future[None]) -> None:
        if turn in self._waiting[side]:
            self._waiting[side].remove(turn)
        if not turn.done():
            self._under_way[side] += 1
            turn.set_result(None)


class Gathering(Generic[Q, A]):
    """Requests of many calls, answered together; while some are under way, further ones gather.

    Args:
        send: Answers requests, one answer each, in their order.
        take: How many of the waiting requests go next.
        turns: Those of the event loop.
        side: Whether these are reads or writes.
    """

    def __init__(
        self,
        send: Callable[[list[Q]], Awaitable[Sequence[A]]],
        take: Callable[[Sequence[Q]], int] = len,
        *,
        turns: Turns,
        side: Side,
    ) -> None:
        self._send = send
        self._take = take
        self._turns = turns
        self._side = side
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._usual = 1.0
        self._enough: asyncio.Future[None] | None = None

    def ask(self, request: Q) -> asyncio.Future[A]:
        """The answer, from a round trip that begins after this call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append((request, answer))
        if self._running is None:
            self._running = loop.create_task(self._run())
        elif self._enough is not None and self._are_enough():
            _resolve(self._enough)
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._linger()
                await self._turns.begin(self._side)
                try:
                    await self._next()
                finally:
                    self._turns.end(self._side)
                await asyncio.sleep(0)  # those answered may ask, or give back, before the next
        finally:
            self._running = None
            for _, answer in self._waiting:  # only when this task was cancelled
                answer.cancel()
            self._waiting.clear()

    def _are_enough(self) -> bool:
        return len(self._waiting) >= self._usual * _SHARE_AWAITED

    async def _linger(self) -> None:
        """Where many come together, wait a moment for about as many as lately."""
        if self._usual < MANY or self._are_enough():
            return
        loop = asyncio.get_running_loop()
        self._enough = loop.create_future()
        timer = loop.call_later(LINGER_SECONDS, _resolve, self._enough)
        try:
            await self._enough
        finally:
            timer.cancel()
            self._enough = None

    async def _next(self) -> None:
        waiting = self._waiting
        self._usual += _WEIGHT_OF_LAST * (len(waiting) - self._usual)
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


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
