"""Resources."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from agl.store.base import LightningStore
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.common import check_new_id, check_page, page_of
from agl.store.rest.service import Service
from agl.store.rest.wire import API_V1_AGL_PREFIX, QueryResourcesRequest
from agl.types import NamedResources, PaginatedResult, ResourcesUpdate
from agl.types.first_fault import FirstFault

GivenResources = Annotated[NamedResources, FirstFault()]


class ResourceRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        root = f"{API_V1_AGL_PREFIX}/resources"
        one = f"{root}/{{resources_id}}"
        return [
            WireRoute("GET", root, self.query_resources),
            WireRoute("POST", root, self.add_resources, status=201, replays=self._service.replays),
            WireRoute("GET", f"{root}/latest", self.get_latest_resources),
            WireRoute("POST", one, self.update_resources, replays=self._service.replays),
            WireRoute("GET", one, self.get_resources_by_id),
        ]

    async def query_resources(
        self, query: Annotated[QueryResourcesRequest, Query()]
    ) -> PaginatedResult[ResourcesUpdate]:
        """A page of resources; both filters must match."""
        check_page(query, ResourcesUpdate)
        return page_of(await self._store.query_resources(**dict(query)))

    async def add_resources(self, resources: GivenResources) -> ResourcesUpdate:
        """Store new resources as version 1; they become the latest."""
        return await self._store.add_resources(resources)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The resources added or updated last, or null."""
        return await self._store.get_latest_resources()

    async def update_resources(
        self, resources_id: str, resources: GivenResources
    ) -> ResourcesUpdate:
        """Replace resources and raise their version, or create them."""
        check_new_id(resources_id=resources_id)
        return await self._store.update_resources(resources_id, resources)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources, or null."""
        return await self._store.get_resources_by_id(resources_id)
