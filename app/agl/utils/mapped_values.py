"""The values of this process's metrics, kept in files that it shares with the exporter.

:func:`install` makes ``prometheus_client`` use them, in the place where its documentation has a
``MultiProcessValue`` set. Recording never fails and never waits for room: what the folder has no
room for stays in memory, is counted, and is written as soon as there is room again.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from agl.utils.mapped_file import MappedFile, new_writer
from agl.utils.metrics_catalogue import CATALOGUE

logger = logging.getLogger(__name__)

TEND_SECONDS = 2.0
"""How often a process looks whether its files are still there, and tries again to write."""

DROPPED = "agl_metrics_dropped"
_RETRY_SECONDS = 1.0
_SUM_UNIT = float(1 << 24)
"""Sums of our own histograms are whole multiples of 1/16,777,216 s: they add up exactly in any
order, so folding files or starting the exporter again never makes a total a hair smaller, which
Prometheus would take for a restart from zero."""


class FolderWriter:
    """The files of this process: one for each type of metric, made when the first value comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.values: list[MappedValue] = []
        self.on_tend: list[Callable[[], None]] = []
        """Called every :data:`TEND_SECONDS`, in the thread that tends the files."""

        self._files: dict[str, MappedFile] = {}
        self._identity = ""
        self._full = self._missing = False
        self._retry_at = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        row = CATALOGUE[f"{DROPPED}_total"]
        self._dropped = MappedValue(self, row.type, DROPPED, row.series, (), (), row.help)
        os.register_at_fork(
            before=self._lock_for_fork,
            after_in_parent=self._unlock_after_fork,
            after_in_child=self._start_again,
        )
        atexit.register(self.retire)

    def add(self, value: MappedValue) -> None:
        """Take a new value in; it is written when there is room."""
        with self.lock:
            self.values.append(value)
            if not self._missing:
                self._place((value,))
            elif time.monotonic() >= self._retry_at:
                self._place(self.values)

    def late(self) -> None:
        """A value that has no place was changed: give it one, or count that it is not written."""
        if time.monotonic() < self._retry_at or not self._place(self.values):
            self._dropped.bump()

    def tend(self) -> None:
        """Make files anew that somebody deleted, and write what had no room."""
        with self.lock:
            if any(not file.is_in_place() for file in self._files.values()):
                self._start_over()
            if self._full and time.monotonic() >= self._retry_at:
                self._place(self.values)

    def retire(self) -> None:
        """The end of this process: what only the living show goes."""
        self._stop.set()
        for prefix, file in self._files.items():
            if prefix.startswith("gauge_live") and file.is_in_place():
                with contextlib.suppress(OSError):
                    file.path.unlink()

    def _place(self, values: Iterable[MappedValue]) -> bool:
        """Give a place to those that have none; returns whether that went well."""
        try:
            for value in values:
                if value.file is None:
                    value.settle(self._file(value.prefix))
        except OSError as error:
            self._note_full(error)
            return False
        self._missing = False
        if self._full:
            self._full = False
            logger.info("%s takes metrics again; nothing is missing.", self.folder)
        return True

    def _file(self, prefix: str) -> MappedFile:
        file = self._files.get(prefix)
        if file is None:
            if not self._files:
                self._identity = new_writer()
                self.folder.mkdir(exist_ok=True)
            file = MappedFile(self.folder / f"{prefix}_{self._identity}.db")
            self._files[prefix] = file
            self._start_thread()
        return file

    def _note_full(self, error: OSError) -> None:
        self._missing = True
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if not self._full:
            self._full = True
            logger.warning(
                "%s takes no more metrics (%s): new series are kept in memory and counted in "
                "%s_total until it does; make it larger (AGL_MULTIPROC_SIZE in the bundle).",
                self.folder,
                error.strerror or error,
                DROPPED,
            )

    def _start_over(self) -> None:
        logger.warning(
            "Metrics files of this process were deleted from %s; writing them anew, with all that "
            "it has counted.",
            self.folder,
        )
        self._let_go()
        self._place(self.values)

    def _let_go(self) -> None:
        self._missing = True
        for value in self.values:
            value.file = None
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agl-metrics-files", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        stop = self._stop
        while not stop.wait(TEND_SECONDS):
            try:
                self.tend()
                for call in self.on_tend:
                    call()
            except Exception:
                logger.exception("Looking after the metrics files failed.")

    # A child starts from zero, in files of its own, which it makes when it first counts something.

    def _lock_for_fork(self) -> None:
        self.lock.acquire()

    def _unlock_after_fork(self) -> None:
        self.lock.release()

    def _start_again(self) -> None:
        self.lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = None
        self._full = False
        self._retry_at = 0.0
        self._let_go()
        for value in self.values:
            value.forget()


