"""Attempts."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from agl.errors import StoreError
from agl.store.base import LightningStore
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.common import check_page, given, page_of
from agl.store.rest.service import Service
from agl.store.rest.wire import (
    API_V1_AGL_PREFIX,
    AttemptUpdateFailure,
    AttemptUpdateResult,
    QueryAttemptsRequest,
    StartAttemptRequest,
    UpdateAttemptRequest,
    UpdateManyAttemptsRequest,
    status_of,
)
from agl.types import Attempt, AttemptedRollout, PaginatedResult


class AttemptRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        root = f"{API_V1_AGL_PREFIX}/rollouts/{{rollout_id}}/attempts"
        one = f"{root}/{{attempt_id}}"
        return [
            WireRoute(
                "POST",
                root,
                self.start_attempt,
                status=201,
                errors=(404,),
                replays=self._service.replays,
            ),
            WireRoute("GET", root, self.query_attempts),
            WireRoute("POST", f"{root}/search", self.search_attempts),
            WireRoute("GET", f"{root}/latest", self.get_latest_attempt),
            WireRoute("POST", one, self.update_attempt, errors=(404,)),
            WireRoute(
                "POST",
                f"{API_V1_AGL_PREFIX}/attempts/batch",
                self.update_many_attempts,
                errors=(413,),
            ),
        ]

    async def start_attempt(
        self, rollout_id: str, request: StartAttemptRequest | None = None
    ) -> AttemptedRollout:
        """Start one more attempt at a rollout."""
        worker_id = request.worker_id if request is not None else None
        return await self._store.start_attempt(rollout_id, worker_id=worker_id)

    async def query_attempts(
        self, rollout_id: str, query: Annotated[QueryAttemptsRequest, Query()]
    ) -> PaginatedResult[Attempt]:
        """A page of the rollout's attempts."""
        return await self.search_attempts(rollout_id, query)

    async def search_attempts(
        self, rollout_id: str, request: QueryAttemptsRequest
    ) -> PaginatedResult[Attempt]:
        """A page of the rollout's attempts; the same as the GET form."""
        check_page(request, Attempt)
        return page_of(await self._store.query_attempts(rollout_id, **dict(request)))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The attempt with the highest sequence id, or null."""
        return await self._store.get_latest_attempt(rollout_id)

    async def update_attempt(
        self, rollout_id: str, attempt_id: str, request: UpdateAttemptRequest
    ) -> Attempt:
        """Write the fields present in the body; ``latest`` names the latest attempt."""
        changes = given(request, never_null=UpdateAttemptRequest.model_fields)
        return await self._store.update_attempt(rollout_id, attempt_id, **changes)

    async def update_many_attempts(
        self, request: UpdateManyAttemptsRequest
    ) -> list[AttemptUpdateResult]:
        """Update attempts one after the other; a failure is told and does not stop the others."""
        self._service.limits.check_batch(request.updates, "updates")
        results = await self._store.update_many_attempts(request.updates)
        return [_result(result) for result in results]


def _result(result: Attempt | StoreError) -> AttemptUpdateResult:
    if isinstance(result, Attempt):
        return AttemptUpdateResult(attempt=result)
    failure = AttemptUpdateFailure(
        status=status_of(result), detail=str(result), error_type=type(result).__name__
    )
    return AttemptUpdateResult(error=failure)
