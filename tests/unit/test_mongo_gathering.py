"""Batches of one event loop: who goes with whom, and that nobody waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from agl.store.collection.mongo.gathering import Gathering, Side, Turns

Send = Callable[[list[int]], Awaitable[list[int]]]


class Server:
    """Answers batches when it may, and knows what it was asked."""

    def __init__(self, turns: Turns, side: Side, *, waits: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.free = asyncio.Event()
        if not waits:
            self.free.set()
        self.gathering = Gathering[int, int](self._send, turns=turns, side=side)

    async def _send(self, batch: list[int]) -> list[int]:
        self.batches.append(batch)
        await asyncio.sleep(0)
        await self.free.wait()
        return [10 * number for number in batch]

    def ask(self, number: int) -> asyncio.Future[int]:
        return self.gathering.ask(number)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_is_alone_waits_for_nothing() -> None:
    turns = Turns()
    reads, writes = Server(turns, Side.READ), Server(turns, Side.WRITE)
    for number in range(5):
        with turns.call():
            read, written = reads.ask(number), None
            await settle()
            assert read.done()
            written = writes.ask(number)
            await settle()
            assert written.done()
    assert reads.batches == writes.batches == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(("first", "second"), [(Side.READ, Side.WRITE), (Side.WRITE, Side.READ)])
async def test_one_side_waits_for_the_other(
    first: Side, second: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl.store.collection.mongo.gathering.HOLD_SECONDS", 60.0)
    turns = Turns()
    one, other = Server(turns, first, waits=True), Server(turns, second)
    early = one.ask(1)
    await settle()
    late = [other.ask(1), one.ask(2)]
    await settle()
    assert (one.batches, other.batches) == ([[1]], [])
    one.free.set()
    assert [await early, *[await answer for answer in late]] == [10, 10, 20]
    assert other.batches == [[1]]


async def test_what_was_read_is_written_before_the_next_read() -> None:
    turns = Turns()
    reads, writes = Server(turns, Side.READ, waits=True), Server(turns, Side.WRITE, waits=True)

    async def client(number: int) -> None:
        await reads.ask(number)
        await writes.ask(number)

    first = asyncio.create_task(client(1))
    await settle()
    second = asyncio.create_task(client(2))
    await settle()
    reads.free.set()
    await settle()
    assert (reads.batches, writes.batches) == ([[1]], [[1]])
    writes.free.set()
    await asyncio.gather(first, second)
    assert (reads.batches, writes.batches) == ([[1], [2]], [[1], [2]])


async def test_nobody_waits_long_for_what_is_stuck() -> None:
    turns = Turns()
    stuck, other = Server(turns, Side.WRITE, waits=True), Server(turns, Side.READ)
    answer = stuck.ask(1)
    await settle()
    assert [await other.ask(number) for number in range(3)] == [0, 10, 20]
    assert not answer.done()
    stuck.free.set()
    assert await answer == 10


async def test_those_who_read_together_write_together() -> None:
    turns = Turns()
    reads, writes = Server(turns, Side.READ), Server(turns, Side.WRITE)

    async def client(number: int) -> None:
        for _ in range(10):
            with turns.call():
                await reads.ask(number)
                await writes.ask(number)

    await asyncio.gather(*(client(number) for number in range(8)))
    assert len(reads.batches) <= 11
    assert len(writes.batches) <= 11


async def test_reads_wait_for_company_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    reads = Server(turns, Side.READ)
    with ExitStack() as calls:
        for _ in range(4):
            calls.enter_context(turns.call())
        with monkeypatch.context() as patch:
            for name in ("SHORTEST", "LONGEST"):
                patch.setattr(f"agl.store.collection.mongo.gathering.{name}_LINGER_SECONDS", 60.0)
            first = reads.ask(1)
            await settle()
            assert not reads.batches
            answers = [first, reads.ask(2), reads.ask(3)]
            await settle()
        assert reads.batches == [[1, 2, 3]]
        assert [await answer for answer in answers] == [10, 20, 30]
        assert await reads.ask(4) == 40


async def test_failures_and_cancelled_waits_leave_the_turn_free() -> None:
    turns = Turns()

    async def fail(batch: list[int]) -> list[int]:
        raise RuntimeError("refused")

    failing = Gathering[int, int](fail, turns=turns, side=Side.WRITE)
    with pytest.raises(RuntimeError):
        await failing.ask(1)
    stuck, reads = Server(turns, Side.WRITE, waits=True), Server(turns, Side.READ)
    written = stuck.ask(1)
    await settle()
    read = reads.ask(1)
    await settle()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await settle()
    assert written.cancelled()
    assert read.cancelled()
    assert await Server(turns, Side.READ).ask(2) == 20
    assert await Server(turns, Side.WRITE).ask(3) == 30
