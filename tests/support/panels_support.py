"""A server that answers as Prometheus' API does, or as badly as a test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from agl.ops.panels.prometheus import Limits, PrometheusReader

Raw = bytes


@dataclass
class FakePrometheus:
    """``answers`` is the data by endpoint, such as ``query``; bytes are sent as they are."""

    answers: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    waits: asyncio.Event | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def until_asked(self, times: int) -> None:
        """Waits until that many questions have come."""
        async with asyncio.timeout(60):
            while len(self.paths) < times:  # noqa: ASYNC110 - the server counts, nobody tells
                await asyncio.sleep(0.01)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        self.asked.append(
            {**request.query, **{k: str(v) for k, v in (await request.post()).items()}}
        )
        if self.waits is not None:
            await self.waits.wait()
        answer = self.answers.get(request.path.removeprefix("/api/v1/"))
        if isinstance(answer, Raw):
            return web.Response(body=answer, status=self.status)
        if isinstance(answer, web.HTTPException):
            raise answer
        if self.status != 200:
            return web.Response(text="unavailable", status=self.status)
        return web.json_response({"status": "success", "data": answer})


@contextlib.asynccontextmanager
async def answering(
    prometheus: FakePrometheus, limits: Limits | None = None
) -> AsyncIterator[PrometheusReader]:
    """A reader of that server, over a real socket."""
    app = web.Application()
    app.router.add_route("*", "/api/v1/{rest:.*}", prometheus.handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield PrometheusReader(str(server.make_url("")), session, limits or Limits())
        if prometheus.waits is not None:
            prometheus.waits.set()
