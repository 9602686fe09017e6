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
from agl.utils.server_runners import ORPHAN_POLL_SECONDS, TellingServer

__all__ = ["Arbiter", "GunicornApp", "PropagatingLogger", "PropagatingWorker"]

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


class PropagatingWorker(UvicornWorker):
    """A uvicorn worker whose lines also go to the process's own logging set-up."""

    CONFIG_KWARGS = {**UvicornWorker.CONFIG_KWARGS, "http": LimitedHttpProtocol}  # noqa: RUF012 - as the base class has it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config.timeout_notify = int(ORPHAN_POLL_SECONDS)
        _propagate(access_log=bool(self.cfg.accesslog))

    def init_process(self) -> None:
        spare_old_objects(forked=True)
        take_metrics_slot()
        super().init_process()

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        server = TellingServer(self.config)
        self._install_sigquit_handler()
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def callback_notify(self) -> None:
        await super().callback_notify()
        if os.getppid() != self.ppid:  # the arbiter was killed; gunicorn leaves this to its worker
            os.kill(os.getpid(), signal.SIGTERM)


def _propagate(*, access_log: bool) -> None:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = access_log or not name.endswith(".access")
