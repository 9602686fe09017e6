"""``agl store`` on MongoDB: this process is the arbiter of the processes that serve.

It holds the listening socket, starts the processes and replaces them; it answers no request
itself, and has no connection to MongoDB open when it forks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.cli import store as command
from agl.cli._mongo import NEW_PARTITION, mongo_admin
from agl.cli._serving import check_port_is_free, ignore_stop_signals
from agl.cli._store_options import parse
from agl.config import MongoSettings, StoreSettings
from agl.errors import EnvironmentFault
from agl.logging import setup_process_logging
from agl.utils.certificate import check_certificate
from agl.utils.gunicorn_server import GunicornApp, RollingArbiter
from agl.utils.listening import listen, url
from agl.utils.multiprocess import shutdown_metrics
from agl.utils.server_runners import GRACE_SECONDS

if TYPE_CHECKING:
    from agl.store.mongo import MongoLightningStore
    from agl.store.rest.app import StoreApp
    from agl.utils.metrics import MetricsBackend

logger = logging.getLogger("agl.cli.store")

_KEEP_ALIVE_SECONDS = 30
_KILL_SECONDS = GRACE_SECONDS + 5
"""A process that has not stopped after this time is killed."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - gunicorn's heartbeat files, which have no name
_FIXED = {
    "host": "--host",
    "port": "--port",
    "backend": "--backend",
    "trackers": "--tracker",
}
"""Settings that only a restart can change."""

Made = tuple["StoreApp", dict[str, Any]]


class ReloadableApp(GunicornApp):
    """An application that can be made anew.

    Args:
        made: The application and gunicorn's settings.
        remake: Makes both anew.
    """

    def __init__(self, made: Made, remake: Callable[[], Made]) -> None:
        self._remake = remake
        super().__init__(*made)

    def reload(self) -> None:
        """Make it anew; whatever that raises, nothing has changed then."""
        self.application, self.options = self._remake()
        self.callable = self.application
        super().reload()


