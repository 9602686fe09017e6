"""A run in which nothing happens any more: say so, and end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from agl.types import Worker

_SHOWN = 10


class StallGuard:
    """Watches a number that has to rise; warns after half of ``seconds``, later gives up."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._progress = 0
        self._since = clock()
        self._warned = False

    def look(self, progress: int) -> Literal["on", "warn", "over"]:
        """Say what to do, given how far the run is by now; ``warn`` comes once in each stall."""
        now = self._clock()
        if progress != self._progress:
            self._progress, self._since, self._warned = progress, now, False
        still = now - self._since
        if still < self._seconds / 2:
            return "on"
        if not self._warned:
            self._warned = True
            return "warn"
        return "over" if still >= self._seconds else "on"


def names_of(ids: Sequence[str]) -> str:
    """Return the first few ids, and how many more there are."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f"{', '.join(ids[:_SHOWN]) or 'none'}{more}"


def describe_workers(workers: Sequence[Worker], now: float) -> str:
    """Return what the store knows of the workers: status, rollout, age of the last heartbeat."""
    lines: list[str] = []
    for worker in workers:
        beat = worker.last_heartbeat_time
        age = "no heartbeat" if beat is None else f"heartbeat {now - beat:.0f} s ago"
        rollout = f" with {worker.current_rollout_id}" if worker.current_rollout_id else ""
        lines.append(f"{worker.worker_id} {worker.status}{rollout}, {age}")
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"{len(lines) - _SHOWN} more"]
    return "; ".join(lines) or "none"
