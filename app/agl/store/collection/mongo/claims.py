"""Claims of a dequeue that is sent again, perhaps to another server process.

The ids of its attempts follow from the key of the request, and each claim has its mark, so what it
has claimed before can be found. It may still be claiming, though: what is found is marked as told
before it is answered, and what turns up later, told to nobody, goes back to the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from agl.errors import StoreError
from agl.store.collection.mongo.collections import MongoLightningCollections
from agl.store.collection.mongo.roots import Decision, Root
from agl.types import Attempt, Rollout

logger = logging.getLogger(__name__)

LOOKS_SECONDS = (5.0, 40.0)
"""When to look for what has turned up; a write is repeated for half a minute at most."""

_TRIES = 5
_CLOSE_SECONDS = 5.0

Pair = tuple[Rollout, Attempt]
GiveBack = Callable[[str, Callable[[Root], bool]], Awaitable[bool]]


class Dequeue(NamedTuple):
    """A request to dequeue: its mark, and what the attempts that it starts may be called."""

    mark: str
    attempt_ids: Collection[str]


class RepeatedClaims:
    """Of one event loop.

    Args:
        collections: Where the rollouts are.
        give_back: Puts a rollout back into the queue if a condition on its document holds;
            returns whether it did.
    """

    def __init__(self, collections: MongoLightningCollections, give_back: GiveBack) -> None:
        self._collections = collections
        self._give_back = give_back
        self._looking: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def told(self, dequeue: Dequeue, limit: int) -> list[Pair]:
        """Up to ``limit`` of its claims that are there, as they entered the queue; nobody gives
        them back from now on.
        """
        roots = (await self._claims(dequeue))[:limit]
        kept: dict[str, Pair] = {}
        for _ in range(_TRIES):
            kept.update(await self._mark([r for r in roots if r.rollout_id not in kept]))
            if len(kept) == len(roots):
                break
            there = {root.rollout_id: root for root in await self._claims(dequeue)}
            roots = [there[root.rollout_id] for root in roots if root.rollout_id in there]
        return [kept[root.rollout_id] for root in roots if root.rollout_id in kept]

    async def _claims(self, dequeue: Dequeue) -> list[Root]:
        return await self._collections.claims(dequeue.attempt_ids, dequeue.mark)

    async def _mark(self, roots: Sequence[Root]) -> dict[str, Pair]:
        lane = await self._collections.lane()
        decisions: list[Decision] = []
        for root in roots:
            decision = Decision(self._collections.partition_id, root)
            decision.tell()
            decisions.append(decision)
        outcomes = await lane.submit([one.write() for one in decisions], {}) if decisions else []
        marked: dict[str, Pair] = {}
        for decision, outcome in zip(decisions, outcomes, strict=True):
            after = decision.after()
            if outcome.matched and after.latest is not None:
                lane.known.learn(after)
                marked[after.rollout_id] = after.rollout, after.latest
        return marked

    def look_after(self, dequeue: Dequeue) -> None:
        """Have those of its claims that nobody was told of given back, once it is clear."""
        task = asyncio.get_running_loop().create_task(self._look_again(dequeue))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def close(self) -> None:
        """Look a last time instead of later, unless MongoDB does not answer."""
        self._closing.set()
        if self._looking:
            _, late = await asyncio.wait(self._looking, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _look_again(self, dequeue: Dequeue) -> None:
        for seconds in LOOKS_SECONDS:
            try:
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
            except TimeoutError:
                pass
            try:
                await self._look(dequeue)
            except StoreError as error:
                logger.warning("Could not look for claims that nobody knows of: %s", error)
            if self._closing.is_set():
                return

    async def _look(self, dequeue: Dequeue) -> None:
        def is_lost(root: Root) -> bool:
            latest = root.latest
            return (
                latest is not None
                and root.request == dequeue.mark
                and latest.attempt_id != root.told
                and latest.status == "preparing"
                and latest.last_heartbeat_time is None
            )

        found = [root for root in await self._claims(dequeue) if is_lost(root)]
        back = [await self._give_back(root.rollout_id, is_lost) for root in found]
        if any(back):
            logger.warning(
                "A dequeue was sent again while it was still claiming: %d rollouts that nobody "
                "was told of are back in the queue",
                sum(back),
            )
