"""A sorted set of integers that stays fast with millions of members."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

_BLOCK = 512


class OrderedIntegers:
    """Sorted 64-bit integers in blocks of a few hundred; adding and removing touches one block."""

    __slots__ = ("_blocks", "_count", "_highest")

    def __init__(self) -> None:
        self._blocks: list[array[int]] = []
        self._highest: array[int] = array("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks:
            yield from block

    def copy(self) -> OrderedIntegers:
        """The same members: a millisecond or two for a million."""
        twin = OrderedIntegers()
        twin._blocks = [block[:] for block in self._blocks]
        twin._highest = self._highest[:]
        twin._count = self._count
        return twin

    def add(self, number: int) -> None:
        """Add a number that is not a member."""
        self._count += 1
        if not self._highest or number > self._highest[-1]:
            self._append(number)
            return
        at = bisect_left(self._highest, number)
        block = self._blocks[at]
        insort(block, number)
        if len(block) > 2 * _BLOCK:
            self._split(at)

    def remove(self, number: int) -> None:
        """Remove a member."""
        at = bisect_left(self._highest, number)
        block = self._blocks[at]
        del block[bisect_left(block, number)]
        self._count -= 1
        if block:
            self._highest[at] = block[-1]
        else:
            del self._blocks[at]
            del self._highest[at]

    def _append(self, number: int) -> None:
        if self._blocks and len(self._blocks[-1]) < _BLOCK:
            self._blocks[-1].append(number)
            self._highest[-1] = number
        else:
            self._blocks.append(array("q", (number,)))
            self._highest.append(number)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]
        self._highest.insert(at, block[_BLOCK - 1])
