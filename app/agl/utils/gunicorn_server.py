"""Several server processes on one port: gunicorn's arbiter with uvicorn workers.

Kept apart from :mod:`agl.utils.server_launcher` because importing gunicorn costs time and memory
that a single server process has no use for.
"""

# gunicorn and uvicorn_worker carry no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from uvicorn_worker import UvicornWorker

from agl.utils.garbage import spare_old_objects
from agl.utils.http_protocol import LimitedHttpProtocol
from agl.utils.multiprocess import take_metrics_slot
from agl.utils.rolling import RollingArbiter, report, reports_of
from agl.utils.server_runners import GRACE_SECONDS, ORPHAN_POLL_SECONDS, TellingServer

__all__ = ["GunicornApp", "PropagatingLogger", "PropagatingWorker", "RollingArbiter"]

DRAIN_SECONDS = 0.5

_LOGGERS = ("gunicorn.error", "gunicorn.access", "uvicorn.error", "uvicorn.access")


class GunicornApp(BaseApplication):
    """Serves an application object; options that are unknown or ``None`` are ignored."""

    def __init__(self, app: Any, options: Mapping[str, Any] | None = None) -> None:
        self.application = app
        self.options = dict(options or {})
        super().__init__()

    def load_config(self) -> None:
        settings: Any = self.cfg
        for name, value in self.options.items():
            if name in settings.settings and value is not None:
                settings.set(name.lower(), value)

    def load(self) -> Any:
        return self.application


class PropagatingLogger(Logger):
    """Leaves the writing of log lines to the process's own logging set-up."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        _propagate(access_log=bool(cfg.accesslog))


class DrainingHttpProtocol(LimitedHttpProtocol):
    """Gives an idle connection a moment in which its next request is still answered.

    A process that stops would otherwise close connections on which clients are just about to send
    something, which they would have to send again without knowing what became of it.
    """

    _next_is_last = False

    def shutdown(self) -> None:
        if self._busy():
            super().shutdown()
        else:
            self._next_is_last = True
            self.loop.call_later(DRAIN_SECONDS, super().shutdown)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._next_is_last:
            self.cycle.keep_alive = False


class ReportingServer(TellingServer):
    """A uvicorn server that tells the arbiter when it serves."""

    def __init__(self, config: Any, worker: PropagatingWorker) -> None:
        super().__init__(config)
        self._worker = worker

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            report(self._worker)


class PropagatingWorker(UvicornWorker):
    """A uvicorn worker whose lines also go to the process's own logging set-up.

    After ``max_requests`` it asks the arbiter for a successor, and serves until that one does.
    """

    CONFIG_KWARGS = {  # noqa: RUF012 - as the base class has it
        **UvicornWorker.CONFIG_KWARGS,
        "http": DrainingHttpProtocol,
        "timeout_graceful_shutdown": GRACE_SECONDS,
        "server_header": False,
        "limit_max_requests": None,
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config.timeout_notify = int(ORPHAN_POLL_SECONDS)
        self.leaving_since = 0.0
        self.outdated = self.reported = False
        self._server: ReportingServer | None = None
        _propagate(access_log=bool(self.cfg.accesslog))

    def init_process(self) -> None:
        spare_old_objects(forked=True)
        take_metrics_slot()
        super().init_process()

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        self._server = ReportingServer(self.config, self)
        self._install_sigquit_handler()
        wrapped: list[Any] = self.sockets
        await self._server.serve(sockets=[listener.sock for listener in wrapped])
        if not self._server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def callback_notify(self) -> None:
        await super().callback_notify()
        if os.getppid() != self.ppid:  # the arbiter was killed; gunicorn leaves this to its worker
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._has_served_enough() and reports_of(self) == 1:
            report(self)

    def _has_served_enough(self) -> bool:
        server = self._server
        return server is not None and server.server_state.total_requests >= self.max_requests


def _propagate(*, access_log: bool) -> None:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = access_log or not name.endswith(".access")
