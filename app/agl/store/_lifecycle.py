"""Operations that create rollouts and attempts and move them along."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Literal, TypeVar

from agl.errors import BackendError, DuplicatedPrimaryKeyError, StoreError
from agl.store import rules
from agl.store._core import LIFECYCLE, CollectionsT, Pair, StoreCore, unset_left_out
from agl.store._plan import ATTEMPT_DIGITS, Plan, attempt_id_of, new_attempt, new_rollout
from agl.store.base import UNSET, Unset
from agl.store.collection.base import AtomicLabels
from agl.store.operations import operation
from agl.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    AttemptUpdate,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
)
from agl.utils.ownership import replace
from agl.utils.request_ids import request_ids

logger = logging.getLogger(__name__)

R = TypeVar("R")

_CREATE: tuple[AtomicLabels, ...] = (*LIFECYCLE, "resources")
_ID_TRIES = 3
_NO_CONFIG = RolloutConfig()
_KNOWN_CONFIGS: dict[Hashable, RolloutConfig] = {}
_MOST_CONFIGS = 1000
_UPDATES_AT_ONCE = 256


class LifecycleOperations(StoreCore[CollectionsT]):
    """start, enqueue, dequeue, start_attempt, update_rollout, update_attempt."""

    @operation
    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        await self.watchdog.look_in_call()
        request = self._request(input, mode, resources_id, config, metadata)

        async def work(c: CollectionsT) -> Pair:
            plan = Plan(self._now())
            (rollout,) = await self._new_rollouts(c, plan, [request], "preparing")
            attempt = new_attempt(rollout.rollout_id, 1, worker_id, plan.now)
            plan.writes.new_attempts.append(attempt)
            plan.sync_worker(attempt)
            plan.touched.append((rollout, attempt))
            await self._carry_out(c, plan)
            return rollout, attempt

        return self._attempted(*await self._create(work))

    @operation
    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        request = self._request(input, mode, resources_id, config, metadata)
        (rollout,) = await self._enqueue([request])
        return self._given(rollout)

    @operation
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        if not rollouts:
            return []
        requests = [
            self._request(r.input, r.mode, r.resources_id, r.config, r.metadata) for r in rollouts
        ]
        return self._given_all(await self._enqueue(requests))

    async def _enqueue(self, requests: Sequence[dict[str, Any]]) -> list[Rollout]:
        await self.watchdog.look_in_call()

        async def work(c: CollectionsT) -> list[Rollout]:
            plan = Plan(self._now())
            rollouts = await self._new_rollouts(c, plan, requests, "queuing")
            plan.writes.enqueue.extend(rollout.rollout_id for rollout in rollouts)
            await self._carry_out(c, plan)
            return rollouts

        return await self._create(work)

    def _request(
        self,
        input: TaskInput,
        mode: RolloutMode | None,
        resources_id: str | None,
        config: RolloutConfig | None,
        metadata: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """The fields of a rollout to create, as the store may keep them."""
        return {
            "input": self._taken(input),
            "mode": mode,
            "resources_id": resources_id,
            "config": _NO_CONFIG if config is None else _shared(self._taken(config)),
            "metadata": {} if metadata is None else self._taken(metadata),
        }

    async def _new_rollouts(
        self,
        c: CollectionsT,
        plan: Plan,
        requests: Sequence[dict[str, Any]],
        status: RolloutStatus,
    ) -> list[Rollout]:
        if any(request["resources_id"] is None for request in requests):
            latest_id = await self._default_resources_id(c, many=len(requests) > 1)
            if latest_id is not None:
                requests = [_with_resources(request, latest_id) for request in requests]
        rollouts = [new_rollout(status, plan.now, **request) for request in requests]
        plan.writes.new_rollouts.extend(rollouts)
        return rollouts

    async def _create(self, work: Callable[[CollectionsT], Awaitable[R]]) -> R:
        """Run ``work`` again with other ids in the rare case that one is taken."""
        for _ in range(_ID_TRIES - 1):
            try:
                return await self._write_section(work, _CREATE)
            except DuplicatedPrimaryKeyError:
                logger.warning("A new rollout id was taken already, drawing another one")
        return await self._write_section(work, _CREATE)

    @operation
    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        await self.watchdog.look_in_call()
        claimed = await self._dequeue(1, worker_id)
        return self._attempted(*claimed[0]) if claimed else None

    @operation
    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        await self.watchdog.look_in_call()
        return [self._attempted(*pair) for pair in await self._dequeue(limit, worker_id)]

    async def _dequeue(self, limit: int, worker_id: str | None) -> list[Pair]:
        async def work(c: CollectionsT) -> list[Pair]:
            plan = Plan(self._now())
            claimed: dict[str, Pair] = {}
            seen = 0
            while len(claimed) < limit:
                entries = (await c.rollout_queue.peek(seen + limit - len(claimed)))[seen:]
                if not entries:
                    break
                await self._claim(c, plan, entries, claimed, worker_id)
                seen += len(entries)
            if claimed:
                plan.sync_worker(list(claimed.values())[-1][1], dequeued=True)
            elif worker_id:
                plan.idle_worker(worker_id, await c.workers.find(worker_id))
            plan.writes.take = seen
            await self._carry_out(c, plan)
            return list(claimed.values())

        return await self._write_section(work)

    async def _claim(
        self,
        c: CollectionsT,
        plan: Plan,
        rollout_ids: Sequence[str],
        claimed: dict[str, Pair],
        worker_id: str | None,
    ) -> None:
        rollouts = await self._rollouts_by_id(c, rollout_ids)
        latest = await self._latest_attempts(c, rollout_ids)
        for rollout_id in rollout_ids:
            rollout = rollouts.get(rollout_id)
            if rollout is None or rollout_id in claimed or not rules.claimable(rollout):
                logger.warning(
                    "Dropped a queue entry of rollout %s, which does not wait", rollout_id
                )
                continue
            claimed[rollout_id] = plan.start_attempt(
                rollout, latest.get(rollout_id), worker_id, dequeued=True
            )

    @operation
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        await self.watchdog.look_in_call()

        async def work(c: CollectionsT) -> Pair:
            plan = Plan(self._now())
            rollout = await self._rollout(c, rollout_id)
            latest = await self._latest_attempt(c, rollout_id)
            if latest is not None and _is_of_this_request(latest):
                return rollout, latest
            rollout, attempt = plan.start_attempt(rollout, latest, worker_id)
            plan.sync_worker(attempt)
            await self._carry_out(c, plan)
            return rollout, attempt

        return self._attempted(*await self._write_section(work))

    @operation
    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        await self.watchdog.look_in_call()
        changes = unset_left_out(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )

        async def work(c: CollectionsT) -> Rollout:
            plan = Plan(self._now())
            stored = await self._rollout(c, rollout_id)
            rollout = self._validated(stored, changes)
            move = None
            if not isinstance(status, Unset):
                self._validated(stored, {"status": status})
                move = rules.move_rollout(stored, status, plan.now)
            if changes:
                plan.writes.change_rollout(rollout, tuple(changes))
            if changes or move is not None:
                rollout = plan.apply(rollout, move, await self._latest_attempt(c, rollout_id))
            await self._carry_out(c, plan)
            return rollout

        return self._given(await self._write_section(work))

    @operation
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        await self.watchdog.look_in_call()
        changes = unset_left_out(
            worker_id=worker_id,
            status=status,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
        )

        async def work(c: CollectionsT) -> Attempt:
            return await self._update_attempt(c, rollout_id, attempt_id, changes)

        return self._given(await self._write_section(work))

    @operation
    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        await self.watchdog.look_in_call()
        results: list[Attempt | StoreError] = []
        for at in range(0, len(updates), _UPDATES_AT_ONCE):
            part = updates[at : at + _UPDATES_AT_ONCE]

            async def work(
                c: CollectionsT, part: Sequence[AttemptUpdate] = part
            ) -> list[Attempt | StoreError]:
                return [await self._update_or_error(c, update) for update in part]

            results += await self._write_section(work)
            await asyncio.sleep(0)  # lets other calls in between
        return [r if isinstance(r, StoreError) else self._given(r) for r in results]

    async def _update_or_error(
        self, c: CollectionsT, update: AttemptUpdate
    ) -> Attempt | StoreError:
        try:
            return await self._update_attempt(
                c, update.rollout_id, update.attempt_id, update.changes()
            )
        except BackendError:
            raise
        except StoreError as error:
            return error

    async def _update_attempt(
        self, c: CollectionsT, rollout_id: str, attempt_id: str, changes: dict[str, Any]
    ) -> Attempt:
        plan = Plan(self._now())
        rollout = await self._rollout(c, rollout_id)
        stored, latest = await self._attempt(c, rollout_id, attempt_id)
        attempt = self._changed_attempt(plan, rollout, stored, latest, changes)
        await self._carry_out(c, plan)
        return attempt

    def _changed_attempt(
        self,
        plan: Plan,
        rollout: Rollout,
        stored: Attempt,
        latest: Attempt,
        changes: dict[str, Any],
    ) -> Attempt:
        """Plan what a call of ``update_attempt`` leads to; returns the attempt as it will be."""
        if not changes:
            return stored
        attempt = self._validated(stored, changes)
        revived = False
        if "status" in changes:
            move = rules.move_attempt(stored, attempt.status, plan.now)
            attempt = replace(attempt, end_time=move.end_time)
        elif "last_heartbeat_time" in changes:
            alive = rules.attempt_after_sign_of_life(stored.status, span=False)
            revived = alive != stored.status
            attempt = replace(attempt, status=alive) if revived else attempt
        plan.writes.change_attempt(attempt, (*changes, "status", "end_time"))
        if rollout.status in FINISHED_STATUSES and changes.get("status") != rollout.status:
            plan.late.append("attempt")
        if stored is latest:
            rollout_move = None
            if "status" in changes:
                rollout_move = rules.follow_attempt(rollout, attempt, plan.now)
            elif revived:
                rollout_move = rules.rollout_after_sign_of_life(rollout, attempt, plan.now)
            plan.apply(rollout, rollout_move, attempt)
        if revived or "status" in changes or changes.get("worker_id"):
            plan.sync_worker(attempt)
        return attempt


def _shared(config: RolloutConfig) -> RolloutConfig:
    """One object for all rollouts of equal limits, which are mostly few."""
    if type(config) is not RolloutConfig:
        return config
    retry = tuple(config.retry_condition)
    limits = (config.timeout_seconds, config.unresponsive_seconds, config.max_attempts, retry)
    given = frozenset(config.model_fields_set)
    if len(_KNOWN_CONFIGS) < _MOST_CONFIGS:
        return _KNOWN_CONFIGS.setdefault((limits, given), config)
    return _KNOWN_CONFIGS.get((limits, given), config)


def _with_resources(request: dict[str, Any], resources_id: str) -> dict[str, Any]:
    if request["resources_id"] is not None:
        return request
    return {**request, "resources_id": resources_id}


def _is_of_this_request(attempt: Attempt) -> bool:
    """Whether this very request, sent before, has started the attempt."""
    ids = request_ids()
    return ids is not None and attempt.attempt_id == attempt_id_of(ids.first(1, ATTEMPT_DIGITS)[0])
