"""Files of dead server processes, folded into one for each type of metric.

What the dead have counted stays in the totals, and neither the folder nor a scrape grows with every
process there has ever been. The folder's owner does it: the process that starts the server
processes, when it starts and whenever one of them ends.

The sums are written into new files first. They count from the moment the manifest
(:data:`MANIFEST`) names them, and the files it says they replace stop counting at the same moment,
whether they are deleted already or not. So a crash at any point loses nothing and counts nothing
twice; the next run finishes the work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from agl.utils.mapped_file import (
    OWN_FILE,
    SUFFIX,
    DamagedFileError,
    MappedFile,
    is_abandoned,
    locked,
    read_entries,
)

logger = logging.getLogger(__name__)

MANIFEST = "folded.json"
FOLD_LOCK = "fold.lock"
COMMIT_LOCK = "commit.lock"
"""Held for a moment while files change places; whoever lists the folder holds it, too (shared)."""

FOLDED_FILE = re.compile(r"(?P<prefix>[a-z]+(?:_[a-z]+)?)_folded-(?P<generation>\d+)\.db")

_BATCH = 256
_LOCK_TRIES = 3
_LEFTOVER_SECONDS = 600
Entry = tuple[float, float]


@dataclass(slots=True)
class Manifest:
    """What has been folded.

    Attributes:
        generation: Counts the runs.
        files: The folded files that count.
        replaces: Files that count no more, deleted or about to be.
        folded: Files folded since the folder was made.
    """

    generation: int = 0
    files: list[str] = field(default_factory=list[str])
    replaces: list[str] = field(default_factory=list[str])
    folded: int = 0

    def counts(self, name: str) -> bool:
        """Whether what a file holds is part of the totals."""
        if FOLDED_FILE.fullmatch(name):
            return name in self.files
        return name not in self.replaces


def read_manifest(folder: Path) -> Manifest:
    """What the folder's manifest says; an empty one when there is none.

    Raises:
        DamagedFileError: It cannot be understood.
        OSError: It cannot be read.
    """
    try:
        text = (folder / MANIFEST).read_text()
    except FileNotFoundError:
        return Manifest()
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError("not an object")
        fields = cast("dict[str, Any]", content)
        return Manifest(
            generation=int(fields["generation"]),
            files=[str(name) for name in fields["files"]],
            replaces=[str(name) for name in fields["replaces"]],
            folded=int(fields["folded"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{MANIFEST}: {error}") from error


def fold_dead(folder: Path) -> int:
    """Fold the files of all dead writers; returns how many.

    Never raises because of what it finds: a file that cannot be read is left where it is, and a
    folder that has no room is left as it was.
    """
    folded = 0
    if not (_dead_files(folder) or (folder / MANIFEST).exists()):
        return 0
    with locked(folder / FOLD_LOCK, wait=False) as got:
        dead = _dead_files(folder) if got else []
        for start in range(0, len(dead) or got, _BATCH):
            folded += _fold(folder, dead[start : start + _BATCH])
    return folded


def _fold(folder: Path, dead: Sequence[Path]) -> int:
    try:
        manifest = _finished(folder)
        return _fold_batch(folder, manifest, dead) if dead else 0
    except DamagedFileError as error:
        logger.warning("%s: dead server processes are not folded (%s).", folder, error)
    except OSError as error:
        logger.warning(
            "%s: files of dead server processes stay as they are for now (%s).",
            folder,
            error.strerror or error,
        )
    return 0


def _finished(folder: Path) -> Manifest:
    """The manifest, once all is as it says."""
    manifest = read_manifest(folder)
    for name in manifest.replaces:
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob(f"*_folded-*{SUFFIX}"):
        if FOLDED_FILE.fullmatch(path.name) and path.name not in manifest.files:
            path.unlink(missing_ok=True)  # a run that did not get as far as the manifest
    _remove_leftovers(folder)
    return manifest


def _remove_leftovers(folder: Path) -> None:
    """Files that somebody was killed over before they got their name."""
    for path in folder.glob(".*.new"):
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            if old and is_abandoned(path):
                path.unlink()


def _dead_files(folder: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []
    return [folder / name for name in names if OWN_FILE.fullmatch(name) and _is_dead(folder / name)]


def _is_dead(path: Path) -> bool:
    # The exporter takes the same look at times, and holds the lock while it does.
    for _ in range(_LOCK_TRIES):
        with _exclusively(path) as got:
            if got:
                return True
        if not is_abandoned(path):
            return False
        time.sleep(0.002)
    return False


def _exclusively(path: Path) -> contextlib.AbstractContextManager[bool]:
    return locked(path, wait=False) if path.exists() else contextlib.nullcontext(False)


def _fold_batch(folder: Path, manifest: Manifest, dead: Sequence[Path]) -> int:
    by_prefix: dict[str, list[Path]] = {}
    gone: list[str] = []
    for path in dead:
        match = OWN_FILE.fullmatch(path.name)
        prefix = match["prefix"] if match else ""
        if prefix.startswith("gauge_live"):
            gone.append(path.name)
        elif prefix != "gauge_all":  # each of its values stands for one process
            by_prefix.setdefault(prefix, []).append(path)
    generation = manifest.generation + 1
    files = {_prefix_of(name): name for name in manifest.files}
    made: list[Path] = []
    count = len(gone)
    try:
        for prefix, paths in by_prefix.items():
            old = files.get(prefix)
            summed, read = _sum_up(prefix, folder / old if old else None, paths)
            if read:
                path = folder / f"{prefix}_folded-{generation}{SUFFIX}"
                _write(path, summed)
                made.append(path)
                count += len(read)
                gone += [p.name for p in read] + ([old] if old else [])
                files[prefix] = path.name
        if not gone:
            return 0
        new = Manifest(generation, sorted(files.values()), gone, manifest.folded + count)
        _commit(folder, new)
    except OSError:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return count


def _prefix_of(name: str) -> str:
    match = FOLDED_FILE.fullmatch(name)
    return match["prefix"] if match else ""


def _sum_up(
    prefix: str, old: Path | None, dead: Iterable[Path]
) -> tuple[dict[bytes, Entry], list[Path]]:
    """Values of the folded file and the dead ones; also those of them that could be read."""
    total = read_entries(old) if old is not None else {}
    read: list[Path] = []
    for path in dead:
        try:
            values = read_entries(path)
        except (DamagedFileError, OSError) as error:
            logger.warning("%s of a dead server process cannot be folded (%s).", path, error)
            continue
        _merge(prefix, total, values)
        read.append(path)
    return total, read


def _merge(prefix: str, total: dict[bytes, Entry], values: dict[bytes, Entry]) -> None:
    for key, new in values.items():
        known = total.get(key)
        if known is None:
            total[key] = new
        elif prefix == "gauge_min":
            total[key] = new if new[0] < known[0] else known
        elif prefix == "gauge_max":
            total[key] = new if new[0] > known[0] else known
        elif prefix == "gauge_mostrecent":
            total[key] = new if new[1] > known[1] else known
        else:
            total[key] = (known[0] + new[0], 0.0)


def _write(path: Path, values: dict[bytes, Entry]) -> None:
    path.unlink(missing_ok=True)
    file = MappedFile(path, lock=False)
    try:
        for key, (value, timestamp) in values.items():
            file.put(*file.add(key), value, timestamp)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        file.close()


def _commit(folder: Path, manifest: Manifest) -> None:
    new = folder / f".{MANIFEST}.{secrets.token_hex(4)}.new"
    with locked(folder / COMMIT_LOCK):
        try:
            new.write_text(json.dumps(asdict(manifest)))
            new.replace(folder / MANIFEST)
        finally:
            new.unlink(missing_ok=True)
        for name in manifest.replaces:
            (folder / name).unlink(missing_ok=True)
