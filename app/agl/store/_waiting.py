"""Waiting for rollouts to finish."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from agl.utils.locks import Guarded

POLL_SECONDS = 0.2


class Watch(Protocol):
    """What one call that waits sleeps on. Used in the order arm, narrow, sleep, arm, ..."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def arm(self, rollout_ids: Iterable[str]) -> None:
        """Note from now on which of these finish."""

    def narrow(self, rollout_ids: Iterable[str]) -> None:
        """Of those armed, only these are still of interest."""

    async def sleep(self, seconds: float | None) -> None:
        """Until all of interest have finished, or the time is over, or a look is worthwhile."""


class PollingWatch:
    """Looks again and again, for backends that tell nobody of a finish."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def arm(self, rollout_ids: Iterable[str]) -> None:
        return None

    def narrow(self, rollout_ids: Iterable[str]) -> None:
        return None

    async def sleep(self, seconds: float | None) -> None:
        await asyncio.sleep(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS))


class Bell(Guarded):
    """Wakes calls that wait, in whatever event loop or thread they run."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: dict[str, set[BellWatch]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_watches": {}}  # those who wait here do not wait in a copy

    def __len__(self) -> int:
        return len(self._watches)

    def ring(self, rollout_ids: Iterable[str]) -> None:
        """Tell that rollouts have finished."""
        with self._mutex:
            for rollout_id in rollout_ids:
                for watch in self._watches.pop(rollout_id, ()):
                    watch.strike(rollout_id)

    def nudge(self) -> None:
        """Tell everybody that a look is worthwhile."""
        with self._mutex:
            for watches in self._watches.values():
                for watch in watches:
                    watch.wake()

    def awaited(self) -> list[str]:
        """The rollouts that somebody waits for."""
        with self._mutex:
            return list(self._watches)

    def watch(self) -> BellWatch:
        """A watch for one call; to be used in the event loop that sleeps."""
        return BellWatch(self)

    def register(self, watch: BellWatch, rollout_ids: Iterable[str]) -> None:
        with self._mutex:
            self._forget(watch, watch.awaited)
            watch.reset(rollout_ids)
            for rollout_id in watch.awaited:
                self._watches.setdefault(rollout_id, set()).add(watch)

    def narrow(self, watch: BellWatch, rollout_ids: Iterable[str]) -> None:
        with self._mutex:
            kept = watch.awaited.intersection(rollout_ids)
            self._forget(watch, watch.awaited - kept)
            watch.awaited = kept
            watch.check()

    def leave(self, watch: BellWatch) -> None:
        with self._mutex:
            self._forget(watch, watch.awaited)
            watch.awaited = set()

    def _forget(self, watch: BellWatch, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            watches = self._watches.get(rollout_id)
            if watches is not None:
                watches.discard(watch)
                if not watches:
                    del self._watches[rollout_id]


class BellWatch:
    """The watch of one waiting call. Its state changes only under the mutex of its bell."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._loop = asyncio.get_running_loop()
        self._all_finished = asyncio.Event()
        self.awaited: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bell.leave(self)

    def arm(self, rollout_ids: Iterable[str]) -> None:
        self._bell.register(self, rollout_ids)

    def narrow(self, rollout_ids: Iterable[str]) -> None:
        self._bell.narrow(self, rollout_ids)

    async def sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._all_finished.wait()
        except TimeoutError:
            return

    def reset(self, rollout_ids: Iterable[str]) -> None:
        self.awaited = set(rollout_ids)
        self._all_finished.clear()

    def strike(self, rollout_id: str) -> None:
        self.awaited.discard(rollout_id)
        self.check()

    def check(self) -> None:
        """Wake the call if nothing is awaited any more."""
        if not self.awaited:
            self.wake()

    def wake(self) -> None:
        """Let the call have a look."""
        try:
            self._loop.call_soon_threadsafe(self._all_finished.set)
        except RuntimeError:
            return  # its loop is closed, nobody sleeps there any more