class StoreProcesses:
    """One store with all of its server processes.

    Args:
        argv: The command line, parsed again at each SIGHUP.
        prog: The name of the command in messages.
        settings: The command line as it was parsed first.
    """

    def __init__(self, argv: list[str], prog: str, settings: StoreSettings) -> None:
        self._argv = argv
        self._prog = prog
        self._settings = settings
        self._mongo = _named(_mongo_of(settings))
        self._server = mongo_admin("servers").StoreServer(self._mongo.partition_id, settings.port)
        self._instance_id = ""
        self._bind = ""
        self._tracker: MetricsBackend | None = None
        self._store: MongoLightningStore | None = None

    @property
    def partition_id(self) -> str:
        """What is served; the same from the first moment to the last."""
        return self._mongo.partition_id

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code.

        Raises:
            EnvironmentFault: A file or MongoDB cannot be used, or no server process could start.
        """
        settings = self._settings
        token = _checked_token(settings)
        folder = command.metrics_folder(settings)
        check_port_is_free(settings.host, settings.port)
        setup_process_logging(settings.log.level, settings.log.format)
        command.announce(settings, token, folder)
        self._instance_id = asyncio.run(self._prepare())
        self._tracker = command.build_tracker(settings.trackers)
        listener = listen(settings.host, settings.port)
        self._bind = f"fd://{listener.detach()}"  # gunicorn's from here on
        made = self._application(settings, self._mongo, token), self._options(settings)
        self._note_death()  # of whoever served before
        app = ReloadableApp(made, self.remake)
        return _arbitrate(RollingArbiter(app, self._announce_ready, self._note_death))

    def remake(self) -> Made:
        """What the next processes run, by the command line and files as they are now.

        Raises:
            AglError: Something there cannot be used.
        """
        settings = self._still_fixed(parse(self._argv, self._prog))
        token = _checked_token(settings)
        mongo = replace(
            _mongo_of(settings),
            partition_id=self._mongo.partition_id,
            database=self._mongo.database,
        )
        self._check_same_data(mongo)
        setup_process_logging(settings.log.level, settings.log.format)
        made = self._application(settings, mongo, token), self._options(settings)
        self._settings, self._mongo = settings, mongo
        return made

    # Parts

    async def _prepare(self) -> str:
        return await mongo_admin("start").prepare(
            self._mongo, self._server, exclusive=self._settings.exclusive_partition
        )

    def _announce_ready(self) -> None:
        settings = self._settings
        logger.info(
            "Running the lightning store server at %s, server processes: %d.",
            url(settings.host, settings.port, "https" if settings.tls_cert else "http"),
            settings.n_workers,
        )

    def _note_death(self) -> None:
        if self._store is not None:
            self._store.reconcile_soon()

    def _still_fixed(self, settings: StoreSettings) -> StoreSettings:
        """The settings with those that cannot change as they were."""
        was = self._settings
        fixed: dict[str, Any] = {name: getattr(was, name) for name in _FIXED}
        changed = [_FIXED[name] for name in _FIXED if fixed[name] != getattr(settings, name)]
        mongo = settings.mongo
        if mongo is None:
            fixed["mongo"] = was.mongo
        elif (mongo.database, mongo.partition_id) != _place_in(_mongo_of(was)):
            changed.append("--database or --partition-id")
        if changed:
            logger.warning("A change of %s needs a restart.", ", ".join(changed))
        return replace(settings, **fixed)

    def _options(self, settings: StoreSettings) -> dict[str, Any]:
        bound = {"bind": self._bind, "child_exit": shutdown_metrics}
        return {**bound, **_gunicorn_options(settings)}

    def _check_same_data(self, mongo: MongoSettings) -> None:
        """Raises unless the connection works and leads to the same partition as before."""
        instance_id = asyncio.run(mongo_admin("start").instance_at(mongo))
        if instance_id != self._instance_id:
            raise EnvironmentFault(
                "the connection string leads to other data than before",
                remedy="restart the store to serve those",
            )

    def _application(
        self, settings: StoreSettings, mongo: MongoSettings, token: str | None
    ) -> StoreApp:
        from agl.store.mongo import MongoLightningStore
        from agl.store.rest.app import create_app

        connect = mongo_admin("connect")
        servers = mongo_admin("servers")
        store = self._store = MongoLightningStore(
            mongo_uri=mongo.uri,
            mongo_client_kwargs=connect.client_kwargs(mongo),
            database_name=mongo.database,
            partition_id=mongo.partition_id,
            tracker=self._tracker,
        )

        @asynccontextmanager
        async def serving() -> AsyncGenerator[None]:
            try:
                async with servers.heartbeats(self._server, mongo):
                    yield
            finally:
                await store.close()

        return create_app(
            store,
            cors_allow_origins=list(settings.cors_origins) or None,
            tracker=self._tracker,
            api_token=token,
            limits=command.limits(settings),
            instance_id=self._instance_id,
            processes=settings.n_workers,
            while_serving=serving,
        )


def _arbitrate(arbiter: Any) -> int:
    try:
        arbiter.run()
    except SystemExit as end:
        if os.getpid() != arbiter.pid:
            raise  # server processes leave through here as well
        if end.code:
            raise EnvironmentFault(
                "the server ended by itself", remedy="its last log lines say why"
            ) from end
    ignore_stop_signals()
    logger.info("The store has stopped.")
    return 0


def _named(mongo: MongoSettings) -> MongoSettings:
    """With a name for the partition: ``new`` becomes a random one."""
    if mongo.partition_id != NEW_PARTITION:
        return mongo
    return replace(mongo, partition_id=f"pt-{uuid.uuid4().hex[:12]}")


def _mongo_of(settings: StoreSettings) -> MongoSettings:
    return settings.mongo or MongoSettings()


def _place_in(mongo: MongoSettings) -> tuple[str, str]:
    return mongo.database, mongo.partition_id


def _checked_token(settings: StoreSettings) -> str | None:
    check_certificate(settings.tls_cert, settings.tls_key)
    return command.api_token(settings)


def _gunicorn_options(settings: StoreSettings) -> dict[str, Any]:
    many = settings.worker_max_requests
    return {
        "workers": settings.n_workers,
        "worker_class": "agl.utils.gunicorn_server.PropagatingWorker",
        "logger_class": "agl.utils.gunicorn_server.PropagatingLogger",
        "loglevel": settings.log.level.lower() if settings.log.level != "DEBUG" else "info",
        "errorlog": "-",
        "preload_app": True,
        "keepalive": _KEEP_ALIVE_SECONDS,
        "graceful_timeout": _KILL_SECONDS,
        "max_requests": many or 0,
        "max_requests_jitter": (many or 0) // 10,
        "control_socket_disable": True,
        "worker_tmp_dir": str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK) else None,
        "certfile": None if settings.tls_cert is None else str(settings.tls_cert),
        "keyfile": None if settings.tls_key is None else str(settings.tls_key),
    }
