"""Layers that decide whether a request is let in: the API token, the instance, the room left."""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agl.errors import WrongInstanceError
from agl.store.rest.body import header
from agl.store.rest.errors import HttpError
from agl.store.rest.limits import overloaded
from agl.store.rest.route import match_of
from agl.store.rest.service import Service
from agl.store.rest.wire import HEALTH_PATH, INSTANCE_HEADER
from agl.utils.metrics import MetricsBackend
from agl.utils.metrics_catalogue import REFUSALS, register

_REFUSED = "agl.http.refused.total"
_INSTANCE = INSTANCE_HEADER.lower().encode()


WRONG_TOKENS = 100
"""Wrong tokens that an address may send at once; one a second more."""


class Throttle:
    """Counts wrong tokens by address: so many at once, then so many a second.

    Args:
        burst: Wrong tokens an address may send at once.
        per_second: How many more each second.
        addresses: How many addresses are remembered; the one seen longest ago is forgotten.
        clock: Seconds.
    """

    def __init__(
        self,
        burst: float = WRONG_TOKENS,
        per_second: float = 1,
        addresses: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._addresses = addresses
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def strike(self, address: str) -> int:
        """Note a wrong token; returns the seconds to stay away, 0 while that is not needed."""
        now = self._clock()
        left, since = self._left.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        refused = left < 1
        self._left[address] = (left if refused else left - 1, now)
        if len(self._left) > self._addresses:
            self._left.popitem(last=False)
        return math.ceil((1 - left) / self._per_second) if refused else 0


class AccessMiddleware:
    """Lets in who shows the API token, as Bearer or as Basic password; health is open.

    Wrong tokens are counted, and answered 429 when one address sends many; who shows the right one
    is let in all the same, since all runners may share an address. Each of several processes counts
    for itself, up to its share: together they let no more through than one would.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_token: str,
        tracker: MetricsBackend | None = None,
        processes: int = 1,
    ) -> None:
        self._app = app
        self._token = api_token.encode()
        self._throttle = Throttle(
            burst=max(1.0, WRONG_TOKENS / processes), per_second=1 / processes
        )
        self._tracker = tracker
        if tracker is not None:
            register(tracker, _REFUSED)
            for reason in sorted(REFUSALS.values):
                tracker.touch_counter(_REFUSED, {"reason": reason})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != HEALTH_PATH:
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        authorization = header(scope, b"authorization")
        if authorization is None:
            self._count("missing")
            raise _unauthorized("No API token given")
        if hmac.compare_digest(presented_token(authorization), self._token):
            return
        client: tuple[str, int] | None = scope.get("client")
        seconds = self._throttle.strike(client[0] if client else "")
        if seconds:
            self._count("throttled")
            raise HttpError(
                429,
                "Too many wrong API tokens from this address; the right one is let in at any time",
                headers=((b"retry-after", str(seconds).encode()),),
            )
        self._count("wrong")
        raise _unauthorized("Wrong API token")

    def _count(self, reason: str) -> None:
        if self._tracker is not None:
            self._tracker.inc(_REFUSED, {"reason": reason})


def presented_token(authorization: str) -> bytes:
    """The token in an Authorization header; empty when it holds none."""
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value.encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        _, _, password = base64.b64decode(value, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b""
    return password


def _unauthorized(problem: str) -> HttpError:
    return HttpError(
        401,
        f"{problem}; send 'Authorization: Bearer TOKEN', or put it into the URL as "
        "http://agl:TOKEN@host:port",
        headers=((b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="agl"')),
    )


class RoomMiddleware:
    """Refuses what is meant for another instance, and what there is no room for."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app = app
        self._limit = service.limits.max_requests
        self._instance_id = service.instance_id
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = match_of(scope) if scope["type"] == "http" else None
        if match is None or match.route is None or match.route.path == HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        pinned = header(scope, _INSTANCE)
        if pinned is not None:
            send = self._confirmed(pinned, send)
        if match.route.waiting is not None:
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._limit:
            raise overloaded(f"{self._limit} requests are under way already (--max-requests)")
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1

    def _confirmed(self, pinned: str, send: Send) -> Send:
        """Check which instance the client wants, and tell it that this is the one."""
        if pinned != self._instance_id:
            raise WrongInstanceError(
                f"This is the store {self._instance_id}, not {pinned}: it was started again, or "
                "another one has taken its address"
            )
        confirmation = (_INSTANCE, pinned.encode("latin-1"))

        async def confirm(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], confirmation]
            await send(message)

        return confirm
