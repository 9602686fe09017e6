"""Requests handed to the server's application without a network, so that only it is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from agl.store.base import LightningStore
from agl.store.rest.app import create_app
from agl.utils.metrics import MetricsBackend

PREFIX = "/v1/agl"


class InProcessServer:
    """The application around a store, called as a server would.

    Args:
        store: What it serves.
        tracker: Where requests are counted.
    """

    def __init__(self, store: LightningStore, tracker: MetricsBackend | None) -> None:
        self._app: Callable[..., Any] = create_app(store, tracker=tracker)

    async def call(
        self, method: Literal["GET", "POST"], path: str, body: bytes = b"", query: bytes = b""
    ) -> bytes:
        """The body of the answer.

        Raises:
            RuntimeError: the answer is an error.
        """
        return b"".join(await self.parts(method, path, body, query))

    async def parts(
        self, method: Literal["GET", "POST"], path: str, body: bytes = b"", query: bytes = b""
    ) -> list[bytes]:
        """The same in the parts that are sent; putting many together takes long."""
        path = PREFIX + path
        parts: list[bytes] = []
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(_scope(method, path, body, query), receive, send)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {b''.join(parts)!r}")
        return parts


def _scope(method: str, path: str, body: bytes, query: bytes) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": [
            (b"host", b"127.0.0.1:4747"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4747),
    }
