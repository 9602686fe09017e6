"""The HTTP application around a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

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
    """The application, and what it shares with the server that runs it."""

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(**options)
        self.service = service

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
) -> StoreApp:
    """Serve ``store`` under ``/v1/agl`` and take its spans over OTLP at ``/v1/traces``.

    Args:
        store: Must be safe to call from several tasks of one event loop.
        cors_allow_origins: Origins a browser may call from; any ``*`` means all.
        tracker: Where requests are counted; ``/v1/prometheus/`` exists when it has Prometheus.
        api_token: Demanded on every path but health, as Bearer or as Basic password.
        debug_errors: Put tracebacks into error answers; they are in the log in any case.
        limits: How much the server takes on.
    """
    index = RouteIndex()
    service = Service(limits or ServerLimits())
    app = StoreApp(
        service,
        title="LightningStore Server",
        version=__version__,
        redirect_slashes=False,
        lifespan=_lifespan(store, service),
        middleware=_middleware(
            index, service, cors_allow_origins, tracker, api_token, debug_errors
        ),
    )
    routes = store_routes(store, service)
    if tracker is not None and tracker.has_prometheus():
        routes += prometheus_routes()
    for route in routes:
        index.add(route)
        app.router.routes.append(route)
    return app


def _lifespan(
    store: LightningStore, service: Service
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        service.waiting.open()
        if not isinstance(store, WatchedStore):
            yield
            return
        watching = asyncio.create_task(store.watchdog.run(WATCHDOG_SECONDS))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    return lifespan


def _middleware(
    index: RouteIndex,
    service: Service,
    cors_allow_origins: Sequence[str] | str | None,
    tracker: MetricsBackend | None,
    api_token: str | None,
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
    if api_token is not None:
        stack.append(Middleware(AccessMiddleware, api_token=api_token, tracker=tracker))
    stack.append(Middleware(RoomMiddleware, service=service))
    stack.append(Middleware(DispatchMiddleware))
    return stack


def normalize_origins(origins: Sequence[str] | str | None) -> list[str]:
    """A clean list: blanks dropped, any ``*`` means exactly ``["*"]``."""
    given = [origins] if isinstance(origins, str) else list(origins or ())
    cleaned = [origin.strip() for origin in given if origin.strip()]
    return ["*"] if "*" in cleaned else cleaned
