"""A store in memory behind a server: seen by a client, and by the process that serves it."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.client import LONGEST_WAIT_SECONDS, LightningStoreClient
from agl.store.rest.server import LightningStoreServer
from agl.types import Rollout
from agl.utils.listening import free_port
from agl.utils.server_launcher import LaunchMode, PythonServerLauncherArgs

LOOPBACK = "127.0.0.1"


class PatientClient(LightningStoreClient):
    """Asks again for as long as its caller wants to wait, as callers of a client have to."""

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        if timeout is None:
            return await super().wait_for_rollouts(rollout_ids=rollout_ids)
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            patience = min(max(left, 0), LONGEST_WAIT_SECONDS)
            began = time.monotonic()
            found = await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=patience)
            answered_at_once = time.monotonic() - began < patience
            if answered_at_once or left <= LONGEST_WAIT_SECONDS:
                return found


class SwitchStore(LightningStore):
    """Hands every call to ``inner``, so that one server can serve a fresh store to each test."""

    def __init__(self) -> None:
        self.inner = InMemoryLightningStore(thread_safe=True)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.inner.capabilities


def _hand_on(name: str) -> Any:
    async def call(self: SwitchStore, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.inner, name)(*args, **kwargs)

    return call


for _name, _method in vars(LightningStore).items():
    if inspect.iscoroutinefunction(_method):
        setattr(SwitchStore, _name, _hand_on(_name))


def _server(store: LightningStore, mode: LaunchMode) -> LightningStoreServer:
    args = PythonServerLauncherArgs(
        host=LOOPBACK,
        access_host=LOOPBACK,
        port=free_port(LOOPBACK),
        launch_mode=mode,
        healthcheck_url="/v1/agl/health",
    )
    return LightningStoreServer(store, launcher_args=args)


@cache
def _loop_elsewhere() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


@cache
def _shared_server(mode: LaunchMode) -> tuple[SwitchStore, LightningStoreServer]:
    """Started once, for all tests: starting and stopping costs more than a test."""
    switch = SwitchStore()
    server = _server(switch, mode)
    asyncio.run_coroutine_threadsafe(server.start(), _loop_elsewhere()).result()
    return switch, server


@asynccontextmanager
async def _client(server: LightningStoreServer) -> AsyncIterator[LightningStore]:
    client = PatientClient(server.endpoint)
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
