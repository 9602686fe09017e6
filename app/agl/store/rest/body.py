"""Reading a request's body: size limit, gzip, and what to answer when it is broken."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from agl.store.rest.errors import ClientGoneError, HttpError
from agl.utils.http_protocol import SLOW_SECONDS, STALLED_KEY

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_GZIP_MEMBERS = 1000
"""Senders write one; a body of nothing but members would keep the server busy for minutes."""

_HEADERS_KEY = "agl.headers"
_PIECE_BYTES = 64 * 1024

_ENCODINGS = (b"identity", b"gzip")


def header(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    """Value of the first header of that (lower-case) name."""
    value = _headers(scope).get(name)
    return None if value is None else value.decode("latin-1")


def _headers(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    known: dict[bytes, bytes] | None = scope.get(_HEADERS_KEY)
    if known is None:
        known = scope[_HEADERS_KEY] = dict(reversed(scope["headers"]))  # the first of a name stays
    return known


async def read_body(scope: MutableMapping[str, Any], receive: Receive) -> bytes:
    """The body, unpacked.

    Raises:
        HttpError: 413 too large (packed or unpacked), 415 unknown encoding, 400 broken gzip.
        ClientGoneError: the client left before it had sent everything.
    """
    headers = _headers(scope)
    encoding = headers.get(b"content-encoding", b"identity").strip().lower() or b"identity"
    if encoding not in _ENCODINGS:
        named = encoding.decode("latin-1")
        raise HttpError(415, f"Content-Encoding: {named!r} is not supported; send gzip or nothing")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        raw: bytes = message.get("body", b"")
        if len(raw) > MAX_BODY_BYTES:
            raise _too_large()
    else:
        raw = await _receive_chunks(scope, message, receive)
    return unpack_gzip(raw) if encoding == b"gzip" and raw else raw


async def _receive_chunks(
    scope: MutableMapping[str, Any], message: MutableMapping[str, Any], receive: Receive
) -> bytes:
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if scope.get(STALLED_KEY):
            raise HttpError(
                408,
                f"The body stopped coming for {SLOW_SECONDS:g} seconds",
                headers=((b"connection", b"close"),),
            )
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)
        message = await receive()


def unpack_gzip(data: bytes) -> bytes:
    """Unpack gzip (several members allowed).

    Raises:
        HttpError: 400 not gzip, cut short or of too many members, 413 it unpacks to more than the
            limit.
    """
    out = bytearray()
    rest = memoryview(data)
    for _ in range(MAX_GZIP_MEMBERS):
        if not rest:
            return bytes(out)
        rest = rest[_unpack_member(rest, out) :]
    if rest:
        raise HttpError(400, f"Content-Encoding: more than {MAX_GZIP_MEMBERS} gzip members")
    return bytes(out)


def _unpack_member(data: memoryview, out: bytearray) -> int:
    """Append what the first member holds; returns the bytes it takes."""
    unpacker = zlib.decompressobj(wbits=31)
    used = 0
    while not unpacker.eof:
        piece = data[used : used + _PIECE_BYTES]  # what follows the member is copied by zlib
        if not piece:
            raise HttpError(400, "Content-Encoding: the gzip body is cut short")
        try:
            out += unpacker.decompress(piece, MAX_BODY_BYTES + 1 - len(out))
        except zlib.error as error:
            raise HttpError(400, f"Content-Encoding: body is not valid gzip ({error})") from None
        if len(out) > MAX_BODY_BYTES:
            raise _too_large()
        used += len(piece)
    return used - len(unpacker.unused_data)


def _too_large() -> HttpError:
    return HttpError(
        413, f"Body is larger than {MAX_BODY_BYTES} bytes (the limit also holds after unpacking)"
    )
