"""The folder that server processes and the exporter share (``PROMETHEUS_MULTIPROC_DIR``).

Every process writes its own files into it; the exporter reads all of them. Nothing here ever wipes
a folder: files of earlier processes are part of the totals, and are folded (see
:mod:`agl.utils.metrics_folding`). ``prometheus_client`` decides on import whether it writes to
files or to memory, so it is only imported inside functions, once the variable is settled.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agl.config import MULTIPROC_DIR_VARIABLE, load_environment, set_multiproc_dir
from agl.errors import EnvironmentFault
from agl.utils.metrics_buffer import events
from agl.utils.metrics_folding import fold_dead

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

_own_folder: Path | None = None


def prepare_writer_folder(folder: str) -> Path:
    """Make sure that metrics files can be written into ``folder``; creates it when it is missing.

    What dead processes have counted is folded; nothing of living ones is touched.

    Raises:
        EnvironmentFault: The folder cannot be created, is no folder, or takes no new file for
            another reason than being full: what writes into it copes with that.
    """
    path = _existing_folder(folder)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as exc:
        if exc.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise EnvironmentFault(
                f"{MULTIPROC_DIR_VARIABLE}: the folder {path} is not writable for uid "
                f"{os.geteuid()} ({_reason(exc)})",
                remedy=f"make it writable (chown {os.geteuid()} {path}) or set the variable to a "
                "folder that is",
            ) from exc
    fold_dead(path)
    return path


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
    """Let ``prometheus_client`` write into the shared folder in our way, here and in forks.

    Done by every ``PrometheusMetricsBackend``; without the shared folder it does nothing. See
    :mod:`agl.utils.mapped_values`.
    """
    folder = load_environment().multiproc_dir
    if folder:
        from agl.utils.mapped_values import install

        install(Path(folder))


def take_metrics_slot() -> None:
    """Write the figures of this process, under a slot of its own; for processes that serve."""
    if load_environment().multiproc_dir:
        from agl.utils.process_metrics import report_this_process

        report_this_process()


def get_prometheus_registry() -> CollectorRegistry:
    """The registry to expose: of all processes when the shared folder is set, else of this one.

    What this process has kept back is written first; other processes follow within moments.

    Raises:
        ImportError: ``prometheus_client`` is not installed.
        ValueError: ``PROMETHEUS_MULTIPROC_DIR`` is set to something that is no folder.
    """
    from prometheus_client import REGISTRY, CollectorRegistry

    folder = load_environment().multiproc_dir
    if folder is None:
        return REGISTRY
    if not Path(folder).is_dir():
        raise ValueError(f"{MULTIPROC_DIR_VARIABLE} is set to {folder!r}, which is no folder")
    from agl.utils.folder_collector import collector_of

    events.flush()
    registry = CollectorRegistry()
    registry.register(collector_of(Path(folder)))
    return registry


def shutdown_metrics(
    server: object = None, worker: object = None, *_: object, **__: object
) -> None:
    """Take over what dead server processes have counted; usable as gunicorn's ``child_exit`` hook.

    Their files are known by their locks, not by a pid, so another container's are never touched.
    In a folder that this module made, files that ``prometheus_client`` itself named after the
    worker's pid are seen to as well. Problems are logged, never raised.

    Args:
        server: gunicorn's arbiter; not looked at.
        worker: The worker that ended; ``None`` means this process.
    """
    try:
        folder = load_environment().multiproc_dir
        if _own_folder is not None:
            _mark_dead(getattr(worker, "pid", None), _own_folder)
        if folder:
            fold_dead(Path(folder))
    except Exception:
        logger.exception("Could not take over what ended server processes have counted.")


def _mark_dead(pid: object, folder: Path) -> None:
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(  # pyright: ignore[reportUnknownMemberType]  # untyped there
        pid if isinstance(pid, int) else os.getpid(), str(folder)
    )


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
