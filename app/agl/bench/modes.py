"""How the algorithm of a scenario enqueues and waits, in the three ways of agent-lightning 0.3."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from agl.bench.ledger import Ledger
from agl.bench.presets import Mode, Preset
from agl.bench.report import ProgressLine
from agl.bench.target import Persistence
from agl.store.client_server import LightningStoreClient
from agl.types import Rollout

_FINISHED = ("succeeded", "failed", "cancelled")
_CENSUS_SECONDS = 2.0
_CENSUS_POLLS = 4


class Algorithm:
    """Enqueues all rollouts of a preset and has each of them verified."""

    def __init__(
        self,
        preset: Preset,
        client: LightningStoreClient,
        persistence: Persistence,
        ledger: Ledger,
        progress: ProgressLine,
    ) -> None:
        self._preset = preset
        self._client = client
        self._call = persistence.call
        self._ledger = ledger
        self._progress = progress

    async def run(self) -> None:
        """Play the preset's mode to its end.

        Raises:
            DeadlinePassedError: the store kept failing until the run's deadline.
            StoreError: the store refused a call.
        """
        modes: dict[Mode, Callable[[], Awaitable[None]]] = {
            "batch": self._batch,
            "batch_partial": self._batch_partial,
            "single": self._single,
        }
        await modes[self._preset.mode]()

    async def _submit(self, batch: int, first: int) -> int:
        """Enqueue the batch that begins with this rollout; returns where the next one begins."""
        last = min(first + self._preset.batch_size, self._preset.rollouts)
        await self._ledger.submit(batch, range(first, last), together=self._preset.together)
        return last

    async def _batch(self) -> None:
        """Enqueue a batch, wait until all of it is finished, enqueue the next one."""
        batch = first = 0
        while first < self._preset.rollouts:
            batch += 1
            first = await self._submit(batch, first)
            await self._wait()
            self._progress.batch_done(batch)

    async def _wait(self) -> None:
        pause = self._preset.poll_seconds
        census_seconds = max(_CENSUS_SECONDS, _CENSUS_POLLS * pause)
        census = time.monotonic() + census_seconds
        while ids := self._ledger.under_way:
            finished = await self._call(
                lambda ids=ids: self._client.wait_for_rollouts(rollout_ids=ids, timeout=0)
            )
            await self._ledger.settle(finished)
            if time.monotonic() >= census:
                await self._look_at(self._ledger.under_way)
                census = time.monotonic() + census_seconds
            if self._ledger.under_way:
                await asyncio.sleep(pause)

    async def _batch_partial(self) -> None:
        """Enqueue the next batch as soon as few enough are under way."""
        batch = first = 0
        while first < self._preset.rollouts or self._ledger.under_way:
            under_way = self._ledger.under_way
            if first < self._preset.rollouts and len(under_way) < self._preset.remaining:
                batch += 1
                first = await self._submit(batch, first)
            elif not await self._look_at(under_way):
                await asyncio.sleep(self._preset.poll_seconds)

    async def _look_at(self, ids: list[str]) -> bool:
        """Settle those that are finished, and note those that the store lost; whether any was."""
        if not ids:
            return False
        known = await self._call(lambda: self._client.query_rollouts(rollout_id_in=ids))
        self._ledger.lose(set(ids) - {rollout.rollout_id for rollout in known})
        finished = [rollout for rollout in known if rollout.status in _FINISHED]
        await self._ledger.settle(finished)
        return bool(finished) or len(known.items) < len(ids)

    async def _single(self) -> None:
        """Enqueue each rollout on its own and look after it, so many at a time."""
        numbers = iter(range(self._preset.rollouts))

        async def play() -> None:
            for index in numbers:
                await self._play_single(index)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._preset.concurrency, self._preset.rollouts)):
                    group.create_task(play())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _play_single(self, index: int) -> None:
        (key,) = await self._ledger.submit(index, [index], together=False)
        while True:
            rollout: Rollout | None = await self._call(lambda: self._client.get_rollout_by_id(key))
            if rollout is None:
                self._ledger.lose([key])
                return
            if rollout.status in _FINISHED:
                await self._ledger.settle([rollout])
                return
            await asyncio.sleep(self._preset.poll_seconds)
