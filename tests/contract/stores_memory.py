"""Stores in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.threading import LightningStoreThreaded
from agl.utils.metrics import ConsoleMetricsBackend


@asynccontextmanager
async def memory(**options: Any) -> AsyncIterator[LightningStore]:
    yield InMemoryLightningStore(**options)


@asynccontextmanager
async def memory_thread_safe(**options: Any) -> AsyncIterator[LightningStore]:
    yield InMemoryLightningStore(thread_safe=True, **options)


@asynccontextmanager
async def memory_tracked(**options: Any) -> AsyncIterator[LightningStore]:
    yield InMemoryLightningStore(tracker=ConsoleMetricsBackend(), **options)


@asynccontextmanager
async def threaded(**options: Any) -> AsyncIterator[LightningStore]:
    yield LightningStoreThreaded(InMemoryLightningStore(**options))


FACTORIES = {
    "memory": memory,
    "memory-thread-safe": memory_thread_safe,
    "memory-tracked": memory_tracked,
    "threaded": threaded,
}
