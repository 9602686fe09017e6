"""Operations that read rollouts and attempts, and all operations on resources and workers."""

from __future__ import annotations

import asyncio
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

from agl.errors import InvalidRequestError
from agl.store._core import CollectionsT, StoreCore, conditions, sort_options
from agl.store.base import UNSET, FilterLogic, SortOrder, Unset
from agl.store.collection.base import LightningCollections
from agl.store.collection.query import page
from agl.store.collection.scan import SLICE
from agl.store.operations import operation
from agl.types import (
    FINISHED_STATUSES,
    Attempt,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Worker,
    WorkerStatus,
)
from agl.utils.request_ids import draw_id


class QueryOperations(StoreCore[CollectionsT]):
    """Reading rollouts and attempts, and waiting for the end of rollouts."""

    @operation
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        await self.watchdog.look_in_call()
        status_in = _renamed("status", "status_in", status, status_in)
        rollout_id_in = _renamed("rollout_ids", "rollout_id_in", rollout_ids, rollout_id_in)
        filters = conditions(
            ("status", "within", status_in),
            ("rollout_id", "within", rollout_id_in),
            ("rollout_id", "contains", rollout_id_contains),
        )
        filters["_aggregate"] = filter_logic
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("attempts", "rollouts")
        ) as c:
            found = await c.rollouts.query(
                filters, sort_options(sort_by, sort_order), limit, offset
            )
            items: list[Rollout] = []
            for start in range(0, len(found.items), SLICE):
                if start:
                    await asyncio.sleep(0)
                items += await self._with_latest(c, found.items[start : start + SLICE])
        return page(items, limit, offset, found.total)

    async def _with_latest(
        self, c: LightningCollections, rollouts: Sequence[Rollout]
    ) -> list[Rollout]:
        """Rollouts as a caller may have them, each with its latest attempt if there is one."""
        latest = await self._latest_attempts(c, [rollout.rollout_id for rollout in rollouts])
        return [self._given_pair(one, latest.get(one.rollout_id)) for one in rollouts]

    @operation
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        await self.watchdog.look_in_call()
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("attempts", "rollouts")
        ) as c:
            rollout = await c.rollouts.find(rollout_id)
            if rollout is None:
                return None
            latest = await self._latest_attempt(c, rollout_id)
        return self._given_pair(rollout, latest)

    @operation
    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        await self.watchdog.look_in_call()
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("attempts",)
        ) as c:
            found = await c.attempts.query(
                {"rollout_id": {"exact": rollout_id}},
                sort_options(sort_by, sort_order),
                limit,
                offset,
            )
        return page(self._given_all(found.items), limit, offset, found.total)

    @operation
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        await self.watchdog.look_in_call()
        attempt = await self._latest_attempt(self.collections, rollout_id)
        return None if attempt is None else self._given(attempt)

    @operation
    async def wait_for_rollout(
        self, rollout_id: str, timeout: float | None = None
    ) -> Rollout | None:
        """Wait until one rollout is finished; ``None`` if it is unknown or time runs out."""
        await self.watchdog.look_in_call()
        finished = await self._wait([rollout_id], timeout)
        return finished[0] if finished else None

    @operation
    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        await self.watchdog.look_in_call()
        return await self._wait(rollout_ids, timeout)

    async def _wait(self, rollout_ids: Sequence[str], timeout: float | None) -> list[Rollout]:
        wanted = list(dict.fromkeys(rollout_ids))
        if timeout is not None and math.isnan(timeout):
            raise InvalidRequestError("timeout must be a number of seconds, not NaN")
        if not wanted:
            return []
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._watch() as watch:
            pending = wanted
            while True:
                watch.arm(pending)
                known = await self._rollouts_by_id(self.collections, wanted)
                pending = [key for key, r in known.items() if r.status not in FINISHED_STATUSES]
                left = None if give_up is None else give_up - time.monotonic()
                if not pending or (left is not None and left <= 0):
                    return self._finished(known, rollout_ids)
                watch.narrow(pending)
                await watch.sleep(left)

    def _finished(self, known: dict[str, Rollout], rollout_ids: Sequence[str]) -> list[Rollout]:
        return [
            self._given(known[key])
            for key in rollout_ids
            if key in known and known[key].status in FINISHED_STATUSES
        ]


class RecordOperations(StoreCore[CollectionsT]):
    """Resources and workers."""

    @operation
    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        filters = conditions(
            ("resources_id", "exact", resources_id),
            ("resources_id", "contains", resources_id_contains),
        )
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("resources",)
        ) as c:
            found = await c.resources.query(
                filters, sort_options(sort_by, sort_order), limit, offset
            )
        return page(self._given_all(found.items), limit, offset, found.total)

    @operation
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return self._given(await self._put_resources(f"rs-{draw_id(12)}", resources))

    @operation
    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        await self.watchdog.look_in_call()
        return self._given(await self._put_resources(resources_id, resources))

    async def _put_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        owned = self._taken(resources)

        async def work(c: CollectionsT) -> ResourcesUpdate:
            now = self._now()
            stored = await c.resources.find(resources_id)
            update = ResourcesUpdate(
                resources_id=resources_id,
                create_time=now if stored is None else stored.create_time,
                update_time=now,
                version=1 if stored is None else stored.version + 1,
                resources=owned,
            )
            await self._store_resources(c, update, stored)
            self._resources_written(update)
            return update

        return await self._write_section(work, ("resources",))

    async def _store_resources(
        self, c: CollectionsT, update: ResourcesUpdate, stored: ResourcesUpdate | None
    ) -> None:
        """Write resources; ``stored`` is what they replace."""
        await c.resources.upsert([update])

    def _resources_written(self, update: ResourcesUpdate) -> None:
        """Called inside the section, after resources were written; backends add to it."""

    @operation
    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        found = await self.collections.resources.find(resources_id)
        return None if found is None else self._given(found)

    @operation
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        found = await self._latest_resources(self.collections)
        return None if found is None else self._given(found)

    @operation
    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        await self.watchdog.look_in_call()
        filters = conditions(
            ("status", "within", status_in),
            ("worker_id", "contains", worker_id_contains),
        )
        filters["_aggregate"] = filter_logic
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("workers",)
        ) as c:
            found = await c.workers.query(filters, sort_options(sort_by, sort_order), limit, offset)
        return page(self._given_all(found.items), limit, offset, found.total)

    @operation
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        found = await self.collections.workers.find(worker_id)
        return None if found is None else self._given(found)

    @operation
    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        fields = ["last_heartbeat_time"]
        worker = Worker(worker_id=worker_id, last_heartbeat_time=self._now())
        if not isinstance(heartbeat_stats, Unset):
            fields.append("heartbeat_stats")
            worker = self._validated(worker, {"heartbeat_stats": heartbeat_stats})

        async def work(c: CollectionsT) -> Worker:
            (stored,) = await c.workers.upsert([worker], fields)
            return stored

        return self._given(await self._write_section(work, ("workers",)))


def _renamed(old_name: str, new_name: str, old: Any, new: Any) -> Any:
    """The value of an argument that has got a new name."""
    if old is None:
        return new
    warnings.warn(
        f"query_rollouts({old_name}=...) is deprecated, use {new_name}",
        DeprecationWarning,
        stacklevel=4,
    )
    return old if new is None else new
