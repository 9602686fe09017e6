"""A metrics folder as a collector of ``prometheus_client``."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agl.utils.folder_reader import FolderReader
from agl.utils.folder_text import metrics_of


class FolderCollector(Collector):
    """What all processes have written, bad files left out."""

    def __init__(self, folder: Path) -> None:
        self._reader = FolderReader(folder)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return metrics_of(self._reader.read())


_collectors: dict[Path, FolderCollector] = {}
_lock = threading.Lock()


def collector_of(folder: Path) -> FolderCollector:
    """The collector of a folder; one for all callers, since it remembers what it has read."""
    with _lock:
        known = _collectors.get(folder)
        if known is None:
            known = _collectors[folder] = FolderCollector(folder)
        return known
