"""The client's wire: sessions, retries, the health probe, and answers turned into exceptions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import ssl
import threading
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from agl.errors import WrongInstanceError
from agl.store.rest.wire import (
    HEALTH_PATH,
    IDEMPOTENCY_HEADER,
    INSTANCE_HEADER,
    RETRY_HEADER,
    error_from_answer,
)

logger = logging.getLogger("agl.store.client")

Params = Sequence[tuple[str, str]]

_RETRYABLE = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientConnectorError,
    aiohttp.ClientOSError,
    aiohttp.ClientPayloadError,
    asyncio.TimeoutError,
)


class Transport:
    """Requests to one server. Credentials in the address are sent, but never shown or logged.

    Args:
        address: ``http://host:port``, optionally with ``user:password@``.
        retry_delays: Seconds to wait before each retry; empty for none.
        health_retry_delays: Seconds between health probes after a failure; empty for no probe.
        request_timeout: Seconds for a whole request.
        connection_timeout: Seconds for connecting.
        certificate: PEM file with the server's own certificate; ``None``: the system's trust.
    """

    def __init__(
        self,
        address: str,
        *,
        retry_delays: Sequence[float],
        health_retry_delays: Sequence[float],
        request_timeout: float,
        connection_timeout: float,
        certificate: Path | None = None,
    ) -> None:
        self._given_address = address.rstrip("/")
        self.root, self._authorization = split_credentials(self._given_address)
        self.retry_delays = tuple(retry_delays)
        self.health_retry_delays = tuple(health_retry_delays)
        self.request_timeout = request_timeout
        self.connection_timeout = connection_timeout
        self._certificate = certificate
        self.pinned: str | None = None
        """Id of the only instance to talk to; ``None`` for whichever answers."""

        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self.features: frozenset[str] | None = None
        """What the server has beyond 0.3, as its last health told; ``None`` before the first."""

    def __repr__(self) -> str:
        return f"Transport({self.root!r})"

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_sessions", "features")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def address_with_credentials(self) -> str:
        """The address as it was given."""
        return self._given_address

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Params = (),
        repeat_if: str | None = None,
        once: bool = False,
        takes: float = 0.0,
    ) -> bytes:
        """Ask, and ask again after a failure that may pass; returns the body of the answer.

        Args:
            method: GET or POST.
            path: Path of the URL.
            body: JSON.
            params: Query of the URL.
            repeat_if: Ask again only of a server that has this feature.
            once: Give the request a key, by which our servers carry it out once however often it
                is sent.
            takes: Seconds that the server may take on purpose, beyond the request timeout.

        Raises:
            StoreError: what a local store would have raised.
            aiohttp.ClientError, TimeoutError: no answer, or an answer that tells nothing.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if once:
            headers[IDEMPOTENCY_HEADER] = uuid.uuid4().hex
        pinned = None if path == HEALTH_PATH else self.pinned
        if pinned is not None:
            headers[INSTANCE_HEADER] = pinned

        async def ask() -> bytes:
            session = await self.session()
            async with session.request(
                method,
                self.root + path,
                data=body,
                params=params or None,
                headers=headers,
                timeout=self._timeout(takes),
            ) as response:
                payload = await response.read()
            if response.status >= 400:
                raise _failure(response, payload)
            if pinned is not None and response.headers.get(INSTANCE_HEADER) != pinned:
                raise WrongInstanceError(
                    f"The server at {self.root} does not say that it is {pinned}; its answer "
                    "comes from another store"
                )
            return payload

        for number, delay in enumerate(self.retry_delays, start=1):
            try:
                return await ask()
            except Exception as error:
                if not _may_pass(error) or not self._has(repeat_if):
                    raise
                if not await self._healthy() or not self._has(repeat_if):
                    raise
                headers[RETRY_HEADER] = str(number)
                logger.info("%s %s failed (%s); again in %s s", method, path, error, delay)
                await asyncio.sleep(delay)
        return await ask()

    def _has(self, feature: str | None) -> bool:
        return feature is None or feature in (self.features or ())

    async def _healthy(self) -> bool:
        if not self.health_retry_delays:
            return True
        for delay in self.health_retry_delays:
            if await self._answers():
                return True
            await asyncio.sleep(delay)
        return await self._answers()

    async def _answers(self) -> bool:
        """Whether the server is well; whichever it is by now, what it has is noted."""
        try:
            session = await self.session()
            async with session.get(self.root + HEALTH_PATH) as response:
                if response.status != 200:
                    return False
                named = _json_object(await response.read()).get("features")
        except (aiohttp.ClientError, TimeoutError):
            return False
        self.features = frozenset(map(str, cast("list[Any]", named or ())))
        return True

    async def session(self) -> aiohttp.ClientSession:
        """The session of the running event loop; it is closed when the loop ends."""
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._sessions.get(loop)
            if known is not None and not known.session.closed:
                return known.session
            for other in [one for one in self._sessions if one.is_closed()]:
                del self._sessions[other]
            session = self._new_session()
            keeper = _closed_at_the_end(session)
            self._sessions[loop] = _Session(session, keeper)
        await anext(keeper)
        return session

    def _new_session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": self._authorization} if self._authorization else None
        connector = None
        if self._certificate is not None:
            connector = aiohttp.TCPConnector(ssl=_trusting(self._certificate))
        return aiohttp.ClientSession(
            timeout=self._timeout(0.0), headers=headers, connector=connector
        )

    def _timeout(self, takes: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self.request_timeout + takes,
            connect=self.connection_timeout,
            sock_connect=self.connection_timeout,
            sock_read=self.request_timeout + takes,
        )

    async def close(self) -> None:
        """Close the sessions of all event loops."""
        with self._lock:
            sessions = list(self._sessions.items())
            self._sessions.clear()
        here = asyncio.get_running_loop()
        for loop, one in sessions:
            with contextlib.suppress(RuntimeError):  # its event loop is closed already
                if loop is here or not loop.is_running():
                    await one.keeper.aclose()
                else:
                    there = asyncio.run_coroutine_threadsafe(one.keeper.aclose(), loop)
                    await asyncio.wrap_future(there)


