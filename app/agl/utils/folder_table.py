"""From the numbers in files to the samples that are exposed.

A table is prepared once for the keys there are: which number goes where, and which samples come out
of it. As long as no key is new, a scrape is a few additions of whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agl.utils.folder_files import Floats, FolderFile, Ints, Key, LabelPairs, number_text

Bools = NDArray[np.bool_]
RowId = tuple[str, LabelPairs]
_ADDED = ("", "sum")
_LAST_SUFFIXES = ("_created", "_gcount", "_gsum")
"""Samples the text format puts at the end of their metric."""


@dataclass(slots=True)
class Family:
    """A metric and its samples; ``rows`` are positions in the table's numbers."""

    name: str
    type: str
    mode: str
    help: str
    samples: list[RowId] = field(default_factory=list[RowId])
    rows: list[int] = field(default_factory=list[int])
    runs: dict[int, int] = field(default_factory=dict[int, int])
    """Where in ``samples`` the buckets of one label set begin, and how many they are."""

    buckets: dict[LabelPairs, dict[float, int]] = field(
        default_factory=dict[LabelPairs, dict[float, int]]
    )
    plain: dict[RowId, int] = field(default_factory=dict[RowId, int])


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the numbers of one layout go."""

    slots: Ints
    distinct: bool
    only_grow: Bools


@dataclass(frozen=True, slots=True)
class Sums:
    """What a table makes of the files: a number for each of its rows.

    Attributes:
        numbers: In the order of ``Table.samples``.
        hidden: Rows that nobody has set yet; ``None`` when there are none.
        bad_values: Numbers that make no sense and were left out.
    """

    numbers: Floats
    hidden: Bools | None
    bad_values: int


class Table:
    """What becomes of each key, and which samples are exposed.

    Args:
        keys: All keys there are.
        present: Numbers of those that files hold now, ascending.
    """

    def __init__(self, keys: Sequence[Key], present: Iterable[int]) -> None:
        self.families: list[Family] = []
        self.conflicts = 0
        """Keys of a metric that another file has as something else."""

        self._keys = keys
        self._slots: Ints = np.full(len(keys), -1, np.int64)
        self._slot_count = 0
        self._by_name: dict[str, Family] = {}
        self._places: dict[int, tuple[Ints, _Places]] = {}
        self._histograms: list[tuple[Ints, int]] = []
        for number in present:
            self._take(number, keys[number])
        self._slots[self._slots < 0] = self._slot_count  # a slot nobody looks at
        self._rows = self._lay_out()
        self.samples: list[RowId] = [s for family in self.families for s in family.samples]
        types = [family.type for family in self.families for _ in family.samples]
        self.counting: Bools = np.array([typ != "gauge" for typ in types], bool)

    def covers(self, keys: int) -> bool:
        """Whether it was made when there were that many keys."""
        return len(self._slots) == keys

    def _take(self, number: int, key: Key) -> None:
        family = self._by_name.get(key.metric)
        if family is None:
            family = self._by_name[key.metric] = Family(key.metric, key.type, key.mode, key.help)
            self.families.append(family)
        elif (family.type, family.mode) != (key.type, key.mode):
            self.conflicts += 1
            return
        if key.is_bucket:
            places = family.buckets.setdefault(key.labels, {})
            slot = places.get(key.bound)
            if slot is None:
                slot = places[key.bound] = self._new_slot()
        else:
            slot = family.plain.get((key.name, key.labels))
            if slot is None:
                slot = family.plain[key.name, key.labels] = self._new_slot()
        self._slots[number] = slot

    def _new_slot(self) -> int:
        self._slot_count += 1
        return self._slot_count - 1

    def _lay_out(self) -> Ints:
        """Samples of all families; returns where their numbers are found after :meth:`sum`."""
        self._lay_out_buckets()
        for family in self.families:
            for sample, slot in family.plain.items():
                name, labels = sample
                if not (name == f"{family.name}_count" and labels in family.buckets):
                    family.samples.append(sample)
                    family.rows.append(slot)
            special = {f"{family.name}{s}": i for i, s in enumerate(_LAST_SUFFIXES, 1)}
            if any(name in special for name, _ in family.samples):
                pairs = zip(family.samples, family.rows, strict=True)
                ordered = sorted(pairs, key=lambda pair: special.get(pair[0][0], 0))
                family.samples = [sample for sample, _ in ordered]
                family.rows = [row for _, row in ordered]
            family.plain.clear()
            family.buckets.clear()
        return np.array([row for family in self.families for row in family.rows], np.int64)

    def _lay_out_buckets(self) -> None:
        by_size: dict[int, list[tuple[Family, LabelPairs, list[tuple[float, int]]]]] = {}
        for family in self.families:
            for labels, places in family.buckets.items():
                by_size.setdefault(len(places), []).append((family, labels, sorted(places.items())))
        start = self._slot_count + 1
        for size, histograms in by_size.items():
            slots = [slot for _, _, places in histograms for _, slot in places]
            self._histograms.append((np.array(slots, np.int64), size))
            for family, labels, places in histograms:
                family.runs[len(family.samples)] = size
                for at, (bound, _) in enumerate(places):
                    le = (*labels, ("le", number_text(bound)))
                    family.samples.append((f"{family.name}_bucket", le))
                    family.rows.append(start + at)
                family.samples.append((f"{family.name}_count", labels))
                family.rows.append(start + size - 1)
                start += size

    def sum(self, files: Sequence[FolderFile]) -> Sums:
        """Put the numbers of all files together."""
        pool = np.zeros(self._slot_count + 1)
        hidden = np.zeros(self._slot_count + 1, bool)
        bad = self._add(pool, [file for file in files if _mode(file) in _ADDED])
        for mode in ("min", "max", "mostrecent", "all"):
            self._combine(pool, hidden, mode, [file for file in files if _mode(file) == mode])
        parts = [pool]
        parts += [
            pool[slots].reshape(-1, n).cumsum(axis=1).ravel() for slots, n in self._histograms
        ]
        numbers = np.concatenate(parts)[self._rows]
        if not hidden.any():
            return Sums(numbers, None, bad)
        shown = np.zeros(sum(map(len, parts)), bool)
        shown[: len(hidden)] = hidden
        return Sums(numbers, shown[self._rows], bad)

    def _add(self, pool: Floats, files: Sequence[FolderFile]) -> int:
        bad = 0
        groups: dict[int, list[FolderFile]] = {}
        for file in files:
            if len(file.values):
                groups.setdefault(id(file.layout), []).append(file)
        for group in groups.values():
            places = self._places_of(group[0].layout)
            total = np.zeros(len(places.slots))
            for file in group:
                values = file.values
                if not values.min() >= 0:
                    wrong = places.only_grow & ~(values >= 0)
                    if wrong.any():
                        bad += int(wrong.sum())
                        values = np.where(wrong, 0.0, values)
                total += values
            if places.distinct:
                pool[places.slots] += total
            else:
                np.add.at(pool, places.slots, total)
        return bad

    def _combine(self, pool: Floats, hidden: Bools, mode: str, files: Sequence[FolderFile]) -> None:
        seen = np.zeros(len(pool), bool)
        newest = np.zeros(len(pool))
        for file in files:
            slots, values = self._places_of(file.layout).slots, file.values
            before = pool[slots]
            if mode == "min":
                take = ~seen[slots] | (values < before)
            elif mode == "max":
                take = ~seen[slots] | (values > before)
            elif mode == "mostrecent" and file.timestamps is not None:
                take = file.timestamps > newest[slots]
                hidden[slots] |= ~seen[slots]
                hidden[slots[take]] = False
                newest[slots] = np.where(take, file.timestamps, newest[slots])
                pool[slots] = np.where(take, values, before)
                seen[slots[take]] = True
                continue
            else:
                take = np.ones(len(slots), bool)
            pool[slots] = np.where(take, values, before)
            seen[slots] = True

    def _places_of(self, layout: Ints) -> _Places:
        known = self._places.get(id(layout))
        if known is not None:
            return known[1]
        slots = self._slots[layout]
        numbers: list[int] = layout.tolist()
        only_grow = np.array([self._keys[n].only_grows for n in numbers], bool)
        places = _Places(slots, len(np.unique(slots)) == len(slots), only_grow)
        self._places[id(layout)] = layout, places  # kept, so that its id stays its own
        return places


def _mode(file: FolderFile) -> str:
    return file.space.split(":")[1] if ":" in file.space else ""
