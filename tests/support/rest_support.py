"""A real store behind a real server on a free port, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from ports import free_port

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.server import LightningStoreServer
from agl.types import Span
from agl.utils.server_launcher import PythonServerLauncherArgs

LOOPBACK = "127.0.0.1"


def launcher_args(**changes: Any) -> PythonServerLauncherArgs:
    """Settings for a server on a free loopback port."""
    given = {
        "host": LOOPBACK,
        "port": free_port(LOOPBACK),
        "access_host": LOOPBACK,
        "healthcheck_url": "/v1/agl/health",
        "startup_timeout": 20.0,
    }
    return PythonServerLauncherArgs(**(given | changes))


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


class SharedServer:
    """One server in a thread for all tests of a module, with a fresh store for each of them."""

    def __init__(self) -> None:
        self.switch = SwitchStore()
        self.server = LightningStoreServer(
            self.switch, launcher_args=launcher_args(launch_mode="thread")
        )

    def fresh(self) -> InMemoryLightningStore:
        self.switch.inner = InMemoryLightningStore(thread_safe=True)
        return self.switch.inner

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.server.endpoint, timeout=20, trust_env=False)


@pytest.fixture(scope="module", name="shared")
def shared_server() -> Iterator[SharedServer]:
    server = SharedServer()
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, server.server.start()).result()
        yield server
        elsewhere.submit(asyncio.run, server.server.stop()).result()


@asynccontextmanager
async def serving(
    store: LightningStore | None = None, **options: Any
) -> AsyncGenerator[LightningStoreServer]:
    """A server in this event loop."""
    server = LightningStoreServer(
        store or InMemoryLightningStore(), launcher_args=launcher_args(), **options
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def http_for(
    store: LightningStore | None = None, **options: Any
) -> AsyncGenerator[httpx.AsyncClient]:
    """A plain HTTP client of a new server."""
    async with (
        serving(store, **options) as server,
        httpx.AsyncClient(base_url=server.endpoint, timeout=20, trust_env=False) as http,
    ):
        yield http


def span_body(rollout_id: str, attempt_id: str, **changes: Any) -> dict[str, Any]:
    """The span of the recorded example."""
    ids = {"trace_id": "0" * 31 + "a", "span_id": "0" * 15 + "1"}
    body: dict[str, Any] = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": 5,
        **ids,
        "parent_id": None,
        "name": "demo",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"k": "v", "n": 1, "f": 1.5, "b": True, "l": ["a", "b"]},
        "events": [{"name": "ev", "attributes": {}, "timestamp": 1.0}],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": {**ids, "is_remote": False, "trace_state": {}},
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }
    return body | changes


def span(rollout_id: str, attempt_id: str, **changes: Any) -> Span:
    return Span.model_validate(span_body(rollout_id, attempt_id, **changes))
