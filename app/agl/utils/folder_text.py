"""Samples as text: lines prepared once, into which a scrape only puts the numbers."""

from __future__ import annotations

import secrets
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
        self._bound = secrets.token_hex(8)  # in place of a bucket's bound, until it is known
        self._heads: dict[int, str] = {}
        self._lines: list[str] = []
        for family in table.families:
            self._add(family, encoder)
        self._pieces: list[str] = [""] * (2 * len(self._lines))
        self._pieces[::2] = [self._heads.get(i, "") + line for i, line in enumerate(self._lines)]

    def _add(self, family: Family, encoder: Encoder) -> None:
        metric = Metric(family.name, family.help, family.type)
        bounds: dict[int, list[str]] = {}
        at = 0
        while at < len(family.samples):
            name, labels = family.samples[at]
            size = family.runs.get(at)
            if size is None:
                metric.add_sample(name, dict(labels), 0.0)
                at += 1
            else:  # one line stands for all buckets of a label set
                les = [labels[-1][1] for _, labels in family.samples[at : at + size]]
                bounds[len(metric.samples)] = les
                metric.add_sample(name, {**dict(labels), "le": self._bound}, 0.0)
                at += size
        head: list[str] = []
        seen = 0
        for line in encoder(Given((metric,))).decode().removesuffix(_END).split("\n")[:-1]:
            if line.startswith("# "):
                head.append(f"{line}\n")
                continue
            if head:
                self._heads[len(self._lines)] = "".join(head)
                head = []
            prefix = line[: line.rindex(" ") + 1]
            les = bounds.get(seen)
            seen += 1
            if les is None:
                self._lines.append(prefix)
            else:
                before, after = prefix.split(self._bound)
                self._lines += [f"{before}{le}{after}" for le in les]

    def text(self, totals: Totals) -> str:
        """The samples, without the end mark of OpenMetrics."""
        bits, at = np.unique(totals.numbers.view(np.int64), return_inverse=True)
        unique = bits.view(np.float64)
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
