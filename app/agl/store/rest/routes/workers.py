"""Workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from agl.store.base import LightningStore
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.common import check_new_id, check_page, given, page_of
from agl.store.rest.service import Service
from agl.store.rest.wire import API_V1_AGL_PREFIX, QueryWorkersRequest, UpdateWorkerRequest
from agl.types import PaginatedResult, Worker


class WorkerRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        root = f"{API_V1_AGL_PREFIX}/workers"
        one = f"{root}/{{worker_id}}"
        return [
            WireRoute("GET", root, self.query_workers),
            WireRoute("POST", f"{root}/search", self.search_workers),
            WireRoute("GET", one, self.get_worker_by_id),
            WireRoute("POST", one, self.update_worker),
        ]

    async def query_workers(
        self, query: Annotated[QueryWorkersRequest, Query()]
    ) -> PaginatedResult[Worker]:
        """A page of workers."""
        return await self.search_workers(query)

    async def search_workers(self, request: QueryWorkersRequest) -> PaginatedResult[Worker]:
        """A page of workers; the same as the GET form."""
        check_page(request, Worker)
        return page_of(await self._store.query_workers(**dict(request)))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """The worker, or null."""
        return await self._store.get_worker_by_id(worker_id)

    async def update_worker(
        self, worker_id: str, request: UpdateWorkerRequest | None = None
    ) -> Worker:
        """Note a heartbeat of the worker, with its statistics if given."""
        check_new_id(worker_id=worker_id)
        changes = given(request or UpdateWorkerRequest(), never_null=("heartbeat_stats",))
        return await self._store.update_worker(worker_id, **changes)
