"""Where a collection, queue or mapping lives, and how its calls reach the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from agl.store.collection.mongo.errors import translate
from agl.store.collection.mongo.indexes import Index, ensure_collection
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.mongo.transaction import in_transaction

R = TypeVar("R")
Document = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A collection of a database, one partition of it, and perhaps a session."""

    pool: MongoClientPool
    database: str
    name: str
    partition_id: str
    indexes: Sequence[Index]
    session: AsyncClientSession | None = None
    _ensured: list[bool] = field(default_factory=list[bool])

    def with_session(self, session: AsyncClientSession) -> Place:
        """The same place, read and written in a session."""
        return replace(self, session=session)

    def collection(self) -> AsyncCollection[Document]:
        """Through the client of the running event loop."""
        return self.pool.collection(self.database, self.name)

    async def ensure(self) -> None:
        """Make the collection and its indexes; once per object, and harmless at any time.

        Raises:
            BackendError: the database refused, or cannot be reached.
        """
        if self._ensured:
            return
        try:
            await ensure_collection(self.pool.database(self.database), self.name, self.indexes)
        except PyMongoError as error:
            raise translate(error) from error
        self._ensured.append(True)

    async def run(self, call: Callable[[AsyncCollection[Document]], Awaitable[R]]) -> R:
        """Carry out a call; outside a transaction, the driver's errors leave as ours.

        Inside one they stay as they are: their labels tell whether to repeat it.
        """
        if self.session is not None:
            return await call(self.collection())
        await self.ensure()
        try:
            return await call(self.collection())
        except PyMongoError as error:
            raise translate(error) from error

    async def run_atomically(
        self, call: Callable[[AsyncCollection[Document], AsyncClientSession], Awaitable[R]]
    ) -> R:
        """Carry out several calls in the transaction of the session, or in one of their own."""
        collection = self.collection()
        if self.session is not None:
            return await call(collection, self.session)
        await self.ensure()
        client = self.pool.client()
        try:
            return await in_transaction(
                client, lambda session: call(collection, session), metrics=self.pool.metrics
            )
        except PyMongoError as error:
            raise translate(error) from error
