"""Latencies as counts in buckets: percentiles with a known error, and sums over runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

RELATIVE_ERROR = 1 / 512
"""How far a percentile may be from the true one, as a share of it: half a bucket."""

_NANOSECONDS = 1e9


@dataclass
class Histogram:
    """Counts by bucket, a bucket being its lower bound and its width in nanoseconds."""

    largest: int = 0
    """The largest value itself, in nanoseconds."""

    buckets: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    @classmethod
    def of(cls, largest: int, buckets: Iterable[Iterable[int]]) -> Histogram:
        """Make one from rows of lower bound, width and count."""
        found = cls(largest)
        for low, width, count in buckets:
            found.buckets[low, width] += count
        return found

    @property
    def count(self) -> int:
        """How many values it holds."""
        return self.buckets.total()

    def add(self, other: Histogram) -> None:
        """Take in what another one holds."""
        self.largest = max(self.largest, other.largest)
        self.buckets.update(other.buckets)

    def percentile(self, share: float) -> float:
        """Return, in seconds, what the given share of the values (0 to 1) does not exceed.

        It is the value at rank ``ceil(share * count)``, off by at most ``RELATIVE_ERROR``; 0 when
        there are no values.
        """
        rank = max(math.ceil(self.count * share), 1)
        for (low, width), count in sorted(self.buckets.items()):
            rank -= count
            if rank <= 0:
                return min(low + (width - 1) / 2, self.largest) / _NANOSECONDS
        return 0.0

    @property
    def maximum(self) -> float:
        """The largest value in seconds, exactly."""
        return self.largest / _NANOSECONDS


def percentile_of(ordered: Sequence[float], share: float) -> float:
    """Return the value at rank ``ceil(share * count)`` of values in ascending order; exact."""
    rank = max(math.ceil(len(ordered) * share), 1)
    return ordered[rank - 1] if ordered else 0.0
