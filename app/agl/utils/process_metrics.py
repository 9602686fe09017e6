"""Figures of each server process: memory, CPU time, open files, garbage collections, and more.

``prometheus_client`` leaves them out as soon as processes share a folder. Here each serving process
writes its own, under the number of a *slot*: the lowest that no other living process has. A process
that takes another's place takes its slot, so the series stay as many as there are processes.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from agl.utils.mapped_values import FolderWriter, installed
from agl.utils.metrics_catalogue import CATALOGUE

SAMPLE_SECONDS = 4.0
NO_SLOT = "none"
"""The slot of processes on a folder that knows no locks."""

_GENERATIONS = 3


class _Slot:
    """A number that no other living process on the folder has, as long as this one lives."""

    def __init__(self, folder: Path) -> None:
        self.name, self._fd = _take_slot(folder)

    def leave(self) -> None:
        """In a fork: the parent goes on having it."""
        if self._fd >= 0:
            os.close(self._fd)


def _take_slot(folder: Path) -> tuple[str, int]:
    for number in itertools.count():
        try:
            fd = os.open(
                folder / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
        except OSError:
            break
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return str(number), fd
        except BlockingIOError:
            os.close(fd)
        except OSError:
            os.close(fd)
            break
    return NO_SLOT, -1


class ProcessFigures:
    """Writes the figures of this process into the shared folder.

    Args:
        writer: Where the values are kept.
    """

    def __init__(self, writer: FolderWriter) -> None:
        from prometheus_client import Counter

        def gauge(name: str) -> Any:
            return _gauge(f"agl_process_{name}")

        def counter(name: str) -> Any:
            row = CATALOGUE[f"agl_process_{name}"]
            return Counter(row.series, row.help, row.label_names, registry=None)

        self._pid = os.getpid()
        self._slot = _Slot(writer.folder)
        self._process = psutil.Process()
        self._due = 0.0
        self._cpu = 0.0
        self._collections = [0] * _GENERATIONS
        self._memory = gauge("resident_memory_bytes").labels(self._slot.name)
        self._files = gauge("open_fds").labels(self._slot.name)
        self._threads = gauge("threads").labels(self._slot.name)
        started = gauge("start_time_seconds")
        started.labels(self._slot.name).set(self._process.create_time())
        cpu = counter("cpu_seconds_total")
        self._cpu_seconds = cpu.labels(self._slot.name)
        runs = counter("gc_collections_total")
        self._runs = [runs.labels(self._slot.name, str(n)) for n in range(_GENERATIONS)]
        self._others: dict[str, Any] = {}

    @property
    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def leave(self) -> None:
        """In a fork: leave the slot to the parent."""
        self._slot.leave()

    def tend(self) -> None:
        """Sample, when it is time to."""
        if self.is_of_this_process and time.monotonic() >= self._due:
            self._due = time.monotonic() + SAMPLE_SECONDS
            self.sample()

    def sample(self) -> None:
        """Write the figures as they are now."""
        with self._process.oneshot():
            times = self._process.cpu_times()
            self._memory.set(self._process.memory_info().rss)
            self._files.set(self._process.num_fds())
            self._threads.set(self._process.num_threads())
        spent = times.user + times.system
        self._cpu_seconds.inc(max(spent - self._cpu, 0.0))
        self._cpu = spent
        for generation, stats in enumerate(gc.get_stats()[:_GENERATIONS]):
            runs = stats["collections"]
            self._runs[generation].inc(max(runs - self._collections[generation], 0))
            self._collections[generation] = runs
        for name, read in tuple(_added.items()):
            if name not in self._others:
                self._others[name] = _gauge(name).labels(self._slot.name)
            self._others[name].set(read())


def _gauge(name: str) -> Any:
    from prometheus_client import Gauge

    row = CATALOGUE[name]
    return Gauge(row.series, row.help, row.label_names, registry=None, multiprocess_mode="livemax")


_figures: ProcessFigures | None = None
_lock = threading.Lock()
_added: dict[str, Callable[[], float]] = {}


def add_figure(name: str, read: Callable[[], float]) -> None:
    """Have one more figure written with those of this process, and of its forks.

    Args:
        name: A gauge of the catalogue, with the slot as its label.
        read: Tells its value; called in another thread. Without a shared folder, never.
    """
    _added[name] = read


def report_this_process() -> None:
    """Write the figures of this process from now on; for those that serve, forked or not.

    Does nothing without a shared folder, or when it runs already.
    """
    global _figures
    writer = installed()
    if writer is None:
        return
    with _lock:
        if _figures is not None:
            if _figures.is_of_this_process:
                return
            _figures.leave()
        _figures = ProcessFigures(writer)
        writer.on_tend[:] = [_figures.tend]
        _figures.sample()
