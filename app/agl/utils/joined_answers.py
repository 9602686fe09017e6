"""uvicorn's HTTP protocol, with each answer sent in one piece and less to do for it.

uvicorn writes head and body of an answer one after the other. Each write is a system call that
carries a packet through the network stack and wakes the client; the second costs a busy server a
tenth of its time. ASGI lets a server keep the head until the first part of the body comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from httptools import parse_url
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

_MOST_TO_JOIN = 64 * 1024
"""Bytes of a body above which copying it would cost more than a second write."""

_BODILESS = (204, 304)


class JoiningProtocol(HttpToolsProtocol):
    """Answers with :class:`JoinedAnswer`.

    One timer looks after a connection that rests, however many requests it has served; uvicorn
    sets one after each answer and takes it back with the next request.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resting_since: float | None = None

    def on_headers_complete(self) -> None:
        parser: Any = self.parser
        version: str = parser.get_http_version()
        scope: Any = self.scope
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            return
        self._describe_target(scope)
        before = self.cycle
        self.cycle = JoinedAnswer(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        this: Any = self  # whose ``app`` is a union with unknown parts
        app: Any = service_unavailable if self._too_many() else this.app
        if before is None or before.response_complete:  # pyright: ignore[reportUnnecessaryComparison]  # None until the first request
            self._start_asgi_task(self.cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))

    def _describe_target(self, scope: Any) -> None:
        url: Any = parse_url(self.url)
        raw: bytes = url.path
        path = raw.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + raw
        scope["query_string"] = url.query or b""

    def _too_many(self) -> bool:
        limit = self.limit_concurrency
        return limit is not None and max(len(self.connections), len(self.tasks)) >= limit

    # Connections that rest

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _unset_keepalive_if_required(self) -> None:
        self._resting_since = None

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._resting_since is None:
            return  # at work; the end of its answer sets the next timer
        left = self._resting_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
        else:
            super().timeout_keep_alive_handler()


class JoinedAnswer(RequestResponseCycle):
    """The answer to one request, whose head waits for the first part of the body."""

    _head = b""

    async def run_asgi(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.logger.error("Exception in ASGI application\n", exc_info=error)
            await self._give_up()
        else:
            if not self.response_complete and not self.disconnected:
                self.logger.error("ASGI callable returned without completing response.")
                await self._give_up()
        finally:
            self.on_response = _nothing

    async def _give_up(self) -> None:
        if not self.response_started:
            await self.send_500_response()
            return
        if self._head:
            self.transport.write(self._head)
        self.transport.close()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind: str = message["type"]
        if not self.response_started:
            self._expect("http.response.start", kind)
            self._start(message["status"], message.get("headers") or ())
        elif not self.response_complete:
            self._expect("http.response.body", kind)
            self._send_part(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message {kind!r}: the answer is complete already")

    def _expect(self, wanted: str, kind: str) -> None:
        if kind != wanted:
            raise RuntimeError(f"Expected ASGI message {wanted!r}, but got {kind!r}")

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self._log_access(status)
        parts = [STATUS_LINE[status]]
        closes = False
        for name, value in (*self.default_headers, *headers):
            lower = name.lower()
            if lower == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif lower == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length = 0
                self.chunked_encoding = True
            elif lower == b"connection" and b"close" in _tokens(value):
                self.keep_alive = False
                closes = True
            parts.append(_line(lower, value))
        if not self.keep_alive and not closes:
            parts.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self._has_body(status):
            self.chunked_encoding = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)

    def _has_body(self, status: int) -> bool:
        return self.scope["method"] != "HEAD" and status not in _BODILESS

    def _log_access(self, status: int) -> None:
        scope: Any = self.scope
        host, port = scope["client"] or ("-", 0)
        query: bytes = scope["query_string"]
        self.access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            f"{host}:{port}",
            scope["method"],
            scope["raw_path"].decode("ascii") + (f"?{query.decode('ascii')}" if query else ""),
            scope["http_version"],
            status,
        )

    def _send_part(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("Response content longer than Content-Length")
        self._write(body)
        if more:
            return
        if self.expected_content_length != 0:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head and len(data) > _MOST_TO_JOIN:
            self.transport.write(head)
            head = b""
        if head or data:
            self.transport.write(head + data)


@lru_cache(maxsize=1024)
def _line(name: bytes, value: bytes) -> bytes:
    """A line of a head.

    Raises:
        RuntimeError: the header could be taken for something else.
    """
    if HEADER_RE.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    if HEADER_VALUE_RE.search(value):
        raise RuntimeError("Invalid HTTP header value.")
    return b"%b: %b\r\n" % (name, value)


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",")]


def _nothing() -> None:
    return None
