"""Heartbeats that come in quick succession, written together a moment later.

Each span is a sign of life. To write every one of them would mean to rewrite the rollout document,
input and all, for every span. So one that comes soon after the stored one waits, and what has come
by then is written at once for all attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from agl.store.collection.mongo.combine import Combiner
from agl.store.collection.mongo.single_write import Write
from agl.types import Rollout

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
"""How long a heartbeat may wait, unless the limit on silence is short."""

_SHARE_OF_LIMIT = 4

Missed = Callable[[str, str], Awaitable[None]]
"""Told rollout id and attempt id where a heartbeat came too late, as the status had changed."""


Written = Callable[[str, str, float], None]
"""Told rollout id, attempt id and time of a heartbeat that is stored now."""


class Beat(NamedTuple):
    """A heartbeat that is to be written, and whose it is."""

    write: Write
    rollout_id: str
    attempt_id: str
    when: float


def may_wait(seconds: float, rollout: Rollout, stored: float | None, now: float) -> bool:
    """Whether a heartbeat at ``now`` comes so soon after the stored one that it can wait."""
    if stored is None:
        return False
    limit = rollout.config.unresponsive_seconds
    if limit is not None:
        seconds = min(seconds, limit / _SHARE_OF_LIMIT)
    return 0 <= now - stored < seconds


class Heartbeats:
    """Those of one event loop that wait, for so many seconds at most."""

    def __init__(
        self,
        combiner: Combiner,
        beside: Callable[[Awaitable[None]], None],
        seconds: float,
        written: Written,
    ) -> None:
        self._seconds = seconds
        self._combiner = combiner
        self._beside = beside
        self._written = written
        self._waiting: dict[Hashable, Beat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.missed: Missed | None = None

    def later(self, beat: Beat, rollout: Rollout) -> None:
        """Have a heartbeat written within a moment; a later one of the same attempt replaces it."""
        self._waiting[beat.write.merge] = beat
        limit = rollout.config.unresponsive_seconds
        delay = self._seconds if limit is None else min(self._seconds, limit / _SHARE_OF_LIMIT)
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + delay:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._send)

    def take(self, merge: Hashable) -> Beat | None:
        """A heartbeat that waits, for whoever is about to write to its attempt anyway."""
        return self._waiting.pop(merge, None)

    def put_back(self, beat: Beat, rollout: Rollout) -> None:
        """It was not written after all."""
        if beat.write.merge not in self._waiting:
            self.later(beat, rollout)

    def flush_last(self) -> None:
        """Do not wait any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()

    def _send(self) -> None:
        self._timer = None
        waiting, self._waiting = list(self._waiting.values()), {}
        if waiting:
            self._beside(self._write(waiting))

    async def _write(self, beats: list[Beat]) -> None:
        outcomes = await self._combiner.submit([beat.write for beat in beats])
        for beat, outcome in zip(beats, outcomes, strict=True):
            if outcome.matched:
                self._written(beat.rollout_id, beat.attempt_id, beat.when)
            elif outcome.code is None and self.missed is not None:
                await self.missed(beat.rollout_id, beat.attempt_id)
