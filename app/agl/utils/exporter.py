"""The exporter: scrapes of a metrics folder, together with what it can say about itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from prometheus_client import GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import CollectorRegistry

from agl.utils.exporter_state import StateGauges
from agl.utils.folder_reader import FolderReader, Report, Totals
from agl.utils.folder_table import Family
from agl.utils.folder_text import Encoder, Given, Template, compressed
from agl.utils.metrics_catalogue import CATALOGUE, FILE_KINDS, PHASES

_MOST_TEMPLATES = 8
_PROMETHEUS_ACCEPTS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"
"""What Prometheus 2.53 and 3.x ask for, shortened."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A scrape's answer."""

    body: bytes
    headers: dict[str, str]


class Snapshot:
    """One read of the folder, in the formats that were asked for."""

    def __init__(self, exporter: Exporter, totals: Totals) -> None:
        self._exporter = exporter
        self._totals = totals
        self._texts: dict[str, bytes] = {}
        self._zipped: dict[str, bytes] = {}

    def has(self, accept: str, accept_encoding: str) -> bool:
        """Whether :meth:`answer` has nothing left to do for these headers."""
        _, content_type = choose_encoder(accept)
        ready = self._zipped if gzip_accepted(accept_encoding) else self._texts
        return content_type in ready

    def answer(self, accept: str, accept_encoding: str) -> Answer:
        """The samples as a client with these headers wants them."""
        with self._exporter.formatting:
            return self._answer(accept, accept_encoding)

    def _answer(self, accept: str, accept_encoding: str) -> Answer:
        encoder, content_type = choose_encoder(accept)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        body = self._texts.get(content_type)
        if body is None:
            body = self._texts[content_type] = self._exporter.text(
                self._totals, cast("Encoder", encoder), content_type
            )
        if gzip_accepted(accept_encoding):
            headers["Content-Encoding"] = "gzip"
            zipped = self._zipped.get(content_type)
            if zipped is None:
                with self._exporter.spending("compress"):
                    zipped = self._zipped[content_type] = compressed(body)
            body = zipped
        return Answer(body, headers)


class Exporter:
    """Answers scrapes of one folder.

    Args:
        folder: The folder that the server processes write into.
        state: What the store tells about itself; ``None`` when nobody asks it.
    """

    def __init__(self, folder: Path, state: StateGauges | None = None) -> None:
        self._state = state
        self._reader = FolderReader(folder)
        self._templates: dict[str, Template] = {}
        self._spent: dict[str, tuple[int, float]] = dict.fromkeys(sorted(PHASES.values), (0, 0.0))
        self._reads = self._shared = 0
        self.formatting = threading.Lock()
        """Held while a template is in use."""

        own = CollectorRegistry()
        ProcessCollector(registry=own)
        GCCollector(registry=own)
        self._own = own
        self._next: asyncio.Task[Snapshot] | None = None
        self._running: asyncio.Task[Snapshot] | None = None

    async def scrape(self, accept: str, accept_encoding: str) -> Answer:
        """Read the folder and answer. Those who come while it is being read share the next read."""
        task = self._next
        if task is None:
            first = self._read_after(self._running, accept, accept_encoding)
            task = self._next = asyncio.create_task(first)
        else:
            self._shared += 1
        snapshot = await asyncio.shield(task)
        if not snapshot.has(accept, accept_encoding):
            return await asyncio.to_thread(snapshot.answer, accept, accept_encoding)
        return snapshot.answer(accept, accept_encoding)

    async def _read_after(
        self, running: asyncio.Task[Snapshot] | None, accept: str, accept_encoding: str
    ) -> Snapshot:
        if running is not None:
            await asyncio.wait((running,))
        self._running, self._next = self._next, None
        return await asyncio.to_thread(self._read_for, accept, accept_encoding)

    def _read_for(self, accept: str, accept_encoding: str) -> Snapshot:
        snapshot = self.read()
        snapshot.answer(accept, accept_encoding)
        return snapshot

    def prepare(self) -> None:
        """Read what is there and lay out its text, which most of a first scrape is spent on."""
        self._read_for(_PROMETHEUS_ACCEPTS, "gzip")

    def read(self) -> Snapshot:
        """Read the folder now."""
        totals = self._reader.read()
        self._reads += 1
        for phase, seconds in self._reader.report.seconds.items():
            self._note(phase, seconds)
        return Snapshot(self, totals)

    def text(self, totals: Totals, encoder: Encoder, content_type: str) -> bytes:
        """All samples in one format, ours at the end."""
        with self.spending("format"):
            template = self._templates.get(content_type)
            if template is None or template.table is not totals.table:
                if len(self._templates) >= _MOST_TEMPLATES:
                    self._templates.clear()
                template = self._templates[content_type] = Template(totals.table, encoder)
            taken = {family.name for family in totals.table.families}
            ours = [
                metric
                for metric in self._about_itself(totals.table.families)
                if metric.name not in taken
            ]
            state = "" if self._state is None else self._state.text(encoder, content_type)
            return (template.text(totals) + state + encoder(Given(ours)).decode()).encode()

    @contextlib.contextmanager
    def spending(self, phase: str) -> Generator[None]:
        """Note what a phase takes."""
        started = time.perf_counter()
        yield
        self._note(phase, time.perf_counter() - started)

    def _note(self, phase: str, seconds: float) -> None:
        count, total = self._spent[phase]
        self._spent[phase] = count + 1, total + seconds

    def _about_itself(self, families: Iterable[Family]) -> Iterable[Metric]:
        yield self._durations()
        yield _one("reads_total", self._reads)
        yield _one("shared_reads_total", self._shared)
        yield from _folder_metrics(self._reader.report)
        sizes = {known.name: float(len(known.samples)) for known in families}
        yield _each("series", sizes)
        yield from self._own.collect()

    def _durations(self) -> Metric:
        row = CATALOGUE["agl_exporter_scrape_seconds"]
        family = SummaryMetricFamily(row.series, row.help, labels=row.label_names)
        for phase, (count, total) in self._spent.items():
            family.add_metric((phase,), count_value=count, sum_value=total)
        return family


def _folder_metrics(report: Report) -> Iterator[Metric]:
    yield _each("files", {kind: float(report.files.get(kind, 0)) for kind in FILE_KINDS.values})
    yield _one("folder_up", report.present)
    yield _one("folder_bytes", report.bytes)
    if report.fill_ratio is not None:
        yield _one("folder_fill_ratio", report.fill_ratio)
    yield _one("folded_files_total", report.folded)
    yield _one("resets_total", report.resets)
    yield _one("bad_files", len(report.bad))
    yield _one("bad_keys", report.bad_keys)
    yield _one("bad_values", report.bad_values)
    if report.changed_at:
        yield _one("newest_write_age_seconds", max(time.time() - report.changed_at, 0.0))


def _one(name: str, value: float) -> Metric:
    row = CATALOGUE[f"agl_exporter_{name}"]
    if row.type == "counter":
        return CounterMetricFamily(row.series, row.help, value=float(value))
    return GaugeMetricFamily(row.series, row.help, value=float(value))


def _each(name: str, values: Mapping[str, float]) -> Metric:
    row = CATALOGUE[f"agl_exporter_{name}"]
    family = GaugeMetricFamily(row.series, row.help, labels=row.label_names)
    for label, value in sorted(values.items()):
        family.add_metric((label,), value)
    return family