class MappedValue:
    """One number of a metric; what ``prometheus_client`` calls a value."""

    _multiprocess = True

    def __init__(
        self,
        writer: FolderWriter,
        typ: str,
        metric_name: str,
        name: str,
        labelnames: Sequence[str],
        labelvalues: Sequence[str],
        help_text: str,
        multiprocess_mode: str = "",
        **_: Any,
    ) -> None:
        from prometheus_client.mmap_dict import mmap_key

        self._writer = writer
        self.prefix = f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ
        self._key = mmap_key(
            metric_name, name, list(labelnames), list(labelvalues), help_text
        ).encode()
        self._unit = _SUM_UNIT if typ == "histogram" and _is_own_sum(name) else 0.0
        self._value = self._timestamp = 0.0
        self._at = self._dense_at = 0
        self.file: MappedFile | None = None
        writer.add(self)

    def inc(self, amount: float) -> None:
        if self._unit:
            amount = _in_units(amount, self._unit)
        with self._writer.lock:
            self._value += amount
            self._timestamp = 0.0
            self._write()

    def set(self, value: float, timestamp: float | None = None) -> None:
        with self._writer.lock:
            self._value = value
            self._timestamp = timestamp or 0.0
            self._write()

    def bump(self) -> None:
        """Count one, without looking for a place."""
        with self._writer.lock:
            self._value += 1
            if self.file is not None:
                self.file.put(self._at, self._dense_at, self._value)

    def get(self) -> float:
        with self._writer.lock:
            return self._value

    def set_exemplar(self, exemplar: object) -> None:
        """Exemplars have no place in the files."""

    def get_exemplar(self) -> None:
        return None

    def settle(self, file: MappedFile) -> None:
        """Take a place in a file, and write what was counted so far."""
        self._at, self._dense_at = file.add(self._key)
        self.file = file
        file.put(self._at, self._dense_at, self._value, self._timestamp)

    def forget(self) -> None:
        """Begin at zero again, with no place."""
        self._value = self._timestamp = 0.0

    def _write(self) -> None:
        if self.file is None:
            self._writer.late()
        else:
            self.file.put(self._at, self._dense_at, self._value, self._timestamp)


_writer: FolderWriter | None = None
_install_lock = threading.Lock()


def install(folder: Path) -> FolderWriter:
    """Let ``prometheus_client`` keep what it counts from now on in files of ``folder``.

    Metrics made before stay where they are. Returns the writer; calling it again with the same
    folder changes nothing.
    """
    global _writer
    with _install_lock:
        if _writer is None or _writer.folder != folder:
            _writer = FolderWriter(folder)
            _use(_writer)
        return _writer


def installed() -> FolderWriter | None:
    """The writer of this process, if there is one."""
    return _writer


def _use(writer: FolderWriter) -> None:
    from prometheus_client import values

    class Value(MappedValue):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(writer, *args, **kwargs)

    values.ValueClass = Value


def _is_own_sum(name: str) -> bool:
    return name.startswith("agl_") and name.endswith("_sum")


def _in_units(amount: float, unit: float) -> float:
    scaled = amount * unit
    if scaled - scaled != 0.0:  # infinite, or not a number
        return amount
    return round(scaled) / unit
