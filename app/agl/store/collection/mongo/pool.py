"""Clients: one for each event loop, none across a fork."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from agl.store.collection.mongo.clock import ServerClock
from agl.store.collection.mongo.metrics import DriverMetrics
from agl.utils.metrics import MetricsBackend

logger = logging.getLogger(__name__)

DEFAULT_MONGO_URI = "mongodb://localhost:27017/?replicaSet=rs0"

Document = dict[str, Any]
Client = AsyncMongoClient[Document]

_DURABLE: Mapping[str, Any] = {"w": "majority", "journal": True, "readPreference": "primary"}
"""Whatever the URI says: an acknowledged write survives, and every process reads its own writes."""

_DEFAULTS: Mapping[str, Any] = {
    "appname": "agl-store",
    "connectTimeoutMS": 5_000,
    "maxPoolSize": 64,
    "serverSelectionTimeoutMS": 15_000,
    "socketTimeoutMS": 30_000,
    "waitQueueTimeoutMS": 15_000,
}
"""Unless the URI or ``mongo_client_kwargs`` say otherwise. Times in milliseconds."""


class _PlainIntegers(TypeDecoder):
    """The driver marks integers of 64 bits by a class of its own, which nobody here wants."""

    bson_type = Int64  # type: ignore[assignment] # a property in the base

    def transform_bson(self, value: Any) -> int:
        return int(value)


_CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    type_registry=TypeRegistry([_PlainIntegers()]),
)


class MongoClientPool:
    """Hands out the client that belongs to the running event loop.

    Safe to share between threads. After a fork the child starts with no clients. Pickles without
    its clients and its tracker.

    Args:
        mongo_uri: Where MongoDB is, a replica set.
        mongo_client_kwargs: Options of the driver; they override the URI and our defaults.
        tracker: Where commands, connections and failures are counted.
    """

    def __init__(
        self,
        *,
        mongo_uri: str = DEFAULT_MONGO_URI,
        mongo_client_kwargs: Mapping[str, Any] | None = None,
        tracker: MetricsBackend | None = None,
    ) -> None:
        self._uri = mongo_uri
        self._kwargs = dict(mongo_client_kwargs or {})
        self._metrics = DriverMetrics(tracker) if tracker is not None else None
        self._start_empty()

    def _start_empty(self) -> None:
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._closed = False
        self.clock = ServerClock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_uri": self._uri, "_kwargs": self._kwargs, "_metrics": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_empty()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def metrics(self) -> DriverMetrics | None:
        """What counts commands, batches and repeats; ``None`` without a tracker."""
        return self._metrics

    def client(self) -> Client:
        """The client of the running event loop; made, but not connected, when first asked for.

        Raises:
            RuntimeError: no event loop runs, or the pool is closed.
        """
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or self._pid != os.getpid():
            client = self._add_client(loop)
        return client

    def _leave_to_parent(self) -> None:
        """After a fork, forget what was inherited: it belongs to the parent."""
        if self._pid != os.getpid():
            self._start_empty()

    def _add_client(self, loop: asyncio.AbstractEventLoop) -> Client:
        self._leave_to_parent()
        with self._mutex:
            if self._closed:
                raise RuntimeError("MongoClientPool is closed")
            client = self._clients.get(loop)
            if client is None:
                client = self._clients[loop] = self._new_client()
        return client

    def _new_client(self) -> Client:
        listeners = [*self._kwargs.get("event_listeners", ()), self.clock]
        if self._metrics is not None:
            listeners.extend(self._metrics.listeners())
        options = client_options(self._uri, self._kwargs)
        options["event_listeners"] = listeners
        return AsyncMongoClient[Document](self._uri, **options)

    def database(self, name: str) -> AsyncDatabase[Document]:
        """A database through the client of the running event loop."""
        return self.client().get_database(name, codec_options=_CODEC)

    def collection(self, database_name: str, collection_name: str) -> AsyncCollection[Document]:
        """A collection through the client of the running event loop."""
        return self.database(database_name)[collection_name]

    async def get_client(self) -> Client:
        """:meth:`client`, as upstream spells it."""
        return self.client()

    async def get_collection(
        self, database_name: str, collection_name: str
    ) -> AsyncCollection[Document]:
        """:meth:`collection`, as upstream spells it."""
        return self.collection(database_name, collection_name)

    async def close_here(self) -> None:
        """Close the client of the running event loop, if there is one; others go on."""
        self._leave_to_parent()
        with self._mutex:
            client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        """Close the clients of all event loops; failures are logged. Closing twice is harmless."""
        self._leave_to_parent()
        with self._mutex:
            self._closed = True
            clients = list(self._clients.items())
            self._clients.clear()
        for loop, client in clients:
            try:
                await _close_in(loop, client)
            except Exception:
                logger.exception("A connection to MongoDB could not be closed")


async def _close_in(loop: asyncio.AbstractEventLoop, client: Client) -> None:
    """Close a client in the loop it belongs to; what a closed loop left behind is dropped."""
    if loop is asyncio.get_running_loop():
        await client.close()
        return
    if loop.is_closed():
        return
    if not loop.is_running():
        await asyncio.to_thread(loop.run_until_complete, client.close())
        return
    closing = asyncio.run_coroutine_threadsafe(client.close(), loop)
    await asyncio.wrap_future(closing)


def client_options(uri: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's options: our defaults, less what the URI sets itself, and ``kwargs`` on top."""
    in_uri = {name.lower() for name, _ in parse_qsl(urlsplit(uri).query, keep_blank_values=True)}
    given = {name.lower() for name in kwargs}
    options = {
        name: value
        for name, value in _DEFAULTS.items()
        if name.lower() not in in_uri and name.lower() not in given
    }
    options.update((n, v) for n, v in _DURABLE.items() if n.lower() not in given)
    options.update(kwargs)
    return options
