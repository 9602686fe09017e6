"""The HTTP application around a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol, runtime_checkable

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from agl import __version__
from agl.store.base import LightningStore
from agl.store.rest.guard import AccessMiddleware, RoomMiddleware
from agl.store.rest.limits import ServerLimits
from agl.store.rest.middleware import DispatchMiddleware, ErrorMiddleware, ObserveMiddleware
from agl.store.rest.openapi import complete
from agl.store.rest.route import RouteIndex, WireRoute
from agl.store.rest.routes import prometheus_routes, store_routes
from agl.store.rest.service import Service
from agl.utils.metrics import MetricsBackend

WATCHDOG_SECONDS = 1.0


class Watchdog(Protocol):
    """Looks after a store between calls."""

    async def run(self, interval: float) -> None: ...


@runtime_checkable
class WatchedStore(Protocol):
    """A store with a watchdog, which the server runs as long as it serves."""

    watchdog: Watchdog


class StoreApp(FastAPI):
    """A FastAPI application behind layers of ours, and what it shares with the server it runs in.

    The layers stand in front of FastAPI's own, which only see what the layers pass on: the store's
    routes are documented by FastAPI, but served without it.
    """

    def __init__(self, service: Service, layers: Sequence[Middleware], **options: Any) -> None:
        super().__init__(**options)
        self.service = service
        front: ASGIApp = super().__call__
        for layer in reversed(layers):
            front = layer.cls(front, *layer.args, **layer.kwargs)
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self._front(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            routes = [route for route in self.routes if isinstance(route, WireRoute)]
            keyed = frozenset((r.method, r.path) for r in routes if r.replays is not None)
            self.openapi_schema = complete(super().openapi(), keyed)
        return self.openapi_schema

    def about_to_stop(self) -> None:
        """Answer the requests that wait; to be called in the event loop that serves."""
        self.service.waiting.close()


def create_app(
    store: LightningStore,
    *,
    cors_allow_origins: Sequence[str] | str | None = None,
    tracker: MetricsBackend | None = None,
    api_token: str | None = None,
    debug_errors: bool = False,
    limits: ServerLimits | None = None,
    instance_id: str | None = None,
    processes: int = 1,
    while_serving: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> StoreApp:
    """Serve ``store`` under ``/v1/agl`` and take its spans over OTLP at ``/v1/traces``.

    Args:
        store: Must be safe to call from several tasks of one event loop.
        cors_allow_origins: Origins a browser may call from; any ``*`` means all.
        tracker: Where requests are counted; ``/v1/prometheus/`` exists when it has Prometheus.
        api_token: Demanded on every path but health, as Bearer or as Basic password.
        debug_errors: Put tracebacks into error answers; they are in the log in any case.
        limits: How much the server takes on.
        instance_id: Names the data in health answers: servers that share them share it; drawn anew
            when not given.
        processes: How many processes serve this application; limits that are there for all of them
            together are divided.
        while_serving: Entered in every process, in the event loop that serves, as long as it does.
    """
    service = Service(limits or ServerLimits())
    if instance_id is not None:
        service.instance_id = instance_id
    routes = store_routes(store, service)
    if tracker is not None and tracker.has_prometheus():
        routes += prometheus_routes()
    index = RouteIndex(routes)
    access = (
        None
        if api_token is None
        else Middleware(AccessMiddleware, api_token=api_token, tracker=tracker, processes=processes)
    )
    app = StoreApp(
        service,
        _layers(index, service, cors_allow_origins, tracker, access, debug_errors),
        title="LightningStore Server",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(store, service, tracker, while_serving or nullcontext),
    )
    app.router.routes.extend(index.routes)
    return app


def _lifespan(
    store: LightningStore,
    service: Service,
    tracker: MetricsBackend | None,
    while_serving: Callable[[], AbstractAsyncContextManager[None]],
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        service.waiting.open()
        watching: list[asyncio.Task[None]] = []
        if isinstance(store, WatchedStore):
            watching.append(asyncio.create_task(store.watchdog.run(WATCHDOG_SECONDS)))
        try:
            async with while_serving():
                yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            if tracker is not None:
                tracker.flush()

    return lifespan


def _layers(
    index: RouteIndex,
    service: Service,
    cors_allow_origins: Sequence[str] | str | None,
    tracker: MetricsBackend | None,
    access: Middleware | None,
    debug_errors: bool,
) -> list[Middleware]:
    stack = [Middleware(ObserveMiddleware, index=index, tracker=tracker)]
    if origins := normalize_origins(cors_allow_origins):
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                allow_credentials=True,
                expose_headers=["*"],
            )
        )
    stack.append(Middleware(ErrorMiddleware, debug_errors=debug_errors))
    if access is not None:
        stack.append(access)
    stack.append(Middleware(RoomMiddleware, service=service))
    stack.append(Middleware(DispatchMiddleware))
    return stack


def normalize_origins(origins: Sequence[str] | str | None) -> list[str]:
    """A clean list: blanks dropped, any ``*`` means exactly ``["*"]``."""
    given = [origins] if isinstance(origins, str) else list(origins or ())
    cleaned = [origin.strip() for origin in given if origin.strip()]
    return ["*"] if "*" in cleaned else cleaned
