"""Resources and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from agl.store.base import UNSET, FilterLogic, SortOrder, Unset
from agl.store.rest.calls.requests import ClientCore, given, listed, paging, part
from agl.types import NamedResources, PaginatedResult, ResourcesUpdate, Worker, WorkerStatus

_RESOURCES = TypeAdapter(ResourcesUpdate)
_RESOURCES_OR_NONE = TypeAdapter(ResourcesUpdate | None)
_RESOURCES_PAGE = TypeAdapter(PaginatedResult[ResourcesUpdate])
_WORKER = TypeAdapter(Worker)
_WORKER_OR_NONE = TypeAdapter(Worker | None)
_WORKER_PAGE = TypeAdapter(PaginatedResult[Worker])


class RecordCalls(ClientCore):
    """add, query, update."""

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
        asked = {
            "resources_id": resources_id,
            "resources_id_contains": resources_id_contains,
            **paging(sort_by, sort_order, limit, offset),
        }
        params = [(key, str(value)) for key, value in asked.items() if value is not None]
        return await self._get("/resources", _RESOURCES_PAGE, params)

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return await self._post("/resources", _RESOURCES, resources, once=True)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        path = f"/resources/{part(resources_id)}"
        return await self._post(path, _RESOURCES, resources, once=True)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources; ``None`` also (logged) when the server cannot be reached."""
        return await self._get_or_none(f"/resources/{part(resources_id)}", _RESOURCES_OR_NONE)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The latest resources; ``None`` also (logged) when the server cannot be reached."""
        return await self._get_or_none("/resources/latest", _RESOURCES_OR_NONE)

    # Workers

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
        body = {
            "status_in": listed(status_in),
            "worker_id_contains": worker_id_contains,
            "filter_logic": filter_logic,
            **paging(sort_by, sort_order, limit, offset),
        }
        return await self._post("/workers/search", _WORKER_PAGE, body)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self._get(f"/workers/{part(worker_id)}", _WORKER_OR_NONE)

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = given(heartbeat_stats=heartbeat_stats)
        return await self._post(f"/workers/{part(worker_id)}", _WORKER, changes or UNSET)
