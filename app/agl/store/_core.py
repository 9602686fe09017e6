"""What all operations of the collection-based store are made of."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from agl.errors import AttemptNotFoundError, RolloutNotFoundError
from agl.store import rules
from agl.store._plan import Plan
from agl.store._waiting import PollingWatch, Watch
from agl.store.base import (
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    Unset,
)
from agl.store.collection.base import AtomicLabels, LightningCollections
from agl.store.operations import StoreRecorder, operation
from agl.store.watchdog import Watchdog
from agl.types import (
    RUNNING_STATUSES,
    Attempt,
    AttemptedRollout,
    ResourcesUpdate,
    Rollout,
)
from agl.utils.metrics import MetricsBackend
from agl.utils.ownership import assemble, changeable, copy_model, copy_value, sharing

CollectionsT = TypeVar("CollectionsT", bound=LightningCollections)
ModelT = TypeVar("ModelT", bound=BaseModel)
ValueT = TypeVar("ValueT")
R = TypeVar("R")

LIFECYCLE: tuple[AtomicLabels, ...] = ("attempts", "rollout_queue", "rollouts", "workers")
"""What a status change may touch; taken whole, so that queue, rollout and worker agree."""

Pair = tuple[Rollout, Attempt]


class StoreCore(LightningStore, Generic[CollectionsT]):
    """Collections, clock, copies, atomic sections and the watchdog."""

    def __init__(
        self,
        collections: CollectionsT,
        *,
        read_snapshot: bool = False,
        tracker: MetricsBackend | None = None,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        self.collections = collections
        self._read_snapshot = read_snapshot
        self._tracker = tracker
        self.recorder = None if tracker is None else StoreRecorder(tracker)
        """Where operations are counted and timed."""

        self._launch_time = time.time()
        self.watchdog = Watchdog(
            self._scan_for_unhealthy_rollouts, self._now, scan_debounce_seconds
        )

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities()

    async def statistics(self) -> LightningStoreStatistics:
        c = self.collections
        return LightningStoreStatistics(
            name=type(self).__name__,
            total_rollouts=await c.rollouts.size(),
            total_attempts=await c.attempts.size(),
            total_spans=await c.spans.size(),
            total_resources=await c.resources.size(),
            total_workers=await c.workers.size(),
            uptime=self._now() - self._launch_time,
        )

    def _now(self) -> float:
        return time.time()

    # Sections

    def _write_section(
        self,
        work: Callable[[CollectionsT], Awaitable[R]],
        labels: Sequence[AtomicLabels] = LIFECYCLE,
        *,
        commit: bool = True,
    ) -> Awaitable[R]:
        """Run ``work`` where nobody else touches the collections of ``labels``."""
        return self.collections.execute(work, mode="rw", commit=commit, labels=labels)

    async def _carry_out(self, collections: CollectionsT, plan: Plan) -> None:
        """Write a plan and tell those who follow rollouts."""
        await collections.write(plan.writes)
        self._settled(plan)

    def _settled(self, plan: Plan) -> None:
        """Called inside the section, right after a plan was written; backends add to it."""
        recorder = self.recorder
        if recorder is not None:
            if plan.claimed:
                recorder.claimed(plan.claimed)
            if plan.finished:
                recorder.finished(plan.finished)
            for event in plan.late:
                recorder.late(event)

    def _watch(self) -> Watch:
        """What a call that waits for rollouts sleeps on."""
        return PollingWatch()

    # Copies at the public edge

    def _taken(self, value: ValueT) -> ValueT:
        """A value a caller handed in, as the store may keep it."""
        return value if sharing() else copy_value(value)

    def _given(self, model: ModelT) -> ModelT:
        """A stored object as a caller may have it."""
        return model if sharing() else copy_model(model)

    def _given_all(self, models: Iterable[ModelT]) -> list[ModelT]:
        return list(models) if sharing() else [copy_model(model) for model in models]

    def _given_pair(self, rollout: Rollout, attempt: Attempt | None) -> Rollout:
        """A rollout as a caller may have it, with its attempt if there is one."""
        if attempt is None:
            return self._given(rollout)
        return self._attempted(rollout, attempt)

    def _attempted(self, rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
        if not sharing():
            rollout, attempt = copy_model(rollout), copy_model(attempt)
        return assemble(AttemptedRollout, {**rollout.__dict__, "attempt": attempt})

    def _validated(self, model: ModelT, changes: dict[str, Any]) -> ModelT:
        """A model with changes that a caller asked for.

        Raises:
            pydantic.ValidationError: a value of the wrong type.
        """
        changed = changeable(model)
        validator = changed.__pydantic_validator__
        for field, value in changes.items():
            validator.validate_assignment(changed, field, self._taken(value))
        return changed

    # Reading

    async def _rollout(self, c: LightningCollections, rollout_id: str) -> Rollout:
        rollout = await c.rollouts.find(rollout_id)
        if rollout is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return rollout

    async def _rollouts_by_id(
        self, c: LightningCollections, rollout_ids: Sequence[str]
    ) -> dict[str, Rollout]:
        """The known ones of some rollouts."""
        if len(rollout_ids) == 1:
            rollout = await c.rollouts.find(rollout_ids[0])
            return {} if rollout is None else {rollout.rollout_id: rollout}
        found = await c.rollouts.query({"rollout_id": {"within": rollout_ids}})
        return {rollout.rollout_id: rollout for rollout in found.items}

    async def _latest_attempt(self, c: LightningCollections, rollout_id: str) -> Attempt | None:
        return await c.attempts.get(
            {"rollout_id": {"exact": rollout_id}}, {"name": "sequence_id", "order": "desc"}
        )

    async def _latest_attempts(
        self, c: LightningCollections, rollout_ids: Sequence[str]
    ) -> dict[str, Attempt]:
        """The latest attempt of each rollout that has one."""
        if len(rollout_ids) == 1:
            attempt = await self._latest_attempt(c, rollout_ids[0])
            return {} if attempt is None else {attempt.rollout_id: attempt}
        found = await c.attempts.query(
            {"rollout_id": {"within": rollout_ids}}, {"name": "sequence_id", "order": "asc"}
        )
        return {attempt.rollout_id: attempt for attempt in found.items}

    async def _attempt(
        self, c: LightningCollections, rollout_id: str, attempt_id: str
    ) -> tuple[Attempt, Attempt]:
        """The attempt asked for (an id or ``latest``) and the latest one."""
        latest = await self._latest_attempt(c, rollout_id)
        if latest is None:
            raise AttemptNotFoundError(f"No attempts found for rollout {rollout_id}")
        if attempt_id in ("latest", latest.attempt_id):
            return latest, latest
        attempt = await c.attempts.find(rollout_id, attempt_id)
        if attempt is None:
            raise AttemptNotFoundError(f"Attempt {attempt_id} not found for rollout {rollout_id}")
        return attempt, latest

    async def _latest_resources(self, c: LightningCollections) -> ResourcesUpdate | None:
        return await c.resources.get(None, {"name": "update_time", "order": "desc"})

    async def _default_resources_id(self, c: CollectionsT, *, many: bool) -> str | None:
        """Id of the latest resources, for one new rollout or ``many``."""
        latest = await self._latest_resources(c)
        return None if latest is None else latest.resources_id

    # Watchdog

    async def _watched_rollouts(
        self, c: LightningCollections, now: float, limit: int
    ) -> tuple[list[Pair], int]:
        """Running rollouts that may be overdue with their latest attempts, and how many there are.

        A backend that knows the deadlines returns only those due, and at most ``limit``.
        """
        running = await c.rollouts.query({"status": {"within": sorted(RUNNING_STATUSES)}})
        latest = await self._latest_attempts(c, [rollout.rollout_id for rollout in running.items])
        pairs = [
            (rollout, latest[rollout.rollout_id])
            for rollout in running.items
            if rollout.rollout_id in latest
        ]
        overdue = [pair for pair in pairs if rules.overdue(*pair, now) is not None][:limit]
        return overdue, len(overdue)

    def _looked_after(self) -> None:
        """Called inside the section, when those of the last look have been dealt with."""

    def _nothing_due(self, now: float) -> bool:
        """Whether a sweep would surely find nothing; cheap."""
        return False

    @operation
    async def _scan_for_unhealthy_rollouts(self, limit: int) -> int:
        """Give up overdue attempts; returns how many rollouts were looked at."""
        now = self._now()
        if self._nothing_due(now):
            return 0

        async def sweep(c: CollectionsT) -> int:
            pairs, seen = await self._watched_rollouts(c, now, limit)
            plan = Plan(now)
            for rollout, attempt in pairs:
                status = rules.overdue(rollout, attempt, now)
                if status is None:
                    plan.touched.append((rollout, attempt))
                else:
                    plan.give_up(rollout, attempt, status)
            await self._carry_out(c, plan)
            self._looked_after()
            return seen

        return await self._write_section(sweep)


def conditions(*fields: tuple[str, str, Any]) -> dict[str, Any]:
    """A filter of (field, operator, operand), where a ``None`` operand is no condition."""
    result: dict[str, Any] = {}
    for field, operator, operand in fields:
        if operand is not None:
            result.setdefault(field, {})[operator] = operand
    return result


def sort_options(name: str | None, order: Any) -> Any:
    """Sort options, or ``None`` for insertion order."""
    return {"name": name, "order": order} if name else None


def unset_left_out(**values: Any) -> dict[str, Any]:
    """The arguments that were given."""
    return {name: value for name, value in values.items() if not isinstance(value, Unset)}
