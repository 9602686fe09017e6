"""gunicorn's arbiter, made to replace its worker processes one by one.

A worker is replaced when SIGHUP asks for it or when it asks itself (``max_requests``): first its
successor starts and reports that it serves, then the old one is told to stop. All of them share
one listening socket, which the arbiter keeps, so no connection is refused meanwhile.
"""

# gunicorn carries no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from agl.errors import AglError

logger = logging.getLogger("agl.utils.server_launcher")

_RETRY_SECONDS = 1.0
"""Pause after a worker that could not start, once others have served."""


def report(worker: Any) -> None:
    """Tell the arbiter, from the worker's process: the first time that it serves, the second time
    that it wants to be replaced."""
    os.pwrite(worker.tmp.fileno(), b".", reports_of(worker))
    worker.notify()  # writing has touched the time by which the arbiter sees that it is alive
    os.kill(worker.ppid, signal.SIGCHLD)


def reports_of(worker: Any) -> int:
    """How often the worker has reported."""
    return os.fstat(worker.tmp.fileno()).st_size


class RollingArbiter(Arbiter):
    """Keeps ``workers`` processes serving.

    Differs from gunicorn's own arbiter: SIGHUP replaces one process after the other and survives
    settings that cannot be used; a worker that cannot start ends everything only as long as none
    ever served; SIGINT stops as gracefully as SIGTERM; SIGUSR2 does nothing.

    Args:
        app: The application, with gunicorn's settings.
        on_ready: Called once, when the first worker serves.
        on_death: Called when a worker has ended that was not told to, before its successor starts.
    """

    def __init__(
        self,
        app: Any,
        on_ready: Callable[[], None] | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self._on_ready = on_ready
        self._on_death = on_death
        self._has_served = False
        self._not_before = 0.0
        self._stopping = False
        super().__init__(app)

    # What gunicorn calls

    def reload(self) -> None:
        """Read the settings again and replace every worker; keep everything if that fails."""
        try:
            self.app.reload()
        except AglError as error:
            logger.error("SIGHUP: nothing was changed: %s", error)
            return
        except Exception:
            logger.exception("SIGHUP: nothing was changed: the settings could not be read")
            return
        self.setup(self.app)
        for worker in self._workers():
            worker.outdated = True
        logger.info("SIGHUP: replacing %d server processes one by one.", len(self.WORKERS))

    def manage_workers(self) -> None:
        self._look_for_reports()
        leaving = [worker for worker in self._workers() if worker.leaving_since]
        serving = [worker for worker in self._workers() if not worker.leaving_since]
        outdated = [worker for worker in serving if worker.outdated]
        if len(serving) < self.num_workers:
            self._start(self.num_workers - len(serving))
        elif len(serving) > self.num_workers:
            if not outdated:
                self._let_go(_oldest(serving))
            elif all(worker.reported for worker in serving if not worker.outdated):
                self._let_go(_oldest(outdated))
        elif outdated and not leaving:
            self._start(1)
        self._end_overdue(leaving)

    def stop(self, graceful: bool = True) -> None:
        self._stopping = True
        super().stop(graceful)

    def reap_workers(self) -> None:
        self._look_for_reports()
        before = dict(self.WORKERS)
        self._reap()
        if self._stopping:
            return
        ended: list[Any] = [before[pid] for pid in before.keys() - self.WORKERS.keys()]
        if self._on_death is not None and any(not worker.leaving_since for worker in ended):
            self._on_death()
        if all(worker.reported or worker.leaving_since for worker in ended):
            return
        if not self._has_served:
            raise HaltServer("No server process could start.", self.WORKER_BOOT_ERROR)
        self._not_before = time.monotonic() + _RETRY_SECONDS

    def _reap(self) -> None:
        while True:
            try:
                super().reap_workers()
                return
            except HaltServer:
                continue  # one that could not start; there may be more to reap

    def handle_int(self) -> None:
        raise StopIteration

    def handle_usr2(self) -> None:
        logger.warning("SIGUSR2 is not supported: new code needs a restart.")

    # Steps

    def _workers(self) -> list[Any]:
        return list(self.WORKERS.values())

    def _look_for_reports(self) -> None:
        for worker in self._workers():
            reports = reports_of(worker)
            worker.reported = reports >= 1
            if reports >= 2 and not worker.outdated:
                logger.info("Replacing server process %s, which has served enough.", worker.pid)
                worker.outdated = True
            if worker.reported and not self._has_served:
                self._has_served = True
                if self._on_ready is not None:
                    self._on_ready()

    def _start(self, count: int) -> None:
        if time.monotonic() < self._not_before:
            return
        for _ in range(count):
            self.spawn_worker()
            if not self.SIG_QUEUE.empty():  # a signal to stop does not wait for all of them
                break

    def _let_go(self, worker: Any) -> None:
        worker.leaving_since = time.monotonic()
        self.kill_worker(worker.pid, signal.SIGTERM)

    def _end_overdue(self, leaving: list[Any]) -> None:
        for worker in leaving:
            if time.monotonic() - worker.leaving_since > self.cfg.graceful_timeout:
                logger.error("Server process %s does not stop; killing it.", worker.pid)
                self.kill_worker(worker.pid, signal.SIGKILL)


def _oldest(workers: list[Any]) -> Any:
    return min(workers, key=lambda worker: worker.age)
