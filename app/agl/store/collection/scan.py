"""Looking through many items without keeping others waiting.

A scan goes through a collection in slices, between which the event loop may run other calls, and
yet sees every item as it was when the scan began: whoever changes an item that is still ahead of a
scan leaves the old one with it.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from agl.errors import InvalidRequestError
from agl.store.collection.query import Order, Predicate, sort_items

T = TypeVar("T")

SLICE = 2048
"""Items looked at in one go: a millisecond or two."""


class Scan(Generic[T]):
    """One walk through items; steps and changes of items exclude each other.

    Args:
        items: All items by ordinal.
        ordinals: Those to look at, in ascending order, whatever is added or removed meanwhile.
        matches: Which of them are wanted; ``None`` for all.
    """

    def __init__(
        self, items: Mapping[int, T], ordinals: Iterator[int], matches: Predicate | None
    ) -> None:
        self._items = items
        self._ordinals = ordinals
        self._matches = matches
        self._before: dict[int, T] = {}
        self._seen = -1

    def keep(self, ordinal: int, item: T) -> None:
        """An item is about to be changed or removed."""
        if ordinal > self._seen:
            self._before.setdefault(ordinal, item)

    def step(self) -> list[T] | None:
        """The matches of the next slice; ``None`` at the end."""
        ordinals = list(islice(self._ordinals, SLICE))
        if not ordinals:
            return None
        self._seen = ordinals[-1]
        found = list(map(self._items.get, ordinals))
        if self._before:
            found = [self._before.pop(n, item) for n, item in zip(ordinals, found, strict=True)]
        there = [item for item in found if item is not None]
        return there if self._matches is None else list(filter(self._matches, there))


class Gathered(Generic[T]):
    """The matches of a scan: how many there are, and those in front.

    Args:
        order: Field and direction to sort by; ``None`` for the order they come in.
        wanted: How many from the front are needed; ``None`` for all.
    """

    def __init__(self, order: tuple[str, Order] | None, wanted: int | None) -> None:
        self._order = order
        self._wanted = None if wanted is None else min(wanted, sys.maxsize)
        self._runs: list[list[T]] = []
        self._nulls: list[T] = []
        self._kept = 0
        self.total = 0

    def add(self, found: list[T]) -> None:
        """Take the next matches.

        Raises:
            InvalidRequestError: they cannot be compared.
        """
        self.total += len(found)
        if self._order is None:
            left = len(found) if self._wanted is None else self._wanted - self._kept
            self._take(found[: max(left, 0)])
        elif self._wanted != 0:
            name = self._order[0]
            present = [item for item in found if getattr(item, name) is not None]
            self._nulls += [item for item in found if getattr(item, name) is None]
            self._take(sort_items(present, *self._order)[: self._wanted])

    def _take(self, run: list[T]) -> None:
        if run:
            self._runs.append(run)
            self._kept += len(run)

    def slices(self) -> Iterator[list[T]]:
        """The matches in order, so many at a time that nobody has to wait for long.

        Raises:
            InvalidRequestError: they cannot be compared.
        """
        ordered = islice(chain(self._merged(), self._nulls), self._wanted)
        try:
            while part := list(islice(ordered, SLICE)):
                yield part
        except TypeError as error:
            name = self._order[0] if self._order else ""
            raise InvalidRequestError(f"Failed to sort items by {name!r}: {error}") from None

    def _merged(self) -> Iterator[T]:
        if self._order is None:
            return chain.from_iterable(self._runs)
        name, direction = self._order
        key: Any = attrgetter(name)
        return iter(heapq.merge(*self._runs, key=key, reverse=direction == "desc"))
