"""What a collection in memory is made of: items by primary key, and their indexes.

Nothing here locks; the collection does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from agl.errors import DuplicatedPrimaryKeyError, NotFoundError
from agl.store.collection.ordered import OrderedIntegers
from agl.store.collection.query import Condition, Predicate, Query, predicate
from agl.store.collection.scan import Scan
from agl.utils.ownership import merge, share_field_names

T = TypeVar("T")

Key = str | tuple[str, ...]
"""The value of the primary key; a tuple if it has several fields."""


Group = int | dict[tuple[str, ...], int]
"""The only ordinal under a first key field, or several by the other fields of the key."""


class Observer(NamedTuple, Generic[T]):
    """Who is told of changes."""

    fields: frozenset[str]
    """Changes of these."""

    changed: Callable[[T | None, T | None], None]
    """Gets the item as it was, if it was stored, and as it is, if it still is."""


class Selection(NamedTuple):
    """Items that match, in insertion order, and their number where it is known beforehand."""

    items: Iterable[Any]
    total: int | None
    looked_at: int
    """How many items have to be looked at to find them all."""


class _Candidates(NamedTuple):
    """Items of which some match, found through ``used`` conditions that need no more checking."""

    items: Iterable[Any]
    total: int
    used: tuple[Condition, ...]
    ordinals: Callable[[], Iterator[int]]
    """Their ordinals, which later changes of the collection leave alone."""


class Items(Generic[T]):
    """Items by ordinal, which is insertion order, and the ordinals by primary key.

    With a composite key, ordinals are grouped by its first field. Each field of ``indexes`` has an
    index, whose buckets keep insertion order however often the field changes.
    """

    def __init__(
        self, item_type: type[T], primary_keys: tuple[str, ...], indexes: tuple[str, ...]
    ) -> None:
        self.item_type = item_type
        self.primary_keys = primary_keys
        self.key_of: Callable[[T], Key] = attrgetter(*primary_keys)
        self._single = len(primary_keys) == 1
        self._items: dict[int, T] = {}
        self._ordinals: dict[Any, Any] = {}
        """By first key field: an ordinal, or with a composite key a :data:`Group`."""

        self._indexes: dict[str, dict[Any, OrderedIntegers]] = {field: {} for field in indexes}
        self._next_ordinal = 0
        self._scans: list[Scan[T]] = []
        self.observer: Observer[T] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scans": []}  # those who look through this one do not in a copy

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> T | None:
        ordinal = self._ordinal(key)
        return None if ordinal is None else self._items[ordinal]

    def newest(self, first_key: str, field: str) -> T | None:
        """The item of a group with the highest ``field``."""
        ordinals = self._group(first_key)
        if len(ordinals) == 1:
            return self._items[ordinals[0]]
        items = [self._items[ordinal] for ordinal in ordinals]
        return max(items, key=attrgetter(field), default=None)

    def _ordinal(self, key: Key) -> int | None:
        if self._single:
            return self._ordinals.get(key)
        group = self._ordinals.get(key[0])
        if isinstance(group, int):
            return group if self.key_of(self._items[group]) == key else None
        return None if group is None else group.get(key[1:])

    def _group(self, first_key: str) -> Sequence[int]:
        """Ordinals of the items whose first key field has this value, in insertion order."""
        group: Group | None = self._ordinals.get(first_key)
        if group is None:
            return ()
        return tuple(group.values()) if isinstance(group, dict) else (group,)

    # Changes

    def add_all(self, items: Sequence[T]) -> None:
        """Add new items, all or none."""
        keys: set[Key] = set()
        for item in items:
            key = self._checked_key(item)
            if key in keys or self._ordinal(key) is not None:
                raise DuplicatedPrimaryKeyError(
                    f"Item with primary key(s) {self._describe(item)} already exists"
                )
            keys.add(key)
        for item in items:
            self._add(self.key_of(item), item)

    def add_missing(self, items: Sequence[T]) -> list[T]:
        """Add the items whose key is free, and return them."""
        keyed = [(self._checked_key(item), item) for item in items]
        added: list[T] = []
        for key, item in keyed:
            if self._ordinal(key) is None:
                self._add(key, item)
                added.append(item)
        return added

    def require_all(self, items: Sequence[T]) -> None:
        """Refuse items that are not stored."""
        for item in items:
            if self._ordinal(self._checked_key(item)) is None:
                raise NotFoundError(
                    f"Item with primary key(s) {self._describe(item)} does not exist"
                )

    def put(self, item: T, fields: Sequence[str] | None) -> T:
        """Add a new item; of a stored one replace all or the given fields."""
        key = self._checked_key(item)
        ordinal = self._ordinal(key)
        if ordinal is None:
            self._add(key, item)
            return item
        stored = self._items[ordinal]
        if self._scans:
            self._keep_for_scans(ordinal, stored)
        if fields is not None:
            item = merge(stored, item, fields)
        share_field_names(item)
        self._items[ordinal] = item
        self._reindex(ordinal, stored, item, fields)
        observer = self.observer
        if observer is not None and (fields is None or not observer.fields.isdisjoint(fields)):
            observer.changed(stored, item)
        return item

    def remove(self, key: Key) -> None:
        """Remove a stored item."""
        ordinal = cast("int", self._ordinal(key))
        first = cast("str", key) if self._single else key[0]
        group = self._ordinals[first]
        if isinstance(group, dict):
            del group[cast("tuple[str, ...]", key[1:])]
        if not isinstance(group, dict) or not group:
            del self._ordinals[first]
        item = self._items.pop(ordinal)
        self._keep_for_scans(ordinal, item)
        for field, buckets in self._indexes.items():
            _leave(buckets, getattr(item, field), ordinal)
        if self.observer is not None:
            self.observer.changed(item, None)

    def _add(self, key: Key, item: T) -> None:
        share_field_names(item)
        ordinal = self._next_ordinal
        self._next_ordinal += 1
        self._items[ordinal] = item
        if self._single:
            self._ordinals[key] = ordinal
        else:
            self._add_to_group(key, ordinal)
        for field, buckets in self._indexes.items():
            _enter(buckets, getattr(item, field), ordinal)
        if self.observer is not None:
            self.observer.changed(None, item)

    def _add_to_group(self, key: Any, ordinal: int) -> None:
        group = self._ordinals.setdefault(key[0], ordinal)
        if isinstance(group, dict):
            group[key[1:]] = ordinal
        elif group != ordinal:
            only: Any = self.key_of(self._items[group])
            self._ordinals[key[0]] = {only[1:]: group, key[1:]: ordinal}

    def _reindex(self, ordinal: int, old: T, new: T, fields: Sequence[str] | None) -> None:
        if fields is not None and self._indexes.keys().isdisjoint(fields):
            return
        for field, buckets in self._indexes.items():
            before, after = getattr(old, field), getattr(new, field)
            if before != after:
                _leave(buckets, before, ordinal)
                _enter(buckets, after, ordinal)

    def _keep_for_scans(self, ordinal: int, item: T) -> None:
        for scan in self._scans:
            scan.keep(ordinal, item)

    def _checked_key(self, item: T) -> Key:
        if not isinstance(item, self.item_type):
            raise TypeError(
                f"Collection of {self.item_type.__name__} cannot take {type(item).__name__}"
            )
        return self.key_of(item)

    def _describe(self, item: T) -> str:
        return str({field: getattr(item, field) for field in self.primary_keys})

    # Questions

    def select(self, query: Query) -> Selection:
        """The items that match."""
        candidates, matches = self._found(query)
        if matches is None:
            return Selection(candidates.items, candidates.total, candidates.total)
        return Selection(filter(matches, candidates.items), None, candidates.total)

    def begin_scan(self, query: Query) -> Scan[T]:
        """Go through the items that match in slices; :meth:`end_scan` must follow."""
        candidates, matches = self._found(query)
        scan = Scan(self._items, candidates.ordinals(), matches)
        self._scans.append(scan)
        return scan

    def end_scan(self, scan: Scan[T]) -> None:
        self._scans.remove(scan)

    def _found(self, query: Query) -> tuple[_Candidates, Predicate | None]:
        required = query.required
        candidates = self._candidates(required)
        remaining = [condition for condition in required if condition not in candidates.used]
        return candidates, predicate(remaining, query.optional)

    def _candidates(self, required: tuple[Condition, ...]) -> _Candidates:
        exact = {c.field: c for c in required if c.operator == "exact"}
        by_key = self._by_exact_key(exact) or self._in_group(exact)
        if by_key is not None:
            return by_key
        for condition in required:
            found = self._by_index(condition) or self._by_first_keys(condition)
            if found is not None:
                return found
        every = range(self._next_ordinal)
        return _Candidates(self._items.values(), len(self._items), (), lambda: iter(every))

    def _by_exact_key(self, exact: dict[str, Condition]) -> _Candidates | None:
        try:
            used = tuple([exact[field] for field in self.primary_keys])
        except KeyError:
            return None
        values = tuple([condition.operand for condition in used])
        ordinal = self._lookup(values[0] if self._single else values)
        return self._chosen(() if ordinal is None else (ordinal,), *used)

    def _lookup(self, key: Any) -> int | None:
        try:
            return self._ordinal(key)
        except TypeError:  # an operand that cannot be hashed equals no string
            return None

    def _in_group(self, exact: dict[str, Condition]) -> _Candidates | None:
        condition = exact.get(self.primary_keys[0])
        if condition is None or not isinstance(condition.operand, str):
            return None
        return self._chosen(self._group(condition.operand), condition)

    def _by_index(self, condition: Condition) -> _Candidates | None:
        buckets = self._indexes.get(condition.field)
        if buckets is None or condition.operator == "contains":
            return None
        operands = [condition.operand] if condition.operator == "exact" else condition.operand
        try:
            chosen = [bucket for value in operands if (bucket := buckets.get(value)) is not None]
        except TypeError:
            return None
        total = sum(len(bucket) for bucket in chosen)
        items = map(self._items.__getitem__, _in_order(chosen))
        return _Candidates(
            items, total, (condition,), lambda: _in_order([bucket.copy() for bucket in chosen])
        )

    def _by_first_keys(self, condition: Condition) -> _Candidates | None:
        """Few first keys out of many, brought back into insertion order."""
        if condition.operator != "within" or condition.field != self.primary_keys[0]:
            return None
        firsts: Any = condition.operand
        if not isinstance(firsts, dict):  # not hashable, to be compared one by one
            return None
        ordinals = chain.from_iterable(map(self._group, cast("dict[Any, None]", firsts)))
        return self._chosen(sorted(ordinals), condition)

    def _chosen(self, ordinals: Sequence[int], *used: Condition) -> _Candidates:
        items = map(self._items.__getitem__, ordinals)
        return _Candidates(items, len(ordinals), used, lambda: iter(ordinals))


def _in_order(buckets: Sequence[OrderedIntegers]) -> Iterator[int]:
    return iter(buckets[0]) if len(buckets) == 1 else iter(heapq.merge(*buckets))


def _enter(buckets: dict[Any, OrderedIntegers], value: Any, ordinal: int) -> None:
    bucket = buckets.get(value)
    if bucket is None:
        bucket = buckets[value] = OrderedIntegers()
    bucket.add(ordinal)


def _leave(buckets: dict[Any, OrderedIntegers], value: Any, ordinal: int) -> None:
    bucket = buckets[value]
    bucket.remove(ordinal)
    if not bucket:
        del buckets[value]
