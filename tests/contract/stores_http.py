"""A store in memory behind a server: seen by a client, and by the process that serves it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from rest_support import SwitchStore, launcher_args

from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.client import LONGEST_WAIT_SECONDS, LightningStoreClient
from agl.store.rest.server import LightningStoreServer
from agl.types import Rollout
from agl.utils.server_launcher import LaunchMode


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
