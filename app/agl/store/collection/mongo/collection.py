"""A collection of models in MongoDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel
from pymongo import DeleteOne, ReturnDocument, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DuplicateKeyError

from agl.errors import DuplicatedPrimaryKeyError, NotFoundError
from agl.store.collection.base import Collection
from agl.store.collection.instrumented import COLLECTION_OPERATIONS, CollectionsRecorder
from agl.store.collection.mongo.documents import (
    from_document,
    model_fields,
    sealed,
    some_fields,
)
from agl.store.collection.mongo.errors import DUPLICATE_KEY, is_duplicate_key
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.indexes import indexes_for
from agl.store.collection.mongo.paging import Source
from agl.store.collection.mongo.place import Place
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.query import (
    check_window,
    page,
    parse_filter,
    resolve_sort_options,
)
from agl.types import FilterOptions, PaginatedResult, SortOptions
from agl.utils.metrics import MetricsBackend

T = TypeVar("T", bound=BaseModel)
Document = dict[str, Any]
Key = tuple[Any, ...]

_OPERATIONS = {
    name: operation for name, operation in COLLECTION_OPERATIONS.items() if name != "find_newest"
}


class MongoBasedCollection(Collection[T], Generic[T]):
    """Models as documents; several partitions share one collection of the database.

    Args:
        client_pool: Where clients come from.
        database_name: Database.
        collection_name: Collection, and the name under which calls are tracked.
        partition_id: Only documents of this partition exist for it.
        primary_keys: One or more fields.
        item_type: Class of the items, a pydantic model.
        extra_indexes: Fields, or groups of fields, asked for and shown in insertion order.
        tracker: Where calls are counted and timed.

    Raises:
        ValueError: no primary keys, or ``item_type`` is no pydantic model.
    """

    def __init__(
        self,
        client_pool: MongoClientPool,
        database_name: str,
        collection_name: str,
        partition_id: str,
        primary_keys: Sequence[str],
        item_type: type[T],
        extra_indexes: Sequence[str | Sequence[str]] = (),
        tracker: MetricsBackend | None = None,
    ) -> None:
        if not primary_keys:
            raise ValueError("primary_keys must name at least one field")
        if not (isinstance(item_type, type) and issubclass(item_type, BaseModel)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise ValueError(f"item_type must be a pydantic model, not {item_type!r}")
        indexes = indexes_for(collection_name, primary_keys, extra_indexes)
        place = Place(client_pool, database_name, collection_name, partition_id, indexes)
        self._set_up(place, tuple(primary_keys), item_type, tracker)

    def _set_up(
        self,
        place: Place,
        primary_keys: tuple[str, ...],
        item_type: type[T],
        tracker: MetricsBackend | None,
    ) -> None:
        self._place = place
        self._primary_keys = primary_keys
        self._item_type = item_type
        self._tracker = tracker
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, place.name, _OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self._item_type.__name__}]>"

    def with_session(self, session: AsyncClientSession) -> MongoBasedCollection[T]:
        """The same collection, whose calls belong to a session and its transaction.

        There the driver's errors are not translated: they tell whether to repeat the transaction.
        """
        copy: MongoBasedCollection[T] = MongoBasedCollection.__new__(type(self))
        place = self._place.with_session(session)
        copy._set_up(place, self._primary_keys, self._item_type, self._tracker)
        return copy

    async def ensure_collection(self) -> AsyncCollection[Document]:
        """Make the collection and its indexes, if need be, and return it."""
        await self._place.ensure()
        return self._place.collection()

    def primary_keys(self) -> Sequence[str]:
        return self._primary_keys

    def item_type(self) -> type[T]:
        return self._item_type

    async def size(self) -> int:
        partition = {"partition_id": self._place.partition_id}
        return await self._place.run(lambda c: self._source(c).count(partition))

    # Questions

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[T]:
        check_window(limit, offset)
        order = resolve_sort_options(sort, self._item_type)
        query = parse_filter(filter)
        found = await self._place.run(
            lambda collection: self._source(collection).page(query, order, limit, offset)
        )
        return page(found.items, limit, offset, found.total)

    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> T | None:
        order = resolve_sort_options(sort, self._item_type)
        query = parse_filter(filter)
        return await self._place.run(
            lambda collection: self._source(collection).first(query, order)
        )

    def _source(self, collection: AsyncCollection[Document]) -> Source[T]:
        return Source(
            collection,
            self._place.partition_id,
            self._item_type,
            self._primary_keys,
            self._build,
            self._place.session,
        )

    def _build(self, document: Mapping[str, Any]) -> T:
        return from_document(document, self._item_type)

    # Writes

    async def insert(self, items: Sequence[T]) -> None:
        documents = self._new_documents(items)
        if len({self._key(item) for item in items}) < len(items):
            raise self._duplicate(items)
        if not documents:
            return
        session = self._place.session
        try:
            if len(documents) == 1:
                await self._place.run(lambda c: c.insert_one(documents[0], session=session))
            else:
                await self._place.run_atomically(
                    lambda c, transaction: c.insert_many(documents, session=transaction)
                )
        except DuplicatedPrimaryKeyError:
            raise self._duplicate(items) from None
        except (DuplicateKeyError, BulkWriteError) as error:
            if is_duplicate_key(error):
                raise self._duplicate(items) from None
            raise

    def _duplicate(self, items: Sequence[T]) -> DuplicatedPrimaryKeyError:
        which = f"primary key {self._describe(items[0])}" if len(items) == 1 else "one of the keys"
        return DuplicatedPrimaryKeyError(
            f"{self._item_type.__name__}: {which} is already stored, or given twice"
        )

    async def insert_missing(self, items: Sequence[T]) -> Sequence[T]:
        first: dict[Key, T] = {}
        for item in items:
            first.setdefault(self._checked_key(item), item)
        unique = list(first.values())
        if not unique:
            return []
        if self._place.session is not None:
            return await self._place.run(lambda c: self._upsert_missing(c, unique))
        documents = self._new_documents(unique)
        return await self._place.run(lambda c: self._insert_missing(c, unique, documents))

    async def _insert_missing(
        self,
        collection: AsyncCollection[Document],
        items: list[T],
        documents: list[RawBSONDocument],
    ) -> list[T]:
        try:
            await collection.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            failed = cast("list[Mapping[str, Any]]", error.details["writeErrors"])
            if error.details.get("writeConcernErrors") or any(
                one["code"] != DUPLICATE_KEY for one in failed
            ):
                raise
            known = {one["index"] for one in failed}
            return [item for index, item in enumerate(items) if index not in known]
        return items

    async def _upsert_missing(
        self, collection: AsyncCollection[Document], items: list[T]
    ) -> list[T]:
        """In a transaction, which a duplicate key would end."""
        operations = [
            UpdateOne(self._where(item), {"$setOnInsert": self._new_document(item)}, upsert=True)
            for item in items
        ]
        result = await collection.bulk_write(operations, session=self._place.session)
        return [items[index] for index in sorted(result.upserted_ids or ())]

    async def update(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        self._check(items)
        if not items:
            return []
        if len(items) == 1:
            session = self._place.session
            return [
                await self._place.run(lambda c: self._update(c, items[0], update_fields, session))
            ]
        return await self._place.run_atomically(
            lambda c, transaction: self._update_all(c, items, update_fields, transaction)
        )

    async def _update_all(
        self,
        collection: AsyncCollection[Document],
        items: Sequence[T],
        fields: Sequence[str] | None,
        session: AsyncClientSession,
    ) -> list[T]:
        return [await self._update(collection, item, fields, session) for item in items]

    async def _update(
        self,
        collection: AsyncCollection[Document],
        item: T,
        fields: Sequence[str] | None,
        session: AsyncClientSession | None,
    ) -> T:
        where = self._where(item)
        after = ReturnDocument.AFTER
        if fields is None:
            document = self._document(item)
            sealed(document, self._what(item))
            found = await collection.find_one_and_replace(
                where, document, return_document=after, session=session
            )
        elif fields:
            changed = some_fields(item, fields)
            sealed(changed, self._what(item))
            found = await collection.find_one_and_update(
                where, {"$set": changed}, return_document=after, session=session
            )
        else:
            found = await collection.find_one(where, session=session)
        if found is None:
            raise self._missing(item)
        return self._build(found)

    async def upsert(
        self, items: Sequence[T], update_fields: Sequence[str] | None = None
    ) -> Sequence[T]:
        self._check(items)
        return [await self._upsert_one(item, update_fields) for item in items]

    async def _upsert_one(self, item: T, fields: Sequence[str] | None) -> T:
        session = self._place.session
        while True:
            try:
                return await self._place.run(lambda c: self._upsert(c, item, fields, session))
            except DuplicatedPrimaryKeyError:
                continue  # somebody stored it between the server's look and its insert

    async def _upsert(
        self,
        collection: AsyncCollection[Document],
        item: T,
        fields: Sequence[str] | None,
        session: AsyncClientSession | None,
    ) -> T:
        document = self._document(item)
        sealed(document, self._what(item))
        update = _replacement(document) if fields is None else self._partly(item, document, fields)
        found: Document | None = None
        while found is None:  # two upserts of one key have met
            found = await collection.find_one_and_update(
                self._where(item),
                update,
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=session,
            )
        return self._build(found)

    def _partly(
        self, item: T, document: Document, fields: Sequence[str]
    ) -> Mapping[str, Mapping[str, Any]]:
        changed = some_fields(item, fields) if fields else {}
        new = {name: value for name, value in document.items() if name not in changed}
        update = {"$setOnInsert": {**new, "_id": new_id()}}
        return {**update, "$set": changed} if changed else update

    async def delete(self, items: Sequence[T]) -> None:
        self._check(items)
        if not items:
            return
        if len(items) == 1:
            session = self._place.session
            result = await self._place.run(
                lambda c: c.delete_one(self._where(items[0]), session=session)
            )
            if not result.deleted_count:
                raise self._missing(items[0])
            return
        await self._place.run_atomically(lambda c, transaction: self._delete(c, items, transaction))

    async def _delete(
        self,
        collection: AsyncCollection[Document],
        items: Sequence[T],
        session: AsyncClientSession,
    ) -> None:
        operations = [DeleteOne(self._where(item)) for item in items]
        result = await collection.bulk_write(operations, session=session)
        if result.deleted_count != len({self._key(item) for item in items}):
            raise NotFoundError(
                f"{self._item_type.__name__}: one of the {len(items)} items to delete is not stored"
            )

    # Documents

    def _check(self, items: Sequence[T]) -> None:
        for item in items:
            self._checked_key(item)

    def _checked_key(self, item: T) -> Key:
        if not isinstance(item, self._item_type):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise TypeError(
                f"Collection of {self._item_type.__name__} cannot take {type(item).__name__}"
            )
        return self._key(item)

    def _key(self, item: T) -> Key:
        return tuple([getattr(item, name) for name in self._primary_keys])

    def _where(self, item: T) -> Document:
        keys = some_fields(item, self._primary_keys)
        return {"partition_id": self._place.partition_id, **keys}

    def _document(self, item: T) -> Document:
        return {"partition_id": self._place.partition_id, **model_fields(item)}

    def _new_document(self, item: T) -> Document:
        document = {"_id": new_id(), **self._document(item)}
        sealed(document, self._what(item))
        return document

    def _new_documents(self, items: Sequence[T]) -> list[RawBSONDocument]:
        self._check(items)
        return [
            sealed({"_id": new_id(), **self._document(item)}, self._what(item)) for item in items
        ]

    def _what(self, item: T) -> str:
        return f"{self._item_type.__name__} {self._describe(item)}"

    def _describe(self, item: T) -> str:
        return str({name: getattr(item, name) for name in self._primary_keys})

    def _missing(self, item: T) -> NotFoundError:
        return NotFoundError(f"Item with primary key(s) {self._describe(item)} does not exist")


def _replacement(document: Document) -> list[Mapping[str, Any]]:
    """An update that replaces the document and keeps its place; a new one gets the last."""
    place = {"_id": {"$ifNull": ["$_id", new_id()]}}
    return [{"$replaceWith": {"$mergeObjects": [{"$literal": document}, place]}}]
