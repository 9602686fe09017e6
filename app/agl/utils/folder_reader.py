"""Everything the processes of a metrics folder have counted, read again and again.

It works while files come, grow, are folded or vanish, and whatever they hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import resource
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agl.utils.folder_files import Floats, FolderFile, Ints, Keys, space_of
from agl.utils.folder_table import Bools, RowId, Sums, Table
from agl.utils.mapped_file import OWN_FILE, DamagedFileError
from agl.utils.metrics_folding import COMMIT_LOCK, FOLDED_FILE, Manifest, read_manifest

logger = logging.getLogger(__name__)

_LOCK_SECONDS = 1.0
_SPARE_FILES = 128
_HAIR = 1e-9
"""Relative difference below which a counter has not fallen, but was added up in another order."""

Listing = dict[str, int]


@dataclass(slots=True)
class Report:
    """What the reader found and did.

    Attributes:
        seconds: How long each phase of the last read took.
        files: Files by kind: ``live``, ``folded``, ``foreign``.
        bytes: What they take on the file system.
        fill_ratio: Share of the file system that is taken; ``None`` when it cannot be told.
        folded: Files of dead processes folded since the folder was made.
        bad: Files that cannot be read, each with the reason.
        bad_keys: Keys that make no sense, or that two files have as different things.
        bad_values: Counts that are negative or no numbers.
        resets: Times that files vanished without being folded, so that totals fell.
        changed_at: When a number was last seen to change (``time.time``); 0 when never.
        present: Whether the folder can be listed.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    files: dict[str, int] = field(default_factory=dict[str, int])
    bytes: int = 0
    fill_ratio: float | None = None
    folded: int = 0
    bad: dict[str, str] = field(default_factory=dict[str, str])
    bad_keys: int = 0
    bad_values: int = 0
    resets: int = 0
    changed_at: float = 0.0
    present: bool = True


@dataclass(frozen=True, slots=True)
class Totals:
    """The state of a folder at one moment."""

    table: Table
    numbers: Floats
    hidden: Bools | None


