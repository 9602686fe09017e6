"""Health, statistics and the metrics of this server."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from agl import __version__
from agl.store.base import LightningStore
from agl.store.rest.errors import HttpError
from agl.store.rest.manual import render
from agl.store.rest.route import WireRoute
from agl.store.rest.service import Service
from agl.store.rest.wire import API_V1_AGL_PREFIX, API_V1_PREFIX, FEATURES, HEALTH_PATH, Health
from agl.types import StoreState
from agl.utils.metrics import get_prometheus_registry


class AdminRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        return [
            WireRoute("GET", HEALTH_PATH, self.health),
            WireRoute("GET", f"{API_V1_AGL_PREFIX}/statistics", self.statistics),
            WireRoute("GET", f"{API_V1_AGL_PREFIX}/state", self.state, errors=(501,)),
            WireRoute(
                "GET",
                f"{API_V1_AGL_PREFIX}/openapi.json",
                self.openapi,
                response_class=JSONResponse,
            ),
            *(
                WireRoute(
                    "GET",
                    path,
                    self.manual,
                    response_class=HTMLResponse,
                    include_in_schema=False,
                )
                for path in ("/docs", "/redoc")
            ),
        ]

    async def health(self) -> Health:
        """Whether the server answers, and which one it is; open without a token."""
        return Health(
            instance_id=self._service.instance_id, version=__version__, features=list(FEATURES)
        )

    async def openapi(self, request: Request) -> Response:
        """This document, at a path that a proxy for ``/v1/agl`` lets through."""
        return JSONResponse(request.app.openapi())

    async def manual(self, request: Request) -> Response:
        """The same for people."""
        return HTMLResponse(render(request.app.openapi()))

    async def statistics(self) -> dict[str, Any]:
        """Totals of the store."""
        return dict(await self._store.statistics())

    async def state(self) -> StoreState:
        """Figures to watch of the whole store: statuses, ages, what is missing.

        Cheap enough to be asked every few seconds, however much is stored.
        """
        try:
            return await self._store.state()
        except NotImplementedError as error:
            raise HttpError(501, str(error)) from None


def prometheus_routes() -> list[WireRoute]:
    """The metrics in Prometheus' text format, with and without the slash at the end."""
    return [
        WireRoute(
            "GET",
            f"{API_V1_PREFIX}/prometheus{end}",
            _scrape,
            response_class=Response,
            include_in_schema=end == "/",
        )
        for end in ("/", "")
    ]


async def _scrape(request: Request) -> Response:
    """The metrics of all server processes in Prometheus' text format."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    registry = await asyncio.to_thread(get_prometheus_registry)
    text = await asyncio.to_thread(encode, registry)
    return Response(text, headers={"content-type": content_type})
