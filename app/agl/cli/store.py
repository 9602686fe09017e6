"""``agl store``: run a LightningStore server."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli._serving import (
    STOP_SIGNALS,
    check_port_is_free,
    exit_quietly_on_stop_signals,
    ignore_stop_signals,
    is_loopback,
)
from agl.cli._store_options import parse
from agl.cli._token import read_token
from agl.config import (
    StoreSettings,
    TrackerName,
    load_environment,
)
from agl.errors import EnvironmentFault, UsageError
from agl.logging import setup_process_logging
from agl.utils.certificate import check_certificate
from agl.utils.garbage import spare_old_objects
from agl.utils.multiprocess import prepare_writer_folder, take_metrics_slot

if TYPE_CHECKING:
    from agl.store.client_server import LightningStoreServer, ServerLimits
    from agl.utils.metrics import MetricsBackend

logger = logging.getLogger(__name__)

COMMANDS = {
    "stuck": "_stuck",
    "partitions": "_partitions",
    "prune": "_prune",
    "migrate": "_migrate",
}
"""``agl store COMMAND`` and the module it is in; without one of them, a store is run."""


def main(argv: list[str], prog: str) -> int:
    """Serve until SIGTERM or SIGINT, or run one of the further commands; returns the exit code."""
    if argv and argv[0] in COMMANDS:
        module = import_module(f"agl.cli.{COMMANDS[argv[0]]}")
        return int(module.main(argv[1:], f"{prog} {argv[0]}"))
    if argv and argv[0][:1] not in {"-", "@"}:
        known = ", ".join(COMMANDS)
        raise UsageError(f"unknown command {argv[0]!r} (choose from {known}; none runs a store)")
    settings = parse(argv, prog)
    exit_quietly_on_stop_signals()
    if settings.backend == "mongo":
        from agl.cli._processes import StoreProcesses

        return StoreProcesses(argv, prog, settings).run()
    token = api_token(settings)
    check_certificate(settings.tls_cert, settings.tls_key)
    folder = metrics_folder(settings)
    check_port_is_free(settings.host, settings.port)
    setup_process_logging(settings.log.level, settings.log.format)
    announce(settings, token, folder)

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, token))
    ignore_stop_signals()
    logger.info("The store has stopped.")
    return 0


def api_token(settings: StoreSettings) -> str | None:
    """The token that clients must show, or ``None`` when none is demanded.

    A token is demanded when there is a token file, except when the port is published on a loopback
    address only. The file is read in any case, so that a broken one is found at once.

    Raises:
        EnvironmentFault: The token file is missing, unreadable, empty or no single line of text.
    """
    if settings.api_token_file is None:
        return None
    token = read_token(settings.api_token_file, "--api-token-file")
    if settings.published_on is not None and is_loopback(settings.published_on):
        return None
    return token


def metrics_folder(settings: StoreSettings) -> Path | None:
    """The shared metrics folder, ready to be written; ``None`` when metrics stay in the process.

    Raises:
        EnvironmentFault: ``PROMETHEUS_MULTIPROC_DIR`` names something that cannot be written to.
    """
    if "prometheus" not in settings.trackers:
        return None
    folder = load_environment().multiproc_dir
    return None if folder is None else prepare_writer_folder(folder)


def build_tracker(names: tuple[TrackerName, ...]) -> MetricsBackend | None:
    """The metrics backend for these trackers, in this order; ``None`` for none."""
    from agl.utils.metrics import (
        ConsoleMetricsBackend,
        MultiMetricsBackend,
        PrometheusMetricsBackend,
    )

    kinds: dict[TrackerName, Callable[[], MetricsBackend]] = {
        "prometheus": PrometheusMetricsBackend,
        "console": ConsoleMetricsBackend,
    }
    backends = [kinds[name]() for name in names]
    if len(backends) > 1:
        return MultiMetricsBackend(backends)
    return backends[0] if backends else None


def announce(settings: StoreSettings, token: str | None, folder: Path | None) -> None:
    """Log what an operator should know before anything happens."""
    for name in settings.trackers:
        logger.info("Enabling %s metrics tracking.", "Prometheus" if name == "prometheus" else name)
    if folder is not None:
        logger.info("Metrics are written into %s, for the exporter (agl prometheus).", folder)
    if settings.backend == "memory":
        logger.warning(
            "The memory backend keeps everything in this process: all rollouts, attempts, spans, "
            "resources and workers are lost when it ends, be it by a stop, a crash or a restart."
        )
    reachable = settings.host if settings.published_on is None else settings.published_on
    if token is None and not is_loopback(reachable):
        logger.warning(
            "Anyone who can reach port %d on %s can use the store: no API token is set "
            "(--api-token-file).",
            settings.port,
            reachable or "any address",
        )


async def _serve(settings: StoreSettings, token: str | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _on_stop_signal, number, stop)
    loop.add_signal_handler(signal.SIGHUP, _on_sighup)
    server = build_server(settings, token)
    spare_old_objects()
    if settings.n_workers == 1:
        take_metrics_slot()  # otherwise its workers serve
    serving = asyncio.create_task(server.run_forever())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        logger.debug("The server was asked to stop and has done so.")
    except RuntimeError as exc:
        if not stop.is_set():
            raise EnvironmentFault(f"LightningStore server failed to start: {exc}") from exc
        logger.warning("The server did not stop cleanly: %s", exc)
    if not stop.is_set():
        raise EnvironmentFault("the server ended by itself", remedy="its last log lines say why")


def _on_stop_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if not stop.is_set():
        logger.info("Received %s. Finishing open requests, then stopping.", number.name)
        stop.set()


def _on_sighup() -> None:
    logger.warning(
        "SIGHUP: nothing is read again. This backend lives in one process, which would lose "
        "everything if it were replaced; new settings, tokens and certificates need a restart."
    )


def build_server(settings: StoreSettings, token: str | None) -> LightningStoreServer:
    """The store with its tracker, behind the HTTP server; nothing is started yet."""
    from agl.store.client_server import LightningStoreServer
    from agl.store.memory import InMemoryLightningStore
    from agl.utils.server_launcher import PythonServerLauncherArgs

    tracker = build_tracker(settings.trackers)
    return LightningStoreServer(
        InMemoryLightningStore(thread_safe=True, tracker=tracker),
        cors_allow_origins=list(settings.cors_origins) or None,
        launcher_args=PythonServerLauncherArgs(
            host=settings.host,
            port=settings.port,
            access_host="127.0.0.1" if settings.host == "0.0.0.0" else settings.host,
            launch_mode="asyncio",
            n_workers=settings.n_workers,
            healthcheck_url="/v1/agl/health",
            ssl_certfile=_path(settings.tls_cert),
            ssl_keyfile=_path(settings.tls_key),
            log_level=max(logging.getLevelNamesMapping()[settings.log.level], logging.INFO),
        ),
        tracker=tracker,
        api_token=token,
        limits=limits(settings),
    )


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def limits(settings: StoreSettings) -> ServerLimits:
    """How much one server process takes on."""
    from agl.store.client_server import ServerLimits

    given = {
        "max_requests": settings.max_requests,
        "max_waits": settings.max_waits,
        "max_batch_items": settings.max_batch_items,
    }
    return ServerLimits(**{name: value for name, value in given.items() if value is not None})
