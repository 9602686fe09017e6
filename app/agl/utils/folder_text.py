"""Samples as text: lines prepared once, into which a scrape only puts the numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from prometheus_client.metrics_core import Metric

from agl.utils.folder_files import number_text
from agl.utils.folder_reader import Totals
from agl.utils.folder_table import Family, Table

Encoder = Callable[["Source"], bytes]
"""Makes text of metrics; ``prometheus_client`` chooses it by what a client accepts."""

_END = "# EOF\n"
_GZIP = 31  # zlib's way to ask for gzip's header


class Source(Protocol):
    """What can be asked for metrics."""

    def collect(self) -> Iterable[Metric]: ...


class Given:
    """Metrics that are there already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Template:
    """The text of a table's samples in one format, but for the numbers.

    It is cut out of what ``prometheus_client`` writes, so every name and label is spelt as there.
    """

    def __init__(self, table: Table, encoder: Encoder) -> None:
        self.table = table
        self._heads: dict[int, str] = {}
        self._lines: list[str] = []
        for family in table.families:
            self._add(family, encoder)
        self._pieces: list[str] = [""] * (2 * len(self._lines))
        self._pieces[::2] = [self._heads.get(i, "") + line for i, line in enumerate(self._lines)]

    def _add(self, family: Family, encoder: Encoder) -> None:
        metric = Metric(family.name, family.help, family.type)
        for name, labels in family.samples:
            metric.add_sample(name, dict(labels), 0.0)
        text = encoder(Given((metric,))).decode().removesuffix(_END)
        head: list[str] = []
        for line in text.split("\n")[:-1]:
            if line.startswith("# "):
                head.append(f"{line}\n")
            else:
                if head:
                    self._heads[len(self._lines)] = "".join(head)
                    head = []
                self._lines.append(line[: line.rindex(" ") + 1])

    def text(self, totals: Totals) -> str:
        """The samples, without the end mark of OpenMetrics."""
        unique, at = np.unique(totals.numbers, return_inverse=True)
        numbers = np.array([f"{number_text(n)}\n" for n in unique.tolist()], object)
        pieces = self._pieces
        pieces[1::2] = numbers[at].tolist()
        if totals.hidden is not None:
            pieces = pieces.copy()
            for row in np.flatnonzero(totals.hidden).tolist():
                pieces[2 * row] = self._heads.get(row, "")
                pieces[2 * row + 1] = ""
        return "".join(pieces)


def compressed(body: bytes) -> bytes:
    """``body`` for ``Content-Encoding: gzip``, made in a hurry: scrapes do not travel far."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()


def metrics_of(totals: Totals) -> Iterable[Metric]:
    """The same samples as ``prometheus_client``'s objects."""
    at = 0
    numbers = totals.numbers.tolist()
    for family in totals.table.families:
        metric = Metric(family.name, family.help, family.type)
        for name, labels in family.samples:
            if totals.hidden is None or not totals.hidden[at]:
                metric.add_sample(name, dict(labels), numbers[at])
            at += 1
        yield metric
