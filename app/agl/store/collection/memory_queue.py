"""A queue and counters in the memory of the process."""

from __future__ import annotations

import operator
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from agl.store.collection.base import KeyValue, Queue, ensure_numeric
from agl.store.collection.instrumented import (
    KEY_VALUE_OPERATIONS,
    QUEUE_OPERATIONS,
    CollectionsRecorder,
)
from agl.utils.locks import Guarded
from agl.utils.metrics import MetricsBackend

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Combine = Callable[[Any, Any], Any]


class DequeBasedQueue(Guarded, Queue[T]):
    """A queue whose entries can be taken out wherever they are, at no cost for the others."""

    def __init__(
        self,
        item_type: type[T],
        items: Sequence[T] | None = None,
        id: str | None = None,
        tracker: MetricsBackend | None = None,
    ) -> None:
        super().__init__()
        self._item_type = item_type
        self._entries: OrderedDict[int, T] = OrderedDict()
        self._places: dict[Any, int | tuple[int, ...]] = {}
        """Where an item stands; a bare number if only once, which is the rule and saves memory."""

        self._next = 0
        self._append(items or ())
        self._id = id or str(uuid.uuid4())
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, self._id, QUEUE_OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}[{self._item_type.__name__}] ({self._length()})>"

    def item_type(self) -> type[T]:
        return self._item_type

    async def has(self, item: T) -> bool:
        with self._mutex:
            return bool(self._find(item))

    async def enqueue(self, items: Sequence[T]) -> Sequence[T]:
        with self._mutex:
            self._append(items)
        return items

    async def enqueue_missing(self, items: Sequence[T]) -> Sequence[T]:
        with self._mutex:
            added: list[T] = []
            for item in items:
                if not self._find(item):
                    self._append([item])
                    added.append(item)
            return added

    async def dequeue(self, limit: int = 1) -> Sequence[T]:
        taken: list[T] = []
        with self._mutex:
            while len(taken) < limit and self._entries:
                place, item = self._entries.popitem(last=False)
                self._forget(place, item)
                taken.append(item)
        return taken

    async def peek(self, limit: int = 1) -> Sequence[T]:
        with self._mutex:
            return list(islice(self._entries.values(), min(max(0, limit), sys.maxsize)))

    async def discard(self, items: Sequence[T]) -> int:
        with self._mutex:
            gone = 0
            for item in items:
                places = self._find(item)
                for place in places:
                    del self._entries[place]
                gone += len(places)
                self._places.pop(_hashable(item), None)
            return gone

    async def size(self) -> int:
        return self._length()

    def _length(self) -> int:
        return len(self._entries)

    def _append(self, items: Sequence[T]) -> None:
        for item in items:
            if not isinstance(item, self._item_type):
                raise TypeError(
                    f"Queue of {self._item_type.__name__} cannot take {type(item).__name__}"
                )
        for item in items:
            self._entries[self._next] = item
            self._note(self._next, _hashable(item))
            self._next += 1

    def _note(self, place: int, key: Any) -> None:
        known = self._places.get(key)
        if known is None:
            self._places[key] = place
        else:
            self._places[key] = (*_all(known), place)

    def _find(self, item: T) -> tuple[int, ...]:
        key = _hashable(item)
        if key is not None:
            return _all(self._places.get(key, ()))
        return tuple(place for place, other in self._entries.items() if other == item)

    def _forget(self, place: int, item: T) -> None:
        key = _hashable(item)
        left = tuple(other for other in _all(self._places.get(key, ())) if other != place)
        if left:
            self._places[key] = left
        else:
            self._places.pop(key, None)


def _all(places: int | tuple[int, ...]) -> tuple[int, ...]:
    return places if isinstance(places, tuple) else (places,)


def _hashable(item: Any) -> Any:
    """The item as a dictionary key; ``None`` for items that cannot be one."""
    try:
        hash(item)
    except TypeError:
        return None
    return item


class DictBasedKeyValue(Guarded, KeyValue[K, V]):
    """A dictionary. The mapping given at first is copied."""

    def __init__(
        self,
        data: Mapping[K, V] | None = None,
        id: str | None = None,
        tracker: MetricsBackend | None = None,
    ) -> None:
        super().__init__()
        self._values: dict[K, V] = dict(data or {})
        self._id = id or str(uuid.uuid4())
        if tracker is not None:
            CollectionsRecorder(tracker).instrument(self, self._id, KEY_VALUE_OPERATIONS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ({len(self._values)})>"

    async def has(self, key: K) -> bool:
        return key in self._values

    async def get(self, key: K, default: V | None = None) -> V | None:
        return self._values.get(key, default)

    async def set(self, key: K, value: V) -> None:
        self._values[key] = value

    async def inc(self, key: K, amount: V) -> V:
        with self._mutex:
            return self._inc(key, amount)

    async def chmax(self, key: K, value: V) -> V:
        with self._mutex:
            return self._chmax(key, value)

    async def inc_many(self, amounts: Mapping[K, V]) -> Mapping[K, V]:
        with self._mutex:
            return {key: self._inc(key, amount) for key, amount in amounts.items()}

    async def chmax_many(self, values: Mapping[K, V]) -> Mapping[K, V]:
        return self.chmax_many_now(values)

    def chmax_many_now(self, values: Mapping[K, V]) -> Mapping[K, V]:
        with self._mutex:
            return {key: self._chmax(key, value) for key, value in values.items()}

    async def pop(self, key: K, default: V | None = None) -> V | None:
        return self._values.pop(key, default)

    async def size(self) -> int:
        return len(self._values)

    def _inc(self, key: K, amount: V) -> V:
        return self._combine(key, amount, "amount", operator.add)

    def _chmax(self, key: K, value: V) -> V:
        return self._combine(key, value, "value", max)

    def _combine(self, key: K, given: V, what: str, combine: Combine) -> V:
        result = ensure_numeric(given, what)
        if key in self._values:
            result = combine(ensure_numeric(self._values[key], "stored value"), result)
        self._values[key] = cast("V", result)
        return cast("V", result)
