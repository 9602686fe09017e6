"""A store in MongoDB behind several server processes, seen by a client.

Each request comes over a connection of its own, so that one process has to see what another did.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import stores_mongo
from rest_support import launcher_args
from turns_proxy import turns_proxy

from agl.store.base import LightningStore
from agl.store.rest.client import LightningStoreClient
from agl.store.rest.server import LightningStoreServer
from agl.store.rest.transport import Transport


class _OneRequestEach(Transport):
    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(force_close=True)
        return aiohttp.ClientSession(timeout=self._timeout(0.0), connector=connector)


@asynccontextmanager
async def _served(processes: int, **options: Any) -> AsyncIterator[LightningStoreServer]:
    arguments = launcher_args(launch_mode="mp", n_workers=processes)
    server = LightningStoreServer(stores_mongo.new_store(**options), launcher_args=arguments)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[LightningStore]:
    client = LightningStoreClient(url)
    client._transport = _OneRequestEach(
        url,
        retry_delays=(),
        health_retry_delays=(),
        request_timeout=60,
        connection_timeout=60,
    )
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def mongo_gunicorn(**options: Any) -> AsyncIterator[LightningStore]:
    """Two processes that share a port, watched by gunicorn."""
    async with _served(2, **options) as server, _client(server.endpoint) as client:
        yield client


@asynccontextmanager
async def mongo_turns(**options: Any) -> AsyncIterator[LightningStore]:
    """Two servers of one process each; every request goes to the other one."""
    options.setdefault("partition_id", stores_mongo.shared_server().new_database())
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(_served(1, **options)) for _ in range(2)]
        addresses = [("127.0.0.1", urlsplit(one.endpoint).port or 0) for one in servers]
        port, given = stack.enter_context(turns_proxy(addresses))
        yield await stack.enter_async_context(_client(f"http://127.0.0.1:{port}"))
        assert abs(given[0] - given[1]) <= 1


FACTORIES = {"mongo-gunicorn": mongo_gunicorn, "mongo-turns": mongo_turns}
