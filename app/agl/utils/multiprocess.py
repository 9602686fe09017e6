"""The folder that server processes and the exporter share (``PROMETHEUS_MULTIPROC_DIR``).

Every process writes its own files into it; the exporter reads all of them. Nothing here ever wipes
a folder: files of earlier processes are part of the totals. ``prometheus_client`` decides on import
whether it writes to files or to memory, so it is only imported inside functions, once the variable
is settled.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import itertools
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.config import MULTIPROC_DIR_VARIABLE, load_environment, set_multiproc_dir
from agl.errors import EnvironmentFault
from agl.utils.metrics_buffer import events

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

ROOM_NEEDED = 256 << 10

logger = logging.getLogger(__name__)

_own_folder: Path | None = None
_slot = ""
_slot_lock: int | None = None


def prepare_writer_folder(folder: str) -> Path:
    """Make sure that metrics files can be written into ``folder``; creates it when it is missing.

    Raises:
        EnvironmentFault: The folder cannot be created, is no folder, takes no new file or is full.
    """
    path = _existing_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=path) as probe:
            # Its files are mapped: what does not fit there later kills the process without a word.
            os.posix_fallocate(probe.fileno(), 0, ROOM_NEEDED)
            return path
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise EnvironmentFault(
                f"{MULTIPROC_DIR_VARIABLE}: the folder {path} is full",
                remedy="make it larger (AGL_MULTIPROC_SIZE in the bundle), or wipe it while "
                "nothing writes to it",
            ) from exc
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE}: the folder {path} is not writable for uid {os.geteuid()} "
            f"({_reason(exc)})",
            remedy=f"make it writable (chown {os.geteuid()} {path}) or set the variable to a "
            "folder that is",
        ) from exc


def prepare_reader_folder(folder: str | None) -> Path:
    """Make sure that metrics files can be read from ``folder``; creates it when it is missing.

    Raises:
        EnvironmentFault: No folder was named, or it cannot be created or read.
    """
    if folder is None:
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE} is not set",
            remedy="set it to the folder the store writes its metrics into",
        )
    path = _existing_folder(folder)
    try:
        with os.scandir(path) as entries:
            next(entries, None)
        if not os.access(path, os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as exc:
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE}: the folder {path} is not readable for uid "
            f"{os.geteuid()} ({_reason(exc)})",
            remedy="run the exporter as the user that owns it, or give that user rx on it",
        ) from exc
    return path


def setup_multiprocess_prometheus() -> None:
    """Switch ``prometheus_client`` to files shared between processes.

    Must run before ``prometheus_client`` is imported. Without ``PROMETHEUS_MULTIPROC_DIR`` a
    temporary folder is made, named in the variable, and removed when this process exits. A folder
    the user named is kept, with a warning that files of earlier runs count into the totals.
    """
    global _own_folder
    folder = load_environment().multiproc_dir
    if folder is not None:
        if _own_folder is None or Path(folder) != _own_folder:
            logger.warning(
                "%s is set to %s: it is kept as it is, so files of earlier runs count into the "
                "totals; wipe it between runs, while nothing writes to it, to start from zero.",
                MULTIPROC_DIR_VARIABLE,
                folder,
            )
        return
    _own_folder = Path(tempfile.mkdtemp(prefix="agl-metrics-"))
    set_multiproc_dir(_own_folder)
    atexit.register(_remove_own_folder, _own_folder, os.getpid())
    logger.debug("Created the metrics folder %s.", _own_folder)


def use_metrics_slots() -> None:
    """Name this process's metrics files, and those of its forks, by slot instead of by pid.

    A slot is a number that one living process has; when that ends, be it by kill -9, the next one
    goes on with its files. So the number of files does not grow with the number of processes there
    have ever been, and nothing is counted twice. Must run before the first metric is made; without
    the shared folder it does nothing.
    """
    if load_environment().multiproc_dir is None:
        return
    from prometheus_client import values as untyped

    values: Any = untyped
    take_metrics_slot(first=True)
    values.ValueClass = values.MultiProcessValue(_slot_name)


def take_metrics_slot(*, first: bool = False) -> None:
    """Take a slot of its own; to be called in a fork of a process that uses slots.

    Args:
        first: Take one although no parent uses slots.

    Raises:
        OSError: The folder takes no lock file.
    """
    global _slot, _slot_lock
    folder = load_environment().multiproc_dir
    if folder is None or (_slot_lock is None and not first):
        return
    if _slot_lock is not None:
        os.close(_slot_lock)  # the parent's, which keeps its own descriptor of it
    _slot, _slot_lock = _free_slot(Path(folder))


def _free_slot(folder: Path) -> tuple[str, int]:
    for number in itertools.count():
        lock = os.open(folder / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return f"slot-{number}", lock
        except BlockingIOError:
            os.close(lock)
    raise AssertionError("unreachable")


def _slot_name() -> str:
    return _slot


def get_prometheus_registry() -> CollectorRegistry:
    """The registry to expose: of all processes when the shared folder is set, else of this one.

    What this process has kept back is written first; other processes follow within moments.

    Raises:
        ImportError: ``prometheus_client`` is not installed.
        ValueError: ``PROMETHEUS_MULTIPROC_DIR`` is set to something that is no folder.
    """
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    if load_environment().multiproc_dir is None:
        return REGISTRY
    events.flush()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return registry


def shutdown_metrics(
    server: object = None, worker: object = None, *_: object, **__: object
) -> None:
    """Mark a server process as gone; usable as gunicorn's ``child_exit`` hook.

    Does nothing unless this module made the folder: in a folder the user named, another container
    may use the same pid. Problems are logged, never raised.

    Args:
        server: gunicorn's arbiter; not looked at.
        worker: The worker that ended; ``None`` means this process.
    """
    if _own_folder is None:
        return
    pid = getattr(worker, "pid", None)
    try:
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(  # pyright: ignore[reportUnknownMemberType]  # untyped there
            pid if isinstance(pid, int) else os.getpid(), str(_own_folder)
        )
    except Exception:
        logger.exception("Could not mark process %s as gone in %s.", pid, _own_folder)


def _existing_folder(folder: str) -> Path:
    if not folder.strip():
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE} is set, but empty",
            remedy="name a folder in it, or unset it",
        )
    path = Path(folder)
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError as exc:
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE}: {path} is not a directory",
            remedy="set the variable to a directory",
        ) from exc
    except (OSError, ValueError) as exc:
        raise EnvironmentFault(
            f"{MULTIPROC_DIR_VARIABLE}: the folder {path} is missing and cannot be created "
            f"({_reason(exc)})",
            remedy=f"create it (mkdir -p {path}) or set the variable to an existing directory",
        ) from exc
    return path


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _remove_own_folder(folder: Path, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        shutil.rmtree(folder, ignore_errors=True)
