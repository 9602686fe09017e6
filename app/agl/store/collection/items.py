"""What a collection in memory is made of: items by primary key, and their indexes.

Nothing here locks; the collection does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as Sized
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from agl.errors import DuplicatedPrimaryKeyError, NotFoundError
from agl.store.collection.ordered import OrderedIntegers
from agl.store.collection.query import Condition, Query, predicate
from agl.utils.ownership import replace

T = TypeVar("T")

Key = str | tuple[str, ...]
"""The value of the primary key; a tuple if it has several fields."""


class Selection(NamedTuple):
    """Items that match, in insertion order, and their number where it is known beforehand."""

    items: Iterable[Any]
    total: int | None


class _Candidates(NamedTuple):
    """Items of which some match, found through ``used`` conditions that need no more checking."""

    items: Iterable[Any]
    total: int
    used: tuple[Condition, ...]


class Items(Generic[T]):
    """Items by primary key, in insertion order.

    The first field of a composite key has an index. So has each field of ``indexes``, whose
    buckets keep insertion order however often the field changes.
    """

    def __init__(
        self, item_type: type[T], primary_keys: tuple[str, ...], indexes: tuple[str, ...]
    ) -> None:
        self.item_type = item_type
        self.primary_keys = primary_keys
        self.key_of: Callable[[T], Key] = attrgetter(*primary_keys)
        self._single = primary_keys[0] if len(primary_keys) == 1 else None
        self._by_key: dict[Key, T] = {}
        self._groups: dict[str, dict[Key, None]] = {}
        self._indexes: dict[str, dict[Any, OrderedIntegers]] = {field: {} for field in indexes}
        self._ordinals: dict[Key, int] | None = {} if indexes else None
        self._keys: dict[int, Key] = {}
        self._next_ordinal = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> T | None:
        return self._by_key.get(key)

    def group(self, first_key: str) -> Sized[Key]:
        """Keys whose first field has this value."""
        if self._single is None:
            return self._groups.get(first_key, ())
        return (first_key,) if first_key in self._by_key else ()

    def newest(self, first_key: str, field: str) -> T | None:
        """The item of a group with the highest ``field``."""
        keys = self.group(first_key)
        if len(keys) == 1:
            return self._by_key[next(iter(keys))]
        items = [self._by_key[key] for key in keys]
        return max(items, key=attrgetter(field), default=None)

    # Changes

    def add_all(self, items: Sequence[T]) -> None:
        """Add new items, all or none."""
        added: dict[Key, T] = {}
        for item in items:
            key = self._checked_key(item)
            if key in self._by_key or key in added:
                raise DuplicatedPrimaryKeyError(
                    f"Item with primary key(s) {self._describe(item)} already exists"
                )
            added[key] = item
        for key, item in added.items():
            self._add(key, item)

    def add_missing(self, items: Sequence[T]) -> list[T]:
        """Add the items whose key is free, and return them."""
        keyed = [(self._checked_key(item), item) for item in items]
        added: list[T] = []
        for key, item in keyed:
            if key not in self._by_key:
                self._add(key, item)
                added.append(item)
        return added

    def require_all(self, items: Sequence[T]) -> None:
        """Refuse items that are not stored."""
        for item in items:
            if self._checked_key(item) not in self._by_key:
                raise NotFoundError(
                    f"Item with primary key(s) {self._describe(item)} does not exist"
                )

    def put(self, item: T, fields: Sequence[str] | None) -> T:
        """Add a new item; of a stored one replace all or the given fields."""
        key = self._checked_key(item)
        stored = self._by_key.get(key)
        if stored is None:
            self._add(key, item)
            return item
        if fields is not None:
            changes = {field: getattr(item, field) for field in fields}
            item = cast("T", replace(cast("Any", stored), **changes))
        self._by_key[key] = item
        if self._ordinals is not None:
            self._reindex(self._ordinals[key], stored, item, fields)
        return item

    def remove(self, key: Key) -> None:
        """Remove a stored item."""
        item = self._by_key.pop(key)
        if self._single is None:
            group = self._groups[key[0]]
            del group[key]
            if not group:
                del self._groups[key[0]]
        if self._ordinals is not None:
            ordinal = self._ordinals.pop(key)
            del self._keys[ordinal]
            for field, buckets in self._indexes.items():
                _leave(buckets, getattr(item, field), ordinal)

    def _add(self, key: Key, item: T) -> None:
        self._by_key[key] = item
        if self._single is None:
            first = key[0]
            group = self._groups.get(first)
            if group is None:
                self._groups[first] = {key: None}
            else:
                group[key] = None
        if self._ordinals is not None:
            ordinal = self._next_ordinal
            self._next_ordinal += 1
            self._ordinals[key] = ordinal
            self._keys[ordinal] = key
            for field, buckets in self._indexes.items():
                _enter(buckets, getattr(item, field), ordinal)

    def _reindex(self, ordinal: int, old: T, new: T, fields: Sequence[str] | None) -> None:
        if fields is not None and self._indexes.keys().isdisjoint(fields):
            return
        for field, buckets in self._indexes.items():
            before, after = getattr(old, field), getattr(new, field)
            if before != after:
                _leave(buckets, before, ordinal)
                _enter(buckets, after, ordinal)

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
        required = query.required
        candidates = self._candidates(required)
        remaining = [condition for condition in required if condition not in candidates.used]
        matches = predicate(remaining, query.optional)
        if matches is None:
            return Selection(candidates.items, candidates.total)
        return Selection(filter(matches, candidates.items), None)

    def _candidates(self, required: tuple[Condition, ...]) -> _Candidates:
        exact = {c.field: c for c in required if c.operator == "exact"}
        by_key = self._by_exact_key(exact) or self._in_group(exact)
        if by_key is not None:
            return by_key
        if self._ordinals is not None:
            for condition in required:
                found = self._by_index(condition) or self._by_first_keys(condition)
                if found is not None:
                    return found
        return _Candidates(self._by_key.values(), len(self._by_key), ())

    def _by_exact_key(self, exact: dict[str, Condition]) -> _Candidates | None:
        try:
            used = tuple([exact[field] for field in self.primary_keys])
        except KeyError:
            return None
        values = tuple([condition.operand for condition in used])
        item = self._lookup(values[0] if self._single is not None else values)
        return _Candidates(() if item is None else (item,), 0 if item is None else 1, used)

    def _lookup(self, key: Any) -> T | None:
        try:
            return self._by_key.get(key)
        except TypeError:  # an operand that cannot be hashed equals no string
            return None

    def _in_group(self, exact: dict[str, Condition]) -> _Candidates | None:
        condition = exact.get(self.primary_keys[0])
        if condition is None or not isinstance(condition.operand, str):
            return None
        keys = self.group(condition.operand)
        return _Candidates(map(self._by_key.__getitem__, keys), len(keys), (condition,))

    def _by_index(self, condition: Condition) -> _Candidates | None:
        buckets = self._indexes.get(condition.field)
        if buckets is None or condition.operator == "contains":
            return None
        operands = [condition.operand] if condition.operator == "exact" else condition.operand
        try:
            chosen = [bucket for value in operands if (bucket := buckets.get(value)) is not None]
        except TypeError:
            return None
        ordinals: Iterator[int] = iter(chosen[0]) if len(chosen) == 1 else heapq.merge(*chosen)
        return _Candidates(
            map(self._by_ordinal, ordinals), sum(len(bucket) for bucket in chosen), (condition,)
        )

    def _by_first_keys(self, condition: Condition) -> _Candidates | None:
        """Few first keys out of many, brought back into insertion order."""
        if condition.operator != "within" or condition.field != self.primary_keys[0]:
            return None
        firsts: Any = condition.operand
        if not isinstance(firsts, dict):  # not hashable, to be compared one by one
            return None
        keys = list(chain.from_iterable(map(self.group, cast("dict[Any, None]", firsts))))
        keys.sort(key=cast("dict[Key, int]", self._ordinals).__getitem__)
        return _Candidates(map(self._by_key.__getitem__, keys), len(keys), (condition,))

    def _by_ordinal(self, ordinal: int) -> T:
        return self._by_key[self._keys[ordinal]]


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
