"""Counters and other values by key in MongoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter
from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from agl.errors import BackendError, DuplicatedPrimaryKeyError, InvalidRequestError
from agl.store.collection.base import KeyValue, ensure_numeric
from agl.store.collection.instrumented import KEY_VALUE_OPERATIONS, CollectionsRecorder
from agl.store.collection.mongo.documents import decode_value, encode_value
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.indexes import INDEXES
from agl.store.collection.mongo.place import Place
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.mongo.query import INT64
from agl.utils.metrics import MetricsBackend

K = TypeVar("K")
V = TypeVar("V")
Document = dict[str, Any]
Change = Callable[[AsyncCollection[Document]], Awaitable[Any]]

_TYPE_MISMATCH = 14


class MongoBasedKeyValue(KeyValue[K, V], Generic[K, V]):
    """One document a key; ``inc`` and ``chmax`` are atomic on the server.

    Args:
        client_pool: Where clients come from.
        database_name: Database.
        collection_name: Collection, and the name under which calls are tracked.
        partition_id: Only keys of this partition exist for it.
        key_type: Class of the keys.
        value_type: Class of the values.
        tracker: Where calls are counted and timed.
    """

    def __init__(
        self,
        client_pool: MongoClientPool,
        database_name: str,
        collection_name: str,
        partition_id: str,
        key_type: type[K],
        value_type: type[V],
        tracker: MetricsBackend | None = None,
    ) -> None:
        indexes = INDEXES["span_sequence_ids"]
        place = Place(client_pool, database_name, collection_name, partition_id, indexes)
        self._set_up(place, key_type, value_type, tracker)

    def _set_up(
        self,
        place: Place,
        key_type: type[K],
        value_type: type[V],
        tracker: MetricsBackend | None,
    ) -> None:
        self._place = place
        self._key_type = key_type
        self._value_type = value_type
        self._adapter = TypeAdapter(value_type)
        self._tracker = tracker
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, place.name, KEY_VALUE_OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self._key_type.__name__}, {self._value_type.__name__}]>"

    def with_session(self, session: AsyncClientSession) -> MongoBasedKeyValue[K, V]:
        """The same mapping, whose calls belong to a session and its transaction."""
        copy: MongoBasedKeyValue[K, V] = MongoBasedKeyValue.__new__(type(self))
        place = self._place.with_session(session)
        copy._set_up(place, self._key_type, self._value_type, self._tracker)
        return copy

    async def ensure_collection(self) -> AsyncCollection[Document]:
        """Make the collection and its index, if need be, and return it."""
        await self._place.ensure()
        return self._place.collection()

    async def has(self, key: K) -> bool:
        return await self._find(key) is not None

    async def get(self, key: K, default: V | None = None) -> V | None:
        found = await self._find(key)
        return default if found is None else self._decode(found)

    async def _find(self, key: K) -> Document | None:
        where, session = self._where(key), self._place.session
        return await self._place.run(lambda c: c.find_one(where, session=session))

    async def set(self, key: K, value: V) -> None:
        where, session = self._where(key), self._place.session
        stored = encode_value(self._adapter.dump_python(value, warnings=False), "value")
        update = _stamped({"$set": {"value": stored}})
        await self._repeated(lambda c: c.update_one(where, update, upsert=True, session=session))

    async def inc(self, key: K, amount: V) -> V:
        return self._numeric((await self._change(key, "$inc", _number(amount, "amount")))["value"])

    async def chmax(self, key: K, value: V) -> V:
        return self._numeric((await self._change(key, "$max", _number(value, "value")))["value"])

    async def _change(self, key: K, operator: str, number: int | float) -> Document:
        where, session = self._where(key), self._place.session
        update = _stamped({operator: {"value": number}})
        after = ReturnDocument.AFTER
        changed: Document | None = None
        while changed is None:  # two upserts of one key have met
            changed = await self._repeated(
                lambda c: c.find_one_and_update(
                    where, update, upsert=True, return_document=after, session=session
                )
            )
        return changed

    async def inc_many(self, amounts: Mapping[K, V]) -> Mapping[K, V]:
        for amount in amounts.values():
            _number(amount, "amount")
        if self._place.session is not None:
            return await super().inc_many(amounts)
        changed = await self.add_many(amounts)
        return {key: self._numeric(document["value"]) for key, document in changed.items()}

    async def add_many(self, amounts: Mapping[K, V]) -> Mapping[K, Document]:
        """Add to numbers; returns the documents as they are then.

        Raises:
            TypeError: an amount or a stored value is not a number.
        """
        changes = [
            self._change(key, "$inc", _number(amount, "amount")) for key, amount in amounts.items()
        ]
        return dict(zip(amounts, await asyncio.gather(*changes), strict=True))

    async def chmax_many(self, values: Mapping[K, V]) -> Mapping[K, V]:
        if not values:
            return {}
        operations = [
            UpdateOne(
                self._where(key),
                _stamped({"$max": {"value": _number(value, "value")}}),
                upsert=True,
            )
            for key, value in values.items()
        ]
        session = self._place.session
        await self._repeated(lambda c: c.bulk_write(operations, ordered=False, session=session))
        found = await self._place.run(lambda c: self._read(c, list(values)))
        return {key: self._numeric(found[key]) for key in values}

    async def _read(self, collection: AsyncCollection[Document], keys: list[K]) -> dict[K, Any]:
        where = {
            "partition_id": self._place.partition_id,
            "key": {"$in": [self._where(key)["key"] for key in keys]},
        }
        documents = await collection.find(where, session=self._place.session).to_list()
        return {document["key"]: document["value"] for document in documents}

    async def pop(self, key: K, default: V | None = None) -> V | None:
        where, session = self._where(key), self._place.session
        found = await self._place.run(lambda c: c.find_one_and_delete(where, session=session))
        return default if found is None else self._decode(found)

    async def size(self) -> int:
        where, session = {"partition_id": self._place.partition_id}, self._place.session
        return await self._place.run(lambda c: c.count_documents(where, session=session))

    async def _repeated(self, change: Change) -> Any:
        """An upsert, repeated while somebody else stores the same key at the same instant."""
        while True:
            try:
                return await self._place.run(change)
            except DuplicatedPrimaryKeyError:
                continue
            except (BackendError, OperationFailure) as error:
                cause = error.__cause__ if isinstance(error, BackendError) else error
                if isinstance(cause, OperationFailure) and cause.code == _TYPE_MISMATCH:
                    raise TypeError("stored value must be a number") from None
                raise

    def _where(self, key: K) -> Document:
        return {"partition_id": self._place.partition_id, "key": encode_value(key, "key")}

    def _decode(self, document: Document) -> V:
        return self._adapter.validate_python(decode_value(document["value"]))

    def _numeric(self, value: Any) -> V:
        number = ensure_numeric(value, "stored value")
        return cast("V", float(number) if isinstance(number, float) else int(number))


def _stamped(update: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**update, "$setOnInsert": {"_id": new_id()}}


def _number(value: Any, what: str) -> int | float:
    number = ensure_numeric(value, what)
    if isinstance(number, int) and number not in INT64:
        raise InvalidRequestError(f"{what} must fit into 64 bits, not {number}")
    return number
