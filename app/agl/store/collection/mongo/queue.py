"""A queue in MongoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter
from pymongo import UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.results import BulkWriteResult

from agl.store.collection.base import Queue
from agl.store.collection.instrumented import QUEUE_OPERATIONS, CollectionsRecorder
from agl.store.collection.mongo.documents import decode_value, encode_value
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.indexes import INDEXES
from agl.store.collection.mongo.place import Place
from agl.store.collection.mongo.pool import MongoClientPool
from agl.utils.metrics import MetricsBackend

T = TypeVar("T")
Document = dict[str, Any]

_AT_ONCE = 32
_OLDEST_FIRST = [("_id", 1)]


class MongoBasedQueue(Queue[T], Generic[T]):
    """Entries that wait; whoever takes one deletes it.

    Reads the entries of agent-lightning 0.3 that are not consumed yet; those that are consumed
    do not exist for it.

    Args:
        client_pool: Where clients come from.
        database_name: Database.
        collection_name: Collection, and the name under which calls are tracked.
        partition_id: Only entries of this partition exist for it.
        item_type: Class of the items.
        tracker: Where calls are counted and timed.
    """

    def __init__(
        self,
        client_pool: MongoClientPool,
        database_name: str,
        collection_name: str,
        partition_id: str,
        item_type: type[T],
        tracker: MetricsBackend | None = None,
    ) -> None:
        indexes = INDEXES["rollout_queue"]
        place = Place(client_pool, database_name, collection_name, partition_id, indexes)
        self._set_up(place, item_type, tracker)

    def _set_up(self, place: Place, item_type: type[T], tracker: MetricsBackend | None) -> None:
        self._place = place
        self._item_type = item_type
        self._adapter = TypeAdapter(item_type)
        self._tracker = tracker
        self._waiting: Document = {"partition_id": place.partition_id, "consumed": False}
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, place.name, QUEUE_OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self._item_type.__name__}]>"

    def with_session(self, session: AsyncClientSession) -> MongoBasedQueue[T]:
        """The same queue, whose calls belong to a session and its transaction."""
        copy: MongoBasedQueue[T] = MongoBasedQueue.__new__(type(self))
        copy._set_up(self._place.with_session(session), self._item_type, self._tracker)
        return copy

    async def ensure_collection(self) -> AsyncCollection[Document]:
        """Make the collection and its indexes, if need be, and return it."""
        await self._place.ensure()
        return self._place.collection()

    def item_type(self) -> type[T]:
        return self._item_type

    async def has(self, item: T) -> bool:
        where = {**self._waiting, "value": self._encode(item)}
        session = self._place.session
        found = await self._place.run(lambda c: c.find_one(where, {"_id": 1}, session=session))
        return found is not None

    async def enqueue(self, items: Sequence[T]) -> Sequence[T]:
        self._check(items)
        entries = [self._entry(item) for item in items]
        session = self._place.session
        if len(entries) == 1:
            await self._place.run(lambda c: c.insert_one(entries[0], session=session))
        elif entries:
            await self._place.run_atomically(
                lambda c, transaction: c.insert_many(entries, session=transaction)
            )
        return items

    async def enqueue_missing(self, items: Sequence[T]) -> Sequence[T]:
        self._check(items)
        if not items:
            return []
        operations = [
            UpdateOne(
                {**self._waiting, "value": entry["value"]}, {"$setOnInsert": entry}, upsert=True
            )
            for entry in map(self._entry, items)
        ]
        turn = {"_id": f"{self._place.partition_id}/turn"}
        partition = {"partition_id": self._place.partition_id}
        await self._place.run(
            lambda c: c.update_one(turn, {"$setOnInsert": partition}, upsert=True)
        )

        async def append(
            collection: AsyncCollection[Document], transaction: AsyncClientSession
        ) -> BulkWriteResult:
            # Two transactions that write the same document cannot both be committed unless one
            # begins after the other.
            await collection.update_one(turn, {"$inc": {"turns": 1}}, session=transaction)
            return await collection.bulk_write(operations, session=transaction)

        result = await self._place.run_atomically(append)
        return [items[index] for index in sorted(result.upserted_ids or ())]

    async def dequeue(self, limit: int = 1) -> Sequence[T]:
        taken: list[T] = []
        while len(taken) < limit:
            wanted = min(limit - len(taken), _AT_ONCE)
            found, has_more = await self._place.run(lambda c, n=wanted: self._take(c, n))
            taken.extend(self._decode(document) for document in found)
            if not has_more:
                break
        return taken

    async def _take(
        self, collection: AsyncCollection[Document], wanted: int
    ) -> tuple[list[Document], bool]:
        """Entries that nobody else got, and whether there may be more."""
        session = self._place.session
        if wanted == 1:
            found = await collection.find_one_and_delete(
                self._waiting, sort=_OLDEST_FIRST, session=session
            )
            return ([found] if found else []), found is not None
        cursor = collection.find(self._waiting, {"_id": 1}, session=session)
        seen = await cursor.sort(_OLDEST_FIRST).limit(wanted).to_list()
        ids = [document["_id"] for document in seen]
        if session is None:
            tries = await asyncio.gather(
                *[collection.find_one_and_delete({"_id": known}) for known in ids]
            )
        else:
            tries = [
                await collection.find_one_and_delete({"_id": known}, session=session)
                for known in ids
            ]
        return [document for document in tries if document is not None], len(ids) == wanted

    async def peek(self, limit: int = 1) -> Sequence[T]:
        if limit <= 0:
            return []
        found = await self._place.run(lambda c: self._first(c, limit))
        return [self._decode(document) for document in found]

    async def _first(self, collection: AsyncCollection[Document], limit: int) -> list[Document]:
        cursor = collection.find(self._waiting, session=self._place.session)
        return await cursor.sort(_OLDEST_FIRST).limit(min(limit, 2**31 - 1)).to_list()

    async def discard(self, items: Sequence[T]) -> int:
        if not items:
            return 0
        where = {**self._waiting, "value": {"$in": [self._encode(item) for item in items]}}
        session = self._place.session
        result = await self._place.run(lambda c: c.delete_many(where, session=session))
        return result.deleted_count

    async def size(self) -> int:
        session = self._place.session
        return await self._place.run(lambda c: c.count_documents(self._waiting, session=session))

    def _check(self, items: Sequence[T]) -> None:
        for item in items:
            if not isinstance(item, self._item_type):
                raise TypeError(
                    f"Queue of {self._item_type.__name__} cannot take {type(item).__name__}"
                )

    def _entry(self, item: T) -> Document:
        return {
            "_id": new_id(),
            **self._waiting,
            "value": self._encode(item),
            "created_at": datetime.now(UTC).replace(tzinfo=None),
        }

    def _encode(self, item: T) -> Any:
        return encode_value(self._adapter.dump_python(item, warnings=False), "value")

    def _decode(self, document: Document) -> T:
        return cast("T", self._adapter.validate_python(decode_value(document["value"])))
