"""uvicorn's HTTP protocol, with each answer sent in one piece.

uvicorn writes head and body of an answer one after the other. Each write is a system call that
carries a packet through the network stack and wakes the client; the second costs a busy server a
tenth of its time. ASGI lets a server keep the head until the first part of the body comes.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_TO_JOIN = 64 * 1024
"""Bytes of a body above which copying it would cost more than a second write."""


class JoiningProtocol(HttpToolsProtocol):
    """Sends the head of an answer together with the first part of its body."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose head is not followed by anything
            self.cycle.transport = cast("asyncio.Transport", _Joined(self.transport))


class _Joined:
    """What one answer needs of a transport."""

    __slots__ = ("_head", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._write: Any = self._hold

    def write(self, data: bytes) -> None:
        self._write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head is not None:
            self._transport.write(self._head)
            self._head = None
        self._transport.close()

    def _hold(self, data: bytes) -> None:
        if data == _CONTINUE:
            self._transport.write(data)
        else:
            self._head = data
            self._write = self._join

    def _join(self, data: bytes) -> None:
        head = self._head or b""
        self._head = None
        self._write = self._transport.write
        if len(data) > _MOST_TO_JOIN:
            self._transport.write(head)
            self._transport.write(data)
        else:
            self._transport.write(head + data)
