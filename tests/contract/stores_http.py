"""A store in memory behind a server: seen by a client, and by the process that serves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from rest_support import SwitchStore, launcher_args

from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.client import LightningStoreClient
from agl.store.rest.server import LightningStoreServer
from agl.utils.server_launcher import LaunchMode


@cache
def _loop_elsewhere() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


@cache
def _shared_server(mode: LaunchMode) -> tuple[SwitchStore, LightningStoreServer]:
    """Started once, for all tests: starting and stopping costs more than a test."""
    switch = SwitchStore()
    server = LightningStoreServer(switch, launcher_args=launcher_args(launch_mode=mode))
    asyncio.run_coroutine_threadsafe(server.start(), _loop_elsewhere()).result()
    return switch, server


@asynccontextmanager
async def _client(server: LightningStoreServer) -> AsyncIterator[LightningStore]:
    client = LightningStoreClient(server.endpoint)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def client_asyncio(**options: Any) -> AsyncIterator[LightningStore]:
    switch, server = _shared_server("asyncio")
    switch.inner = InMemoryLightningStore(**options)
    async with _client(server) as client:
        yield client


@asynccontextmanager
async def client_thread(**options: Any) -> AsyncIterator[LightningStore]:
    switch, server = _shared_server("thread")
    switch.inner = InMemoryLightningStore(thread_safe=True, **options)
    async with _client(server) as client:
        yield client


@asynccontextmanager
async def server_thread(**options: Any) -> AsyncIterator[LightningStore]:
    switch, server = _shared_server("thread")
    switch.inner = InMemoryLightningStore(thread_safe=True, **options)
    yield server


FACTORIES = {
    "client-asyncio": client_asyncio,
    "client-thread": client_thread,
    "server-thread": server_thread,
}