class _Session(NamedTuple):
    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None]


async def _closed_at_the_end(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    """Event loops finish their generators before they close, and a session needs its loop."""
    try:
        yield
    finally:
        await session.close()


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Trust the holder of this certificate, under whatever name it is reached."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def split_credentials(address: str) -> tuple[str, str | None]:
    """The address without user and password, and the header that carries them.

    Raises:
        ValueError: not an http or https URL with a host.
    """
    parts = urlsplit(address)
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"The server address must look like http://host:port, not {shown!r}")
    if parts.username is None and parts.password is None:
        return shown, None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return shown, f"Basic {base64.b64encode(pair.encode()).decode()}"


def _may_pass(error: Exception) -> bool:
    if isinstance(error, aiohttp.ClientResponseError):
        return (error.status >= 500 and error.status != 501) or error.status == 408
    return isinstance(error, _RETRYABLE)


def _failure(response: aiohttp.ClientResponse, payload: bytes) -> Exception:
    body = _json_object(payload)
    if response.status < 500 and (error := error_from_answer(response.status, body)) is not None:
        return error
    detail = str(body.get("detail") or response.reason or "")
    if "error_id" in body:
        detail = f"{detail} ({body.get('error_type')}, error_id {body['error_id']})"
    info = response.request_info
    headers = CIMultiDict(info.headers)
    headers.pop("Authorization", None)
    shown = aiohttp.RequestInfo(
        url=info.url,
        method=info.method,
        headers=CIMultiDictProxy(headers),
        real_url=info.real_url,
    )
    return aiohttp.ClientResponseError(shown, (), status=response.status, message=detail)


def _json_object(payload: bytes) -> Mapping[str, Any]:
    try:
        value: object = json.loads(payload)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
