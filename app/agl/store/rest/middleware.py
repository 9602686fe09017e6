"""Pure-ASGI layers of the server, outermost first: observe, (CORS,) errors, (guards,) dispatch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agl.store.rest.errors import ClientGoneError, HttpError, reply_to
from agl.store.rest.limits import stopping
from agl.store.rest.route import (
    MATCH_KEY,
    STATUS_KEY,
    Match,
    RouteIndex,
    WireRoute,
    match_of,
    send_reply,
)
from agl.store.rest.wire import API_V1_AGL_PREFIX, TRACES_PATH
from agl.utils.metrics import MetricsBackend, Record
from agl.utils.metrics_catalogue import HTTP_METHODS, HTTP_PATHS, register

logger = logging.getLogger("agl.store.server")

CLIENT_GONE = 499
UNMATCHED = "unmatched"

_NOT_STARTED = 0
_LATENCY = "agl.http.latency"
_WAITS = "agl.http.waits"
_METHODS = frozenset(HTTP_METHODS.values - {"OTHER"})
_FAILURES = (401, 413, 422, 429, 499, 500, 503)
"""Statuses that any route may answer; their counters are there from the start."""

_FAILURES_BY_ID = (404, 409)
"""The same for routes that name something by its id."""

_TIMED_PREFIXES = (API_V1_AGL_PREFIX, TRACES_PATH)


class HttpMetrics:
    """The HTTP metrics; every route's success is there from the start, at zero.

    Requests that wait on purpose are counted with the others, but timed in a metric of their own.
    """

    def __init__(self, tracker: MetricsBackend, routes: Iterable[WireRoute]) -> None:
        self._tracker = tracker
        self._others: dict[tuple[str, str, int], Record] = {}
        """What takes the seconds of requests that no route serves."""

        register(tracker, "agl.http.total", _LATENCY, _WAITS)
        for route in routes:
            HTTP_PATHS.add((route.path,))
            self._touch(route)

    def _touch(self, route: WireRoute) -> None:
        success = _labels(route.path, route.method, route.success_status)
        self._tracker.touch_histogram(_duration_metric(route), success)
        by_id = _FAILURES_BY_ID if "{" in route.path else ()
        for status in (route.success_status, *_FAILURES, *by_id):
            labels = _labels(route.path, route.method, status)
            self._tracker.touch_counter("agl.http.total", labels)

    def record(self, match: Match | None, method: str, status: int, seconds: float) -> None:
        """Count one request; paths nobody declared share one label value."""
        route = None if match is None else match.route
        if route is not None:
            timer = route.timers.get(status)
            if timer is None:
                timer = route.timers[status] = self._timer(
                    route.path, method, status, _duration_metric(route)
                )
        else:
            timer = self._other(UNMATCHED if match is None else match.template, method, status)
        timer(seconds)

    def _other(self, path: str, method: str, status: int) -> Record:
        if method not in _METHODS:
            method = "OTHER"
        timer = self._others.get((path, method, status))
        if timer is None:
            timer = self._timer(path, method, status, _LATENCY)
            self._others[path, method, status] = timer
        return timer

    def _timer(self, path: str, method: str, status: int, metric: str) -> Record:
        return self._tracker.timer("agl.http.total", metric, _labels(path, method, status))


def _duration_metric(route: WireRoute) -> str:
    return _LATENCY if route.waiting is None else _WAITS


def _labels(path: str, method: str, status: int) -> dict[str, str]:
    return {"path": path, "method": method, "status": str(status)}


class ObserveMiddleware:
    """Finds the route, times the request, counts it and logs it at DEBUG."""

    def __init__(self, app: ASGIApp, index: RouteIndex, tracker: MetricsBackend | None) -> None:
        self._app = app
        self._index = index
        self._metrics = HttpMetrics(tracker, index.routes) if tracker is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        match = scope[MATCH_KEY] = self._index.resolve(scope)
        scope[STATUS_KEY] = _NOT_STARTED
        if match is None or match.route is None or match.route.takes_request:
            send = _noting_status(scope, send)  # others send by `send_reply`, which does it
        began = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        finally:
            seconds = time.perf_counter() - began
            status: int = scope[STATUS_KEY] or 500
            if self._metrics is not None:
                self._metrics.record(match, scope["method"], status, seconds)
            if logger.isEnabledFor(logging.DEBUG):
                _log(scope, status, seconds)


def _noting_status(scope: Scope, send: Send) -> Send:
    def note_status(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            scope[STATUS_KEY] = message["status"]
        return send(message)

    return note_status


def _log(scope: Scope, status: int, seconds: float) -> None:
    path: str = scope["path"]
    if not path.startswith(_TIMED_PREFIXES):
        return
    host, port = scope.get("client") or ("-", 0)
    logger.debug(
        '%s:%s - "%s %s HTTP/%s" %d in %.2f ms',
        host,
        port,
        scope["method"],
        path,
        scope.get("http_version", "1.1"),
        status,
        seconds * 1000,
    )


class ErrorMiddleware:
    """Turns whatever a route raises into its answer; nothing is raised past it."""

    def __init__(self, app: ASGIApp, *, debug_errors: bool = False) -> None:
        self._app = app
        self._debug_errors = debug_errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            scope[STATUS_KEY] = CLIENT_GONE
        except asyncio.CancelledError:
            # The server cancels what is left when its time to stop is up.
            if scope[STATUS_KEY] != _NOT_STARTED:
                raise
            await send_reply(scope, send, reply_to(stopping(), debug_errors=self._debug_errors))
        except Exception as error:
            if scope[STATUS_KEY] != _NOT_STARTED:
                raise
            await send_reply(scope, send, reply_to(error, debug_errors=self._debug_errors))


class DispatchMiddleware:
    """Hands the request to its route; what is not in the index goes on to FastAPI's router."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = match_of(scope) if scope["type"] == "http" else None
        if match is None:
            await self._app(scope, receive, send)
        elif match.route is None:
            allow = ((b"allow", match.allow.encode()),)
            raise HttpError(405, "Method Not Allowed", headers=allow)
        else:
            scope["path_params"] = match.path_params
            await match.route.app(scope, receive, send)
