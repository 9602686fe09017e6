"""Rollouts and the queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from agl.errors import RolloutNotFoundError
from agl.store.base import LightningStore
from agl.store.rest.limits import LONGEST_WAIT_SECONDS
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.common import check_page, given, page_of
from agl.store.rest.service import Service
from agl.store.rest.wire import (
    API_V1_AGL_PREFIX,
    DequeueManyRolloutsRequest,
    EnqueueManyRolloutsRequest,
    QueryRolloutsRequest,
    RolloutRequest,
    UpdateRolloutRequest,
    WaitForRolloutsRequest,
)
from agl.types import AttemptedRollout, PaginatedResult, Rollout

AnyRollout = AttemptedRollout | Rollout


class RolloutRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        root = API_V1_AGL_PREFIX
        queue = f"{root}/queues/rollouts"
        one = f"{root}/rollouts/{{rollout_id}}"
        waiting, once = self._service.waiting, self._service.replays
        enqueue, dequeue = f"{queue}/enqueue", f"{queue}/dequeue"
        return [
            WireRoute(
                "POST", enqueue, self.enqueue_rollouts, status=201, errors=(413,), replays=once
            ),
            WireRoute("POST", dequeue, self.dequeue_rollouts, replays=once),
            WireRoute("POST", f"{root}/rollouts", self.start_rollout, status=201, replays=once),
            WireRoute("GET", f"{root}/rollouts", self.query_rollouts),
            WireRoute("POST", f"{root}/rollouts/search", self.search_rollouts),
            WireRoute("GET", one, self.get_rollout_by_id, errors=(404,)),
            WireRoute("POST", one, self.update_rollout, errors=(404,)),
            WireRoute("POST", f"{root}/waits/rollouts", self.wait_for_rollouts, waiting=waiting),
        ]

    async def enqueue_rollouts(self, request: EnqueueManyRolloutsRequest) -> list[Rollout]:
        """Create rollouts at the end of the queue."""
        wanted = request.rollouts
        self._service.limits.check_batch(wanted, "rollouts")
        if not wanted:
            return []
        if len(wanted) > 1:
            return list(await self._store.enqueue_many_rollouts(wanted))
        one = wanted[0]
        rollout = await self._store.enqueue_rollout(
            input=one.input,
            mode=one.mode,
            resources_id=one.resources_id,
            config=one.config,
            metadata=one.metadata,
        )
        return [rollout]

    async def dequeue_rollouts(
        self, request: DequeueManyRolloutsRequest | None = None
    ) -> list[AttemptedRollout]:
        """Claim the oldest queued rollouts, each with a new attempt."""
        asked = request or DequeueManyRolloutsRequest()
        if asked.limit == 1:
            claimed = await self._store.dequeue_rollout(worker_id=asked.worker_id)
            return [claimed] if claimed is not None else []
        return list(
            await self._store.dequeue_many_rollouts(limit=asked.limit, worker_id=asked.worker_id)
        )

    async def start_rollout(self, request: RolloutRequest) -> AttemptedRollout:
        """Create a rollout with its first attempt under way, past the queue."""
        return await self._store.start_rollout(
            input=request.input,
            mode=request.mode,
            resources_id=request.resources_id,
            config=request.config,
            metadata=request.metadata,
            worker_id=request.worker_id,
        )

    async def query_rollouts(
        self, query: Annotated[QueryRolloutsRequest, Query()]
    ) -> PaginatedResult[AnyRollout]:
        """A page of rollouts, each with its latest attempt where it has one."""
        return await self.search_rollouts(query)

    async def search_rollouts(self, request: QueryRolloutsRequest) -> PaginatedResult[AnyRollout]:
        """A page of rollouts; the same as the GET form."""
        check_page(request, Rollout)
        return page_of(await self._store.query_rollouts(**dict(request)))

    async def get_rollout_by_id(self, rollout_id: str) -> AnyRollout:
        """The rollout, with its latest attempt where it has one."""
        rollout = await self._store.get_rollout_by_id(rollout_id)
        if rollout is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        return rollout

    async def update_rollout(self, rollout_id: str, request: UpdateRolloutRequest) -> Rollout:
        """Write the fields present in the body."""
        changes = given(request, never_null=("status", "config"))
        return without_attempt(await self._store.update_rollout(rollout_id, **changes))

    async def wait_for_rollouts(self, request: WaitForRolloutsRequest) -> list[Rollout]:
        """Wait until all are finished or the timeout has passed; answers the finished ones.

        A request waits for 60 seconds at most, whatever its timeout: ask again for longer.
        """
        self._service.limits.check_batch(request.rollout_ids, "rollout ids")
        asked = LONGEST_WAIT_SECONDS if request.timeout is None else request.timeout
        finished = await self._store.wait_for_rollouts(
            rollout_ids=request.rollout_ids, timeout=min(asked, LONGEST_WAIT_SECONDS)
        )
        return [without_attempt(rollout) for rollout in finished]


def without_attempt(rollout: Rollout) -> Rollout:
    """The rollout alone, whatever the store attached to it."""
    if type(rollout) is Rollout:
        return rollout
    return Rollout.model_construct(
        **{name: getattr(rollout, name) for name in Rollout.model_fields}
    )
