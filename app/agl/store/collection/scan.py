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

SLICE = 512
"""Items looked at in one go: a millisecond or two, when nothing of them is in a cache."""


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
    """The matches of a scan: how many there are, and those of one page.

    Args:
        order: Field and direction to sort by; ``None`` for the order they come in.
        limit: Most matches of the page, -1 for no limit.
        offset: Matches before the page.
    """

    def __init__(self, order: tuple[str, Order] | None, limit: int, offset: int) -> None:
        self._order = order
        self._offset = min(offset, sys.maxsize)
        self._end = sys.maxsize if limit == -1 else min(offset + limit, sys.maxsize)
        self._runs: list[list[T]] = []
        self._nulls: list[T] = []
        self.total = 0

    def add(self, found: list[T]) -> None:
        """Take the next matches.

        Raises:
            InvalidRequestError: they cannot be compared.
        """
        if self._order is None:
            run = found[max(self._offset - self.total, 0) : max(self._end - self.total, 0)]
        elif self._offset < self._end:
            run = self._sorted(found, *self._order)
        else:
            run = []
        if run:
            self._runs.append(run)
        self.total += len(found)

    def _sorted(self, found: list[T], name: str, direction: Order) -> list[T]:
        present = [item for item in found if getattr(item, name) is not None]
        nulls = [item for item in found if getattr(item, name) is None]
        self._nulls += nulls[: self._end - len(self._nulls)]
        return sort_items(present, name, direction)[: self._end]

    def slices(self) -> Iterator[list[T]]:
        """The page, in parts that nobody has to wait for long, and of which some are empty.

        Raises:
            InvalidRequestError: the matches cannot be compared.
        """
        if self._order is None:
            yield from self._runs
        else:
            yield from self._merged(*self._order)
        while self._runs:  # to let go of a million takes its time as well
            self._runs.pop()
            yield []

    def _merged(self, name: str, direction: Order) -> Iterator[list[T]]:
        key: Any = attrgetter(name)
        merged = heapq.merge(*self._runs, key=key, reverse=direction == "desc")
        ordered = chain(merged, self._nulls)
        seen = 0
        try:
            while part := list(islice(ordered, min(SLICE, self._end - seen))):
                yield part[max(self._offset - seen, 0) :]
                seen += len(part)
        except TypeError as error:
            raise InvalidRequestError(f"Failed to sort items by {name!r}: {error}") from None
