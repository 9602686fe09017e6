"""When the totals of a partition are compared with what is there: once an hour, and soon after a
server process has died, which may have counted what it could not correct any more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from agl.store.collection.mongo.lane import Lane
from agl.store.collection.mongo.totals import Reconciler

RECONCILE_SECONDS = 3600.0
SOON_SECONDS = 2.0
"""After the death of a process; its successor serves by then."""

FIRST_PAUSE_SECONDS = 60.0
"""Before the next try when somebody wrote meanwhile or it failed; then twice as long each time."""

_SHARE = 40.0
"""It pauses at least so many times as long as a comparison has taken, which reads everything."""


class Reconciling:
    """Decides for one store object; of several processes one compares.

    A copy in a forked process goes on from where its parent was.
    """

    def __init__(self) -> None:
        self._next = time.monotonic() + RECONCILE_SECONDS
        self._needed = 0.0
        """Since when nobody's comparison is good enough, in seconds since the epoch."""
        self._pause = FIRST_PAUSE_SECONDS

    def soon(self) -> None:
        """Somebody has died, or may have."""
        self._next = time.monotonic() + SOON_SECONDS
        self._needed = time.time()
        self._pause = FIRST_PAUSE_SECONDS

    def is_due(self) -> bool:
        """Whether to call :meth:`run`; true once."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + RECONCILE_SECONDS
        return True

    async def run(self, lane: Lane) -> None:
        """Compare, unless another process has done so lately."""
        reconciler = Reconciler(lane.database, lane.partition_id)
        started = time.monotonic()
        try:
            if not await reconciler.take_turn(max(self._needed, time.time() - RECONCILE_SECONDS)):
                return
            if await reconcile(lane) is not None:
                return
            await reconciler.give_turn_back()
        except Exception:
            self._needed = time.time()  # the turn may be taken
            self._try_again(time.monotonic() - started)
            raise
        self._try_again(time.monotonic() - started)

    def _try_again(self, took: float) -> None:
        pause = min(max(self._pause, _SHARE * took), RECONCILE_SECONDS)
        self._next = time.monotonic() + pause
        self._pause = 2 * pause


async def reconcile(lane: Lane) -> Mapping[str, int] | None:
    """Compare and correct; what was added to the counters, ``None`` if somebody wrote meanwhile."""
    reconciler = Reconciler(lane.database, lane.partition_id)
    await lane.reading(reconciler.fold)
    return await lane.reading(reconciler.reconcile)
