"""Requests of many calls, answered together.

A command costs a process about as much as the rest of a whole request, so what counts under load is
how few there are. Two things make batches larger: reads and writes of an event loop take turns, so
that those answered by one go on together into the other; and where many calls are under way at once
lately, the first to ask waits a moment for most of them. Nobody who is alone waits for anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from enum import Enum
from time import monotonic
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

HOLD_SECONDS = 0.02
"""How long one side waits for the other at most: a stalled write holds up no reads."""

CROWD = 3
"""From how many calls at once on one waits for company."""

LONGEST_LINGER_SECONDS = 0.01
SHORTEST_LINGER_SECONDS = 0.002
_SHARE_OF_CALL = 0.25
"""How long it is waited for at most, as a share of what calls take lately. So where processes and
the server keep each other waiting, batches make up for it; and no call takes twice as long."""

_SHARE_AWAITED = 0.75
_DECAY = 0.97
_NEW_CALL_WEIGHT = 0.05


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
        self._asked = {Side.READ: 0, Side.WRITE: 0}
        self._waiting: dict[Side, list[asyncio.Future[None]]] = {Side.READ: [], Side.WRITE: []}
        self._last = Side.WRITE
        self._calls = 0
        self._usual_calls = 0.0
        self._usual_seconds = 0.0
        self._company: asyncio.Future[None] | None = None

    @contextmanager
    def call(self) -> Generator[None]:
        """Around a call that reads and writes."""
        self._calls += 1
        self._usual_calls = max(self._usual_calls, self._calls)
        started = monotonic()
        try:
            yield
        finally:
            self._calls -= 1
            self._usual_seconds += _NEW_CALL_WEIGHT * (monotonic() - started - self._usual_seconds)

    def ask(self, side: Side) -> None:
        """Something is asked of a side."""
        self._asked[side] += 1
        if self._company is not None and self._have_company():
            _resolve(self._company)

    def take(self, side: Side, count: int) -> None:
        """So much of it is under way now."""
        self._asked[side] -= count

    async def begin(self, side: Side) -> None:
        """Wait for one's turn, but not for long; to be followed by :meth:`end`."""
        other = side.other
        if self._under_way[other] or (self._asked[other] and self._last is side):
            await self._turn(side)
        else:
            self._under_way[side] += 1
        self._last = side
        try:
            await self._linger()
        except BaseException:
            self.end(side)
            raise

    async def _turn(self, side: Side) -> None:
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

    def _have_company(self) -> bool:
        return sum(self._asked.values()) >= self._usual_calls * _SHARE_AWAITED

    async def _linger(self) -> None:
        self._usual_calls = max(self._usual_calls * _DECAY, self._calls)
        if self._usual_calls < CROWD or self._have_company():
            return
        if self._company is None:
            loop = asyncio.get_running_loop()
            self._company = loop.create_future()
            seconds = max(self._usual_seconds * _SHARE_OF_CALL, SHORTEST_LINGER_SECONDS)
            loop.call_later(min(seconds, LONGEST_LINGER_SECONDS), _resolve, self._company)
        company = self._company
        await asyncio.shield(company)
        if self._company is company:
            self._company = None


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

    def ask(self, request: Q) -> asyncio.Future[A]:
        """The answer, from a round trip that begins after this call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append((request, answer))
        if self._running is None:
            self._running = loop.create_task(self._run())
        self._turns.ask(self._side)
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
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
            self._turns.take(self._side, len(self._waiting))
            self._waiting.clear()

    async def _next(self) -> None:
        waiting = self._waiting
        count = self._take([request for request, _ in waiting])
        batch = [waiting.popleft() for _ in range(max(1, count))]
        self._turns.take(self._side, len(batch))
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