class FolderReader:
    """Reads one folder; remembers keys and positions.

    Args:
        folder: Where the files are; may come and go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = Report()
        self._lock = threading.Lock()
        self._keys = Keys()
        self._files: dict[str, FolderFile] = {}
        self._layouts: dict[bytes, Ints] = {}
        self._table = Table((), ())
        self._present = b""
        self._totals = Totals(self._table, np.empty(0), None)
        self._generation = 0
        self._damaged_manifest = False
        self._strangers: set[str] = set()
        self._most_open = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES, 0)

    def read(self) -> Totals:
        """Read what has changed and add everything up."""
        with self._lock:
            phases = self.report.seconds = {}
            with _timed(phases, "list"), self._commit_lock():
                manifest = self._read_manifest()
                self._update_files(self._list(), manifest)
            with _timed(phases, "read"):
                for file in self._files.values():
                    self._read_file(file)
            with _timed(phases, "sum"), np.errstate(all="ignore"):
                self._sum(manifest)
                self._look_around(manifest)
            return self._totals

    # Which files there are

    @contextlib.contextmanager
    def _commit_lock(self) -> Generator[None]:
        """Keep files from changing places; a holder that hangs does not stop the reader."""
        try:
            fd = os.open(self.folder / COMMIT_LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield
            return
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        logger.warning("%s is held for long; reading all the same.", COMMIT_LOCK)
                        break
                    time.sleep(0.001)
                except OSError:
                    break
            yield
        finally:
            os.close(fd)

    def _read_manifest(self) -> Manifest | None:
        try:
            manifest = read_manifest(self.folder)
        except (OSError, DamagedFileError) as error:
            if not self._damaged_manifest:
                logger.warning("%s: %s; all folded files count.", self.folder, error)
            self._damaged_manifest = True
            return None
        self._damaged_manifest = False
        return manifest

    def _list(self) -> Listing:
        try:
            with os.scandir(self.folder) as entries:
                listing = {
                    entry.name: entry.inode()
                    for entry in entries
                    if entry.name.endswith(".db") and not entry.name.startswith(".")
                }
        except OSError as error:
            if self.report.present:
                logger.warning("%s cannot be listed: %s.", self.folder, error.strerror)
            self.report.present = False
            return {}
        self.report.present = True
        return listing

    def _update_files(self, listing: Listing, manifest: Manifest | None) -> None:
        counted = {
            name: inode
            for name, inode in listing.items()
            if manifest is None or manifest.counts(name)
        }
        gone = [n for n, file in self._files.items() if counted.get(n) != file.inode]
        self._note_resets(gone, manifest)
        for name in gone:
            self._files.pop(name).close()
        may_open = self._most_open - sum(file.is_open for file in self._files.values())
        files: dict[str, FolderFile] = {}  # in the order of the folder, as prometheus_client's
        for name, inode in counted.items():
            space = space_of(name)
            if space is not None:
                file = self._files.get(name)
                if file is None:
                    file = self._new_file(name, inode, space, keep_open=may_open > 0)
                    may_open -= 1
                files[name] = file
        self._files = files
        self._strangers = {name for name in counted if name not in files}

    def _new_file(self, name: str, inode: int, space: str, *, keep_open: bool) -> FolderFile:
        path = os.fspath(self.folder / name)
        file = FolderFile(path, name, inode, space, self._keys.of(space))
        if keep_open:
            with contextlib.suppress(OSError):  # reading it says what is wrong
                file.open()
        return file

    def _note_resets(self, gone: Sequence[str], manifest: Manifest | None) -> None:
        generation = 0 if manifest is None else manifest.generation
        folded = generation > self._generation
        lost = [
            name
            for name in gone
            if not name.startswith("gauge_") and not (folded and _is_of_writers(name))
        ]
        if lost:
            self.report.resets += 1
            logger.warning(
                "%d files vanished from %s (%s, ...): totals fall, which counts as a reset.",
                len(lost),
                self.folder,
                lost[0],
            )
        self._generation = generation

    # What they hold

    def _read_file(self, file: FolderFile) -> None:
        before, fault = file.layout, file.fault
        keep = file.is_open or (not file.layout.size and len(self._files) < self._most_open)
        file.read()
        if not keep:
            file.close()
        if file.layout is not before:
            digest = hashlib.blake2b(file.layout.tobytes(), digest_size=16).digest()
            file.layout = self._layouts.setdefault(digest, file.layout)
        if file.fault and file.fault != fault:
            logger.warning(
                "%s cannot be read: %s. It is skipped; what was read before still counts.",
                self.folder / file.name,
                file.fault,
            )

    def _sum(self, manifest: Manifest | None) -> None:
        files = [file for file in self._files.values() if not _shows_a_dead_process(file)]
        present = np.zeros(len(self._keys), bool)
        layouts = {id(file.layout): file.layout for file in files}
        for layout in layouts.values():
            present[layout] = True
        state = present.tobytes()
        if state != self._present or not self._table.covers(len(self._keys)):
            self._table = Table(self._keys.all, np.flatnonzero(present).tolist())
            self._present = state
            self._layouts = {
                digest: layout for digest, layout in self._layouts.items() if id(layout) in layouts
            }
        self._take(self._table.sum(files))

    def _take(self, sums: Sums) -> None:
        before = self._totals
        numbers = sums.numbers
        old = _aligned(before, self._table)
        hair = self._table.counting & (numbers < old) & (numbers > old - abs(old) * _HAIR)
        if hair.any():
            numbers = np.where(hair, old, numbers)
        if before.table is not self._table or not np.array_equal(numbers, before.numbers, True):
            self.report.changed_at = time.time()
        self.report.bad_values = sums.bad_values
        self._totals = Totals(self._table, numbers, sums.hidden)

    def _look_around(self, manifest: Manifest | None) -> None:
        report = self.report
        kinds = [_kind(name) for name in (*self._files, *self._strangers)]
        report.files = {kind: kinds.count(kind) for kind in ("live", "folded", "foreign")}
        report.bad = {file.name: file.fault for file in self._files.values() if file.fault}
        report.bad |= dict.fromkeys(self._strangers, "its name is none of a metrics file")
        if self._damaged_manifest:
            report.bad["folded.json"] = "it cannot be understood"
        report.bad_keys = sum(file.bad_keys for file in self._files.values())
        report.bad_keys += self._table.conflicts
        report.folded = 0 if manifest is None else manifest.folded
        report.bytes = sum(file.taken_bytes for file in self._files.values())
        try:
            usage = os.statvfs(self.folder)
            taken = usage.f_blocks - usage.f_bfree
            room = taken + usage.f_bavail  # without what is reserved, as df counts
            report.fill_ratio = taken / room if room else None
        except OSError:
            report.fill_ratio = None


def _aligned(totals: Totals, table: Table) -> Floats:
    """The numbers as they were, in the order of ``table``; 0 where there was none."""
    if totals.table is table:
        return totals.numbers
    known: dict[RowId, float] = dict(
        zip(totals.table.samples, totals.numbers.tolist(), strict=True)
    )
    return np.array([known.get(sample, 0.0) for sample in table.samples])


def _shows_a_dead_process(file: FolderFile) -> bool:
    """Whether only its living writer would make it count; seen by the lock of the writer."""
    if not (file.name.startswith("gauge_live") and file.is_open and OWN_FILE.fullmatch(file.name)):
        return False
    return file.is_abandoned()


def _is_of_writers(name: str) -> bool:
    return bool(OWN_FILE.fullmatch(name) or FOLDED_FILE.fullmatch(name))


def _kind(name: str) -> str:
    if OWN_FILE.fullmatch(name):
        return "live"
    return "folded" if FOLDED_FILE.fullmatch(name) else "foreign"


@contextlib.contextmanager
def _timed(phases: dict[str, float], name: str) -> Generator[None]:
    started = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - started
