"""Pages of documents: as few round trips as possible, and no sorting on the server.

An ordered page is up to two reads along an index, one of the documents that have a value and one of
those that have none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from pydantic import BaseModel
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from agl.store.collection.mongo.query import (
    INSERTION_ORDER,
    Filter,
    SortKeys,
    field_kind,
    number_of_keys,
    sort_keys,
    translate,
    with_condition,
)
from agl.store.collection.query import Order, Predicate, Query, sort_items, window

ModelT = TypeVar("ModelT", bound=BaseModel)
Document = dict[str, Any]

_MOST_KEYS = 200
"""Documents found by as many primary keys are sorted here instead of on the server."""


class Found(NamedTuple, Generic[ModelT]):
    """Items of one page, and how many match in all."""

    items: list[ModelT]
    total: int


@dataclass(frozen=True, slots=True)
class Source(Generic[ModelT]):
    """Where documents come from and what they become."""

    collection: AsyncCollection[Document]
    partition_id: str
    item_type: type[ModelT]
    primary_keys: Sequence[str]
    build: Callable[[Mapping[str, Any]], ModelT]
    session: AsyncClientSession | None = None
    projection: Mapping[str, Any] | None = None

    async def page(
        self, query: Query, order: tuple[str, Order] | None, limit: int, offset: int
    ) -> Found[ModelT]:
        """The items of a page; a ``limit`` of -1 is none, 0 asks for the total only."""
        wanted = translate(query, self.item_type, self.partition_id)
        if wanted.filter is None:
            return Found([], 0)
        if wanted.rest is not None or self._is_decided_here(query, order):
            items = await self._all(wanted.filter, wanted.rest)
            total = len(items)
            if order is not None:
                items = sort_items(items, *order)
            return Found(window(items, limit, offset), total)
        reader = _Reader(self, wanted.filter, limit, min(offset, sys.maxsize))
        documents, total = await reader.read(order)
        return Found([self.build(document) for document in documents], total)

    async def first(self, query: Query, order: tuple[str, Order] | None) -> ModelT | None:
        """The first item of the first page."""
        wanted = translate(query, self.item_type, self.partition_id)
        if wanted.filter is None:
            return None
        keys = number_of_keys(query, self.primary_keys)
        if order is not None or wanted.rest is not None or keys not in (None, 1):
            found = await self.page(query, order, 1, 0)
            return next(iter(found.items), None)
        documents = await self.find(wanted.filter, None if keys else INSERTION_ORDER, 0, 1)
        return self.build(documents[0]) if documents else None

    def _is_decided_here(self, query: Query, order: tuple[str, Order] | None) -> bool:
        if order is not None and field_kind(self.item_type, order[0]).holds == "other":
            return True
        keys = number_of_keys(query, self.primary_keys)
        return keys is not None and keys <= _MOST_KEYS

    async def _all(self, filter: Filter, rest: Predicate | None) -> list[ModelT]:
        """All that match, in insertion order; sorted here, so that the server picks any index."""
        documents = await self.find(filter, None, 0, -1)
        documents.sort(key=lambda document: document["_id"])
        items = map(self.build, documents)
        return list(items if rest is None else (item for item in items if rest(item)))

    async def find(
        self, filter: Filter, sort: SortKeys | None, offset: int, limit: int
    ) -> list[Document]:
        """Documents; a ``limit`` of -1 is none."""
        cursor = self.collection.find(filter, self.projection, session=self.session)
        if sort is not None:
            cursor = cursor.sort(sort)
        if limit != -1:
            cursor = cursor.limit(min(limit, 2**31 - 1))
        return await cursor.skip(min(offset, 2**63 - 1)).to_list()

    async def count(self, filter: Filter) -> int:
        """How many documents match."""
        return await self.collection.count_documents(filter, session=self.session)

    async def count_both(self, filter: Filter, narrower: Filter) -> tuple[int, int]:
        """How many documents match one filter and how many the other, in one round trip."""
        others = [{"$match": narrower}, _counted("narrower")]
        pipeline = [
            {"$match": filter},
            _counted("all"),
            {"$unionWith": {"coll": self.collection.name, "pipeline": others}},
        ]
        cursor = await self.collection.aggregate(pipeline, session=self.session)
        counts = {row["_id"]: cast("int", row["n"]) for row in await cursor.to_list()}
        return counts.get("all", 0), counts.get("narrower", 0)


def _counted(name: str) -> Mapping[str, Any]:
    return {"$group": {"_id": {"$literal": name}, "n": {"$sum": 1}}}


@dataclass(slots=True)
class _Reader:
    """One page, on its way from the server."""

    source: Source[Any]
    filter: Filter
    limit: int
    offset: int

    async def read(self, order: tuple[str, Order] | None) -> tuple[list[Document], int]:
        if self.limit == 0:
            return [], await self.source.count(self.filter)
        if order is None:
            return await self._in_order(INSERTION_ORDER)
        if not field_kind(self.source.item_type, order[0]).nullable:
            return await self._in_order(sort_keys(*order))
        return await self._nulls_last(*order)

    async def _in_order(self, sort: SortKeys) -> tuple[list[Document], int]:
        found = await self.source.find(self.filter, sort, self.offset, self.limit)
        return found, await self._total(len(found))

    async def _total(self, found: int) -> int:
        if self._is_last(found):
            return self.offset + found
        return await self.source.count(self.filter)

    def _is_last(self, found: int) -> bool:
        """Whether the page shows where the matches end."""
        is_full = self.limit != -1 and found == self.limit
        return not is_full and (found > 0 or self.offset == 0)

    async def _nulls_last(self, name: str, order: Order) -> tuple[list[Document], int]:
        present = with_condition(self.filter, name, {"$ne": None})
        missing = with_condition(self.filter, name, None)
        sort = sort_keys(name, order)
        if self.offset == 0:
            found = await self.source.find(present, sort, 0, self.limit)
            if self.limit == -1 or len(found) < self.limit:
                left = -1 if self.limit == -1 else self.limit - len(found)
                found += await self.source.find(missing, INSERTION_ORDER, 0, left)
            return found, await self._total(len(found))
        total, with_value = await self.source.count_both(self.filter, present)
        found: list[Document] = []
        if self.offset < with_value:
            found = await self.source.find(present, sort, self.offset, self.limit)
        end = total if self.limit == -1 else min(total, self.offset + self.limit)
        if end > max(with_value, self.offset):
            left = -1 if self.limit == -1 else self.limit - len(found)
            skipped = max(0, self.offset - with_value)
            found += await self.source.find(missing, INSERTION_ORDER, skipped, left)
        return found, total
