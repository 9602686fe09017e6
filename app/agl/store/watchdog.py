"""The watchdog: when to look for attempts that run too long or have fallen silent.

It looks now and then inside calls, and in a loop that a server runs, so that timeouts are recorded
when traffic stops. Several watchdogs may look at the same store: what one has acted on is no longer
overdue for the others.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial

from agl.store import rules
from agl.types import RUNNING_STATUSES, Attempt, Rollout
from agl.utils.locks import AsyncLock, Guarded

logger = logging.getLogger(__name__)

SWEEP_LIMIT = 64
"""Attempts given up in one go, so that no call is held up for long."""

Sweep = Callable[[int], Awaitable[int]]


class Watchdog:
    """Calls ``sweep(limit)``, which acts on up to ``limit`` overdue attempts and returns how many.

    Args:
        sweep: Does the work.
        clock: Seconds since the epoch.
        debounce_seconds: Shortest time between two looks inside calls; 0 looks in every call.
    """

    def __init__(self, sweep: Sweep, clock: Callable[[], float], debounce_seconds: float) -> None:
        self._sweep = sweep
        self._clock = clock
        self._debounce = debounce_seconds
        self._last_look = clock() - debounce_seconds

    async def look_in_call(self) -> None:
        """Sweep, unless the last look was a moment ago."""
        now = self._clock()
        if now - self._last_look < self._debounce:
            return
        self._last_look = now
        if await self._sweep(SWEEP_LIMIT) >= SWEEP_LIMIT:
            self._last_look = now - self._debounce

    async def run(self, interval: float) -> None:
        """Sweep every ``interval`` seconds until cancelled; a failure is logged and survived."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self._sweep_all()
            except Exception:
                logger.exception("The watchdog failed; it tries again in %s s", interval)

    def taking_turns(self, lock: AsyncLock) -> Watchdog:
        """The same watchdog, holding ``lock`` during each sweep."""
        return Watchdog(partial(_sweep_in_turn, lock, self._sweep), self._clock, self._debounce)

    async def _sweep_all(self) -> None:
        full = True
        while full:
            full = await self._sweep(SWEEP_LIMIT) >= SWEEP_LIMIT
            await asyncio.sleep(0)  # lets calls in between two sweeps


async def _sweep_in_turn(lock: AsyncLock, sweep: Sweep, limit: int) -> int:
    async with lock:
        return await sweep(limit)


class Deadlines(Guarded):
    """Running rollouts by the time at which the watchdog has to look at them.

    Looking costs nothing for rollouts without limits or not due. A deadline that moves later is
    noticed only when the old one comes; one that moves earlier must be announced by ``watch``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []
        self._planned: dict[str, float] = {}
        self._taken: list[str] = []

    def __len__(self) -> int:
        return len(self._planned)

    def watch(self, rollout: Rollout, attempt: Attempt) -> None:
        """See to it that the rollout is looked at when its latest attempt may be overdue."""
        when = rules.deadline(rollout, attempt) if rollout.status in RUNNING_STATUSES else None
        if when is None:
            return
        with self._mutex:
            self._plan(rollout.rollout_id, when)

    def _plan(self, rollout_id: str, when: float) -> None:
        planned = self._planned.get(rollout_id)
        if planned is None or when < planned:
            self._planned[rollout_id] = when
            heapq.heappush(self._heap, (when, rollout_id))

    def any_due(self, now: float) -> bool:
        """Whether :meth:`take_due` would find something."""
        heap = self._heap
        return bool(self._taken) or (bool(heap) and heap[0][0] < now)

    def take_due(self, now: float, limit: int) -> list[str]:
        """Ids whose time has come, no longer watched; the caller watches them again if need be.

        Unless he also calls :meth:`done`, the next call returns them again. One caller at a time.
        """
        due: list[str] = []
        with self._mutex:
            for rollout_id in self._taken:
                self._plan(rollout_id, -math.inf)
            while self._heap and self._heap[0][0] < now and len(due) < limit:
                when, rollout_id = heapq.heappop(self._heap)
                if self._planned.get(rollout_id) == when:
                    del self._planned[rollout_id]
                    due.append(rollout_id)
            self._taken = list(due)
        return due

    def done(self) -> None:
        """What :meth:`take_due` returned last has been dealt with."""
        self._taken = []
