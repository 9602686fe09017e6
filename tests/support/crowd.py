"""Many threads, each with an event loop of its own, at work on one store at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")

PATIENCE_SECONDS = 60.0
"""After this a deadlock is taken for granted."""


async def _nothing() -> None:
    return None


def crowd(
    threads: int,
    tasks: int,
    work: Callable[[int], Awaitable[R]],
    leave: Callable[[], Awaitable[None]] = _nothing,
) -> list[R]:
    """``work(n)`` for every n below threads x tasks, all at once; the results by n.

    Each thread runs an event loop with ``tasks`` of them, and then ``leave()``.
    """
    start = threading.Barrier(threads)

    async def together(first: int) -> list[R]:
        start.wait(PATIENCE_SECONDS)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.gather(*(work(first + i) for i in range(tasks)))
        finally:
            await leave()

    with ThreadPoolExecutor(threads) as pool:
        groups = [pool.submit(asyncio.run, together(i * tasks)) for i in range(threads)]
        return [result for group in groups for result in group.result()]
