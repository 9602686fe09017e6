"""Greets like servers of MongoDB that cannot be had here: too old ones, and an idle replica set.

Speaks just enough of the wire protocol for a driver to say hello.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import bson

_HEADER = struct.Struct("<iiii")
_QUERY, _REPLY, _MESSAGE = 2004, 1, 2013

MONGO_5: Mapping[str, Any] = {
    "isWritablePrimary": True,
    "setName": "rs0",
    "minWireVersion": 0,
    "maxWireVersion": 13,
}
MONGO_3_2: Mapping[str, Any] = {**MONGO_5, "maxWireVersion": 4}
NOT_INITIATED: Mapping[str, Any] = {
    "isWritablePrimary": False,
    "secondary": False,
    "isreplicaset": True,
    "info": "Does not have a valid replica set config",
    "minWireVersion": 0,
    "maxWireVersion": 25,
}


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while header := self.rfile.read(_HEADER.size):
            length, request_id, _, kind = _HEADER.unpack(header)
            command = _command(kind, self.rfile.read(length - _HEADER.size))
            body = bson.encode(self._answer(next(iter(command)).lower()))
            if kind == _MESSAGE:
                payload = struct.pack("<IB", 0, 0) + body
            else:
                payload = struct.pack("<iqii", 8, 0, 0, 1) + body
            answer = _MESSAGE if kind == _MESSAGE else _REPLY
            size = _HEADER.size + len(payload)
            self.wfile.write(_HEADER.pack(size, request_id, request_id, answer) + payload)

    def _answer(self, name: str) -> dict[str, Any]:
        host, port = self.server.server_address[:2]
        hello: Mapping[str, Any] = self.server.hello  # type: ignore[attr-defined]
        if name in ("hello", "ismaster"):
            address = f"{host}:{port}"
            named = {"hosts": [address], "primary": address, "me": address}
            return {**(named if "setName" in hello else {}), **hello, "ismaster": True, "ok": 1.0}
        if name == "buildinfo":
            return {"version": "5.0.31", "ok": 1.0}
        return {"ok": 0.0, "code": 59, "errmsg": f"no such command: {name}"}


def _command(kind: int, payload: bytes) -> dict[str, Any]:
    if kind == _MESSAGE:
        return bson.decode(payload[5:])
    assert kind == _QUERY
    end = payload.index(b"\0", 4)
    return bson.decode(payload[end + 1 + 8 :])


@contextmanager
def greeting(hello: Mapping[str, Any]) -> Iterator[int]:
    """A server on the loopback address that greets so; yields its port."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hello = hello  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
