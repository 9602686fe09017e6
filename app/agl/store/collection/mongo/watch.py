"""Finishes of rollouts in other processes: one watcher for each event loop, however many wait.

It follows the change stream of the rollouts, where the server has one, and else asks for the
awaited ones, five times a second as long as MongoDB answers in time, and no more than it can take
where it is slow. It runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError

from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.roots import ROLLOUTS
from agl.types import FINISHED_STATUSES

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.15
"""From one poll to the next, where MongoDB answers at once. Whoever waits is to be told within
250 ms: a poll that takes long comes so much sooner, as its answer may be as old as it took."""

_LEAST_REST = 0.5
"""Rest between two polls at least, as a share of what the last one took: it must not load a slow
MongoDB further."""

LINGER_SECONDS = 10.0
"""How long it runs on when nobody waits any more."""

_AWAIT_MS = 500
_PAUSE_SECONDS = 0.5
_MOST_ASKED = 10_000
_NO_STREAMS = frozenset((40573, 40415, 13, 59, 115, 136, 303))
"""Not a replica set, unknown stage or option, no rights, unknown command, no oplog."""


class FinishWatcher:
    """Rings for rollouts that have finished, whoever finished them.

    Args:
        database: Through the client of the running event loop.
        partition_id: Only rollouts of this partition.
        ring: Told the ids of finished rollouts.
        nudge: Told that finishes may have been missed until now.
        awaited: The rollouts that somebody waits for.
    """

    def __init__(
        self,
        database: AsyncDatabase[Document],
        partition_id: str,
        ring: Callable[[Iterable[str]], None],
        nudge: Callable[[], None],
        awaited: Callable[[], Sequence[str]],
    ) -> None:
        self._rollouts = database[ROLLOUTS]
        self._partition_id = partition_id
        self._ring = ring
        self._nudge = nudge
        self._awaited = awaited
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._wanted = asyncio.Event()
        self.streams = True
        """Whether the server has change streams, as far as is known."""

    def enter(self) -> None:
        """Somebody waits."""
        self._waiting += 1
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self) -> None:
        """Somebody does not wait any more."""
        self._waiting -= 1
        if not self._waiting:
            self._wanted.clear()

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while await self._is_wanted():
                try:
                    await (self._follow() if self.streams else self._ask_again_and_again())
                except OperationFailure as error:
                    if error.code not in _NO_STREAMS or not self.streams:
                        await self._after(error)
                        continue
                    logger.info("No change streams here (code %s); polling instead", error.code)
                    self.streams = False
                except PyMongoError as error:
                    await self._after(error)
        finally:
            self._task = None

    async def _after(self, error: PyMongoError) -> None:
        logger.warning("The watch for finished rollouts was interrupted: %s", type(error).__name__)
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_wanted(self) -> bool:
        """Whether somebody waits, or will within a moment."""
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._wanted.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        mine = {
            "operationType": "update",
            "updateDescription.updatedFields.finish.partition_id": self._partition_id,
        }
        wanted = {"updateDescription.updatedFields.finish.rollout_id": 1}
        pipeline: list[Mapping[str, Any]] = [{"$match": mine}, {"$project": wanted}]
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        async with await self._rollouts.watch(pipeline, max_await_time_ms=_AWAIT_MS) as stream:
            self._nudge()
            while self._waiting or loop.time() - idle_since < LINGER_SECONDS:
                if self._waiting:
                    idle_since = loop.time()
                change = await stream.try_next()
                if change is not None:
                    finish = change["updateDescription"]["updatedFields"]["finish"]
                    self._ring([finish["rollout_id"]])

    async def _ask_again_and_again(self) -> None:
        self._nudge()
        loop = asyncio.get_running_loop()
        while self._waiting:
            started = loop.time()
            awaited = self._awaited()
            for at in range(0, len(awaited), _MOST_ASKED):
                await self._ask(awaited[at : at + _MOST_ASKED])
            took = loop.time() - started
            await asyncio.sleep(max(POLL_SECONDS - 2 * took, _LEAST_REST * took))

    async def _ask(self, rollout_ids: Sequence[str]) -> None:
        match = {
            "partition_id": self._partition_id,
            "rollout_id": {"$in": list(rollout_ids)},
            "status": {"$in": sorted(FINISHED_STATUSES)},
        }
        found = self._rollouts.find(match, {"rollout_id": 1}, batch_size=_MOST_ASKED)
        finished = [document["rollout_id"] for document in await found.to_list()]
        if finished:
            self._ring(finished)
