"""Finding rollouts that may be stuck, without looking at all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from agl.store._core import CollectionsT, Pair, StoreCore
from agl.store.operations import operation
from agl.types import QUEUING_STATUSES, RUNNING_STATUSES, Attempt, Rollout, StuckItem, StuckKind

LOOKED_AT = 1000
"""Of the running rollouts, so many of the oldest are looked at to find the most silent."""


class StuckOperations(StoreCore[CollectionsT]):
    """find_stuck."""

    @operation
    async def find_stuck(self, limit: int = 20) -> Sequence[StuckItem]:
        now = self._now()
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("attempts", "rollouts")
        ) as c:
            waiting = (
                await c.rollouts.query(
                    {"status": {"within": sorted(QUEUING_STATUSES)}}, limit=max(limit, 0)
                )
            ).items
            running = (
                await c.rollouts.query(
                    {"status": {"within": sorted(RUNNING_STATUSES)}}, limit=LOOKED_AT
                )
            ).items
            found = [*waiting, *running]
            latest = await self._latest_attempts(c, [rollout.rollout_id for rollout in found])
        pairs = [(r, latest[r.rollout_id]) for r in running if r.rollout_id in latest]
        items = [_queued(rollout, latest.get(rollout.rollout_id), now) for rollout in waiting]
        await asyncio.sleep(0)  # lets other calls in
        items += [_running(pair, now) for pair in _oldest(pairs, _began, limit)]
        await asyncio.sleep(0)
        items += [_silent(pair, now) for pair in _oldest(pairs, _last_sign, limit)]
        return items


def _oldest(pairs: Iterable[Pair], since: Callable[[Pair], float], limit: int) -> list[Pair]:
    return sorted(pairs, key=since)[: max(limit, 0)]


def _began(pair: Pair) -> float:
    return pair[1].start_time


def _last_sign(pair: Pair) -> float:
    attempt = pair[1]
    heartbeat = attempt.last_heartbeat_time
    return attempt.start_time if heartbeat is None else heartbeat


def _queued(rollout: Rollout, attempt: Attempt | None, now: float) -> StuckItem:
    return _item("queued", rollout, attempt, now - rollout.start_time, None)


def _running(pair: Pair, now: float) -> StuckItem:
    rollout, attempt = pair
    return _item("running", rollout, attempt, now - _began(pair), rollout.config.timeout_seconds)


def _silent(pair: Pair, now: float) -> StuckItem:
    rollout, attempt = pair
    limit = rollout.config.unresponsive_seconds
    return _item("silent", rollout, attempt, now - _last_sign(pair), limit)


def _item(
    kind: StuckKind, rollout: Rollout, attempt: Attempt | None, age: float, limit: float | None
) -> StuckItem:
    return StuckItem(
        kind=kind,
        rollout_id=rollout.rollout_id,
        status=rollout.status,
        attempt_id=attempt.attempt_id if attempt else None,
        attempt=attempt.sequence_id if attempt else None,
        worker_id=attempt.worker_id if attempt else None,
        age_seconds=max(age, 0.0),
        limit_seconds=limit,
        share=max(age, 0.0) / limit if limit else None,
    )
