"""HTTP/1.1 on a connection, with limits that uvicorn does not have: large heads, slow clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agl.utils.joined_answers import JoiningProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; more are answered 431."""

SLOW_SECONDS = 30.0
"""A head that takes longer, and a body that stops coming for so long, are answered 408."""

STALLED_KEY = "agl.stalled"
"""In the scope of a request whose body has stopped coming; whoever reads it answers 408."""

_LINGER_SECONDS = 1.0
_REASONS = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class LimitedHttpProtocol(JoiningProtocol):
    """uvicorn's protocol; costs a request that comes in one piece next to nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._packet_bytes = 0
        self._packets = 0
        self._refused = False
        self._watch: asyncio.TimerHandle | None = None

    # What uvicorn and its parser call

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._watch_progress()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._packets += 1
        self._packet_bytes = len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, _too_large())
                return
        if self._in_head or self._body_missing():
            if self._watch is None:
                self._watch_progress()
        elif self._watch is not None:
            self._stop_watching()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        large = self._head_bytes + self._packet_bytes > MAX_HEAD_BYTES
        self._head_bytes = 0
        if not large or self._head_size() <= MAX_HEAD_BYTES:
            super().on_headers_complete()
            return
        app: Any = self.app  # pyright: ignore[reportUnknownMemberType]  # a union with unknown parts
        self.app = _answer_too_large
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _body_missing(self) -> bool:
        return self._busy() and self.cycle.more_body

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]  # None until the first request

    # Slow clients

    def _watch_progress(self) -> None:
        self._watch = self.loop.call_later(SLOW_SECONDS, self._look, self._packets, self._in_head)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self, packets: int, in_head: bool) -> None:
        """Has the request come any further since ``packets``?"""
        self._watch = None
        if in_head and self._in_head:
            self._refuse(408, f"No complete request within {SLOW_SECONDS:g} seconds")
        elif self._body_missing() and self._packets == packets:
            scope: Any = self.cycle.scope
            scope[STALLED_KEY] = True
            self.cycle.message_event.set()
        elif self._in_head or self._body_missing():
            self._watch_progress()

    def _refuse(self, status: int, detail: str) -> None:
        self._stop_watching()
        if self._refused or self.transport.is_closing():
            return
        if not self._busy():  # otherwise it would be taken for the answer to another request
            body = _body(detail)
            head = (
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n" % (status, _REASONS[status], len(body))
            )
            self.transport.write(head + body)
        self._close_in_a_moment()

    def _close_in_a_moment(self) -> None:
        """Closing with bytes unread would reset the connection, and with it lose the answer."""
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)


def _too_large() -> str:
    return f"Request line and headers are larger than {MAX_HEAD_BYTES} bytes"


def _body(detail: str) -> bytes:
    return json.dumps({"detail": detail}).encode()


async def _answer_too_large(scope: Any, receive: Any, send: Any) -> None:
    body = _body(_too_large())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": body})
