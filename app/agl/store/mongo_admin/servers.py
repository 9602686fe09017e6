"""Which server processes are alive: each writes a heartbeat into the collection ``servers``.

Times are MongoDB's own, so clocks of store hosts do not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pymongo.errors import PyMongoError

from agl import __version__
from agl.config import MongoSettings
from agl.store.collection.mongo.metrics import OpenConnections
from agl.store.mongo_admin.connect import Client, Database, Document, client_of

logger = logging.getLogger(__name__)

SERVERS = "servers"
HEARTBEAT_SECONDS = 5.0
ALIVE_SECONDS = 20.0
"""A process that was not heard of for so long is taken for dead."""

_FORGET = timedelta(days=1)


def host_name() -> str:
    """The name of this machine or container."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class StoreServer:
    """One ``agl store``, with all of its processes.

    Attributes:
        partition_id: What it serves.
        port: Where it listens.
        host: The machine or container it runs on.
        server_id: Drawn anew at every start.
    """

    partition_id: str
    port: int
    host: str = field(default_factory=host_name)
    server_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"{self.host} port {self.port}"


@asynccontextmanager
async def heartbeats(server: StoreServer, mongo: MongoSettings) -> AsyncGenerator[None]:
    """Say that this process is alive, as long as the context lasts.

    Failures are logged when they begin and end: they are no reason not to serve.

    Args:
        server: What the process is part of.
        mongo: Where it is said.
    """
    client = client_of(mongo, maxPoolSize=1, event_listeners=[OpenConnections()])
    database = client[mongo.database]
    beating = asyncio.create_task(_beat(server, database))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with contextlib.suppress(PyMongoError, TimeoutError):
            async with asyncio.timeout(1.0):
                await database[SERVERS].delete_one({"_id": _id(server)})
        await client.close()


async def _beat(server: StoreServer, database: Database) -> None:
    failing = False
    while True:
        try:
            await database[SERVERS].update_one(
                {"_id": _id(server)},
                {"$set": _record(server), "$currentDate": {"seen_at": True}},
                upsert=True,
            )
        except PyMongoError as error:
            if not failing:
                logger.warning("MongoDB takes no heartbeat (%s).", type(error).__name__)
            failing = True
        else:
            if failing:
                logger.info("MongoDB takes heartbeats again.")
            failing = False
        await asyncio.sleep(HEARTBEAT_SECONDS)


def _id(server: StoreServer) -> str:
    return f"{server.server_id}/{os.getpid()}"


def _record(server: StoreServer) -> Document:
    return {
        "partition_id": server.partition_id,
        "server_id": server.server_id,
        "host": server.host,
        "port": server.port,
        "pid": os.getpid(),
        "version": __version__,
    }


async def live_servers(
    client: Client, database: Database, partition_id: str | None = None
) -> list[StoreServer]:
    """Servers that were heard of a moment ago, sorted by host and port; long dead ones are dropped.

    Args:
        client: Tells the time.
        database: Where servers are noted.
        partition_id: Only those that serve this partition.
    """
    now: datetime = (await client.admin.command("hello"))["localTime"]
    await database[SERVERS].delete_many({"seen_at": {"$lt": now - _FORGET}})
    wanted: Document = {"seen_at": {"$gte": now - timedelta(seconds=ALIVE_SECONDS)}}
    if partition_id is not None:
        wanted["partition_id"] = partition_id
    found = {
        record["server_id"]: StoreServer(
            record["partition_id"], record["port"], record["host"], record["server_id"]
        )
        async for record in database[SERVERS].find(wanted)
    }
    return sorted(found.values(), key=lambda server: (server.host, server.port))
