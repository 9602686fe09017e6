"""Rollouts, attempts and the queue as collections: three views of the rollout documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from agl.errors import DuplicatedPrimaryKeyError, NotFoundError
from agl.store.collection.base import Collection, Queue
from agl.store.collection.mongo.loader import WAITING
from agl.store.collection.mongo.paging import Found, Source
from agl.store.collection.mongo.roots import ROLLOUTS, Root
from agl.store.collection.mongo.totals import rollouts_in
from agl.store.collection.query import (
    Query,
    check_window,
    page,
    parse_filter,
    predicate,
    resolve_sort_options,
    sort_items,
    window,
)
from agl.store.collection.writes import WriteBatch
from agl.types import Attempt, FilterOptions, PaginatedResult, Rollout, SortOptions

if TYPE_CHECKING:
    from agl.store.collection.mongo.lane import Lane
    from agl.store.collection.mongo.section import Section

_ROLLOUT_FIELDS = tuple(Rollout.model_fields)
_ATTEMPT_FIELDS = tuple(Attempt.model_fields)
_NO_DELETION = "{} are never deleted one by one; `agl store prune` removes a partition"


@dataclass(frozen=True)
class _RootSource(Source[Rollout]):
    """Pages of rollouts; plain questions for a status are counted by the totals."""

    lane: Lane | None = None

    async def count(self, filter: dict[str, Any]) -> int:
        statuses = _statuses_asked(filter)
        if self.lane is None or statuses is None:
            return await super().count(filter)
        totals = await self.lane.totals.read_counters(self.lane.database)
        return rollouts_in(totals, statuses)


def _statuses_asked(filter: Mapping[str, Any]) -> set[str] | None:
    """The statuses of a filter that has no other condition; an empty set for all."""
    if filter.keys() - {"partition_id", "status"}:
        return None
    if "status" not in filter:
        return set()
    asked = filter["status"]
    if isinstance(asked, str):
        return {asked}
    if isinstance(asked, Mapping) and set(cast("Mapping[str, Any]", asked)) == {"$in"}:
        return {one for one in cast("Mapping[str, Any]", asked)["$in"] if one is not None}
    return None


class RootView(Collection[Rollout]):
    """The rollouts. Within a section, what it returns is remembered there."""

    def __init__(self, section: Section) -> None:
        self._section = section

    def primary_keys(self) -> Sequence[str]:
        return ("rollout_id",)

    def item_type(self) -> type[Rollout]:
        return Rollout

    async def size(self) -> int:
        lane = await self._section.lane()
        totals = await lane.reading(lambda: lane.totals.read_counters(lane.database))
        return rollouts_in(totals)

    async def find(self, *key: str) -> Rollout | None:
        root = await self._section.root(key[0])
        return None if root is None else root.rollout

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Rollout]:
        check_window(limit, offset)
        order = resolve_sort_options(sort, Rollout)
        query = parse_filter(filter)
        if sort is None and limit == -1 and offset == 0 and _only_ids(filter):
            roots = await self._section.roots(query.required[0].operand)
            rollouts = [root.rollout for root in roots.values()]
            return page(rollouts, limit, offset, len(rollouts))
        found = await self._found(lambda source: source.page(query, order, limit, offset))
        return page(found.items, limit, offset, found.total)

    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> Rollout | None:
        found = await self.query(filter, sort, 1)
        return next(iter(found.items), None)

    async def _found(
        self, read: Callable[[Source[Rollout]], Awaitable[Found[Rollout]]]
    ) -> Found[Rollout]:
        section, lane = self._section, await self._section.lane()
        documents: dict[str, dict[str, Any]] = {}

        def build(document: Mapping[str, Any]) -> Rollout:
            root = Root(document)
            documents[root.rollout_id] = dict(document)
            section.remember(root)
            return root.rollout

        source = _RootSource(
            lane.database[ROLLOUTS], lane.partition_id, Rollout, ("rollout_id",), build, lane=lane
        )
        found: Found[Rollout] = await lane.reading(lambda: read(source))
        legacy = [d for d in documents.values() if "attempts" not in d]
        if legacy:
            await section.remember_legacy(legacy)
        return found

    async def insert(self, items: Sequence[Rollout]) -> None:
        batch = WriteBatch()
        batch.new_rollouts.extend(items)
        batch.enqueue.extend(r.rollout_id for r in items if r.status in WAITING)
        await self._section.apply(lambda section: section.write(batch))

    async def insert_missing(self, items: Sequence[Rollout]) -> Sequence[Rollout]:
        known = await self._section.roots([item.rollout_id for item in items])
        missing = [item for item in items if item.rollout_id not in known]
        await self.insert(missing)
        return missing

    async def update(
        self, items: Sequence[Rollout], update_fields: Sequence[str] | None = None
    ) -> Sequence[Rollout]:
        fields = tuple(_ROLLOUT_FIELDS if update_fields is None else update_fields)

        async def change(section: Section) -> None:
            known = await section.roots([item.rollout_id for item in items])
            batch = WriteBatch()
            for item in items:
                if item.rollout_id not in known:
                    raise _missing({"rollout_id": item.rollout_id})
                batch.change_rollout(item, fields)
            await section.write(batch)

        await self._section.apply(change)
        return [r for item in items if (r := await self.find(item.rollout_id)) is not None]

    async def upsert(
        self, items: Sequence[Rollout], update_fields: Sequence[str] | None = None
    ) -> Sequence[Rollout]:
        new = {item.rollout_id for item in await self.insert_missing(items)}
        old = [item for item in items if item.rollout_id not in new]
        if old and update_fields != []:
            await self.update(old, update_fields)
        return [r for item in items if (r := await self.find(item.rollout_id)) is not None]

    async def delete(self, items: Sequence[Rollout]) -> None:
        raise NotImplementedError(_NO_DELETION.format("Rollouts"))


def _only_ids(filter: FilterOptions | None) -> bool:
    """Whether the filter only names ids, in the form the store uses for what it reads itself."""
    return (
        filter is not None
        and list(filter) == ["rollout_id"]
        and list(cast("Mapping[str, Any]", filter["rollout_id"])) == ["within"]
        and cast("Mapping[str, Any]", filter["rollout_id"])["within"] is not None
    )


def _missing(key: Mapping[str, str]) -> NotFoundError:
    return NotFoundError(f"Item with primary key(s) {dict(key)} does not exist")


class AttemptView(Collection[Attempt]):
    """The attempts, which live in the documents of their rollouts."""

    def __init__(self, section: Section) -> None:
        self._section = section

    def primary_keys(self) -> Sequence[str]:
        return ("rollout_id", "attempt_id")

    def item_type(self) -> type[Attempt]:
        return Attempt

    async def size(self) -> int:
        lane = await self._section.lane()
        totals = await lane.reading(lambda: lane.totals.read_counters(lane.database))
        return totals.get("attempts", 0)

    async def find(self, *key: str) -> Attempt | None:
        root = await self._section.root(key[0], light=True)
        return None if root is None else root.attempt(key[1])

    async def latest(self, rollout_id: str) -> Attempt | None:
        """The attempt with the highest sequence id."""
        root = await self._section.root(rollout_id, light=True)
        return None if root is None else root.latest

    async def latest_of(self, rollout_ids: Sequence[str]) -> dict[str, Attempt]:
        """The latest attempt of each rollout that has one."""
        roots = await self._section.roots(rollout_ids, light=True)
        return {key: root.latest for key, root in roots.items() if root.latest is not None}

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        check_window(limit, offset)
        order = resolve_sort_options(sort, Attempt)
        query = parse_filter(filter)
        roots = await self._roots_with(query)
        matches = predicate(query.required, query.optional)
        found = [
            attempt
            for root in roots
            for attempt in root.attempts
            if matches is None or matches(attempt)
        ]
        total = len(found)
        if order is not None:
            found = sort_items(found, *order)
        return page(window(found, limit, offset), limit, offset, total)

    async def _roots_with(self, query: Query) -> Sequence[Root]:
        for condition in query.required:
            if condition.field == "rollout_id" and condition.operator != "contains":
                asked = condition.operand
                ids = [asked] if condition.operator == "exact" else list(asked)
                return list((await self._section.roots(ids, light=True)).values())
        return await self._section.all_roots()

    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> Attempt | None:
        return next(iter((await self.query(filter, sort, 1)).items), None)

    async def insert(self, items: Sequence[Attempt]) -> None:

        async def add(section: Section) -> None:
            known = await section.roots([item.rollout_id for item in items])
            batch = WriteBatch()
            for item in items:
                root = known.get(item.rollout_id)
                if root is None:
                    raise _missing({"rollout_id": item.rollout_id})
                if root.attempt(item.attempt_id) is not None:
                    raise DuplicatedPrimaryKeyError(
                        f"Attempt {item.attempt_id} of {item.rollout_id} is already stored"
                    )
                batch.new_attempts.append(item)
            await section.write(batch)

        await self._section.apply(add)

    async def insert_missing(self, items: Sequence[Attempt]) -> Sequence[Attempt]:
        missing = [i for i in items if await self.find(i.rollout_id, i.attempt_id) is None]
        await self.insert(missing)
        return missing

    async def update(
        self, items: Sequence[Attempt], update_fields: Sequence[str] | None = None
    ) -> Sequence[Attempt]:
        fields = tuple(_ATTEMPT_FIELDS if update_fields is None else update_fields)

        async def change(section: Section) -> None:
            batch = WriteBatch()
            for item in items:
                if await section.attempts.find(item.rollout_id, item.attempt_id) is None:
                    key = {"rollout_id": item.rollout_id, "attempt_id": item.attempt_id}
                    raise _missing(key)
                batch.change_attempt(item, fields)
            await section.write(batch)

        await self._section.apply(change)
        found = [await self.find(item.rollout_id, item.attempt_id) for item in items]
        return [attempt for attempt in found if attempt is not None]

    async def upsert(
        self, items: Sequence[Attempt], update_fields: Sequence[str] | None = None
    ) -> Sequence[Attempt]:
        new = await self.insert_missing(items)
        old = [item for item in items if item not in new]
        if old and update_fields != []:
            await self.update(old, update_fields)
        found = [await self.find(item.rollout_id, item.attempt_id) for item in items]
        return [attempt for attempt in found if attempt is not None]

    async def delete(self, items: Sequence[Attempt]) -> None:
        raise NotImplementedError(_NO_DELETION.format("Attempts"))


class QueueView(Queue[str]):
    """Ids of the rollouts that wait. Who is in the queue follows from the status alone."""

    def __init__(self, section: Section) -> None:
        self._section = section

    def item_type(self) -> type[str]:
        return str

    async def has(self, item: str) -> bool:
        root = await self._section.root(item, light=True)
        return root is not None and root.rollout.status in WAITING

    async def peek(self, limit: int = 1) -> Sequence[str]:
        if limit <= 0:
            return []
        lane = await self._section.lane()
        match = {"partition_id": lane.partition_id, "status": {"$in": WAITING}}
        documents = await lane.reading(
            lambda: (
                lane.database[ROLLOUTS]
                .find(match, {"rollout_id": 1}, limit=limit, batch_size=limit)
                .sort({"queued_at": 1, "_id": 1})
                .to_list()
            )
        )
        return [document["rollout_id"] for document in documents]

    async def size(self) -> int:
        lane = await self._section.lane()
        totals = await lane.reading(lambda: lane.totals.read_counters(lane.database))
        return rollouts_in(totals, WAITING)

    async def enqueue(self, items: Sequence[str]) -> Sequence[str]:
        raise NotImplementedError("a rollout enters the queue by its status")

    async def dequeue(self, limit: int = 1) -> Sequence[str]:
        raise NotImplementedError("a rollout leaves the queue by its status")

    async def discard(self, items: Sequence[str]) -> int:
        raise NotImplementedError("a rollout leaves the queue by its status")
