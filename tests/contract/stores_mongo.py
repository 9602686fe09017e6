"""Stores in MongoDB: direct, and seen by a client of a server."""

from __future__ import annotations

import atexit
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from typing import Any

import mongo
import stores_http

from agl.store.base import LightningStore
from agl.store.mongo import MongoLightningStore
from agl.utils.metrics import ConsoleMetricsBackend


@cache
def shared_server() -> mongo.MongoServer:
    """Started once, when first asked for; ended with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(mongo.any_server())


@cache
def shared_database() -> str:
    server = shared_server()
    name = server.new_database()
    atexit.register(server.drop, name)
    return name


def new_store(**options: Any) -> MongoLightningStore:
    """A store on a partition of its own."""
    return MongoLightningStore(
        mongo_uri=shared_server().uri, database_name=shared_database(), **options
    )


@asynccontextmanager
async def mongo_store(**options: Any) -> AsyncIterator[LightningStore]:
    async with new_store(**options) as store:
        yield store


@asynccontextmanager
async def mongo_tracked(**options: Any) -> AsyncIterator[LightningStore]:
    async with new_store(tracker=ConsoleMetricsBackend(), **options) as store:
        yield store


@asynccontextmanager
async def mongo_client(**options: Any) -> AsyncIterator[LightningStore]:
    """A client of a server in another thread, whose store has an event loop of its own."""
    switch, server = stores_http._shared_server("asyncio")
    async with new_store(**options) as store, stores_http._client(server) as client:
        switch.inner = store
        yield client


FACTORIES = {"mongo": mongo_store, "mongo-client": mongo_client}
if mongo.server_name() != "secantusd-py":  # which is slow
    FACTORIES["mongo-tracked"] = mongo_tracked
