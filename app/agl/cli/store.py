"""``agl store``: run a LightningStore server."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli import CommandParser
from agl.cli._certificate import check_certificate
from agl.cli._serving import (
    STOP_SIGNALS,
    add_log_options,
    check_port_is_free,
    counting_number,
    exit_quietly_on_stop_signals,
    ignore_stop_signals,
    is_loopback,
    log_settings,
    port_number,
    worker_count,
)
from agl.cli._token import read_token
from agl.config import (
    BACKENDS,
    DEFAULT_MONGO_URI,
    TRACKERS,
    StoreSettings,
    TrackerName,
    load_environment,
)
from agl.errors import EnvironmentFault, UsageError
from agl.logging import setup_process_logging
from agl.utils.garbage import spare_old_objects
from agl.utils.multiprocess import prepare_writer_folder, take_metrics_slot

if TYPE_CHECKING:
    from agl.store.client_server import LightningStoreServer, ServerLimits
    from agl.utils.metrics import MetricsBackend

logger = logging.getLogger(__name__)


def main(argv: list[str], prog: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. ``stuck`` asks a running store."""
    if argv[:1] == ["stuck"]:
        from agl.cli import _stuck

        return _stuck.main(argv[1:], f"{prog} stuck")
    settings = parse(argv, prog)
    exit_quietly_on_stop_signals()
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


def parse(argv: list[str], prog: str) -> StoreSettings:
    """Settings from the command line.

    Raises:
        UsageError: An option that does not exist, or values that make no sense together.
    """
    options = _parser(prog).parse_args(argv)
    settings = StoreSettings(
        host=options.host,
        port=options.port,
        cors_origins=tuple(options.cors_origin),
        trackers=tuple(dict.fromkeys(options.tracker)),
        n_workers=options.n_workers,
        backend=options.backend,
        mongo_uri=options.mongo_uri,
        api_token_file=options.api_token_file,
        published_on=options.published_on,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_requests=options.max_requests,
        max_waits=options.max_waits,
        max_batch_items=options.max_batch_items,
        log=log_settings(options),
    )
    if settings.backend == "mongo":
        raise UsageError(
            "argument --backend: the MongoDB backend is not part of this version yet, "
            "use --backend memory"
        )
    if settings.n_workers > 1:
        raise UsageError(
            "argument --n-workers: the memory backend keeps its data in one process and cannot be "
            f"shared by {settings.n_workers}, use --n-workers 1"
        )
    if settings.tls_key is not None and settings.tls_cert is None:
        raise UsageError("argument --tls-key: there is no --tls-cert that it belongs to")
    _check_published_on(settings.published_on)
    return settings


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
        limits=_limits(settings),
    )


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _limits(settings: StoreSettings) -> ServerLimits:
    from agl.store.client_server import ServerLimits

    given = {
        "max_requests": settings.max_requests,
        "max_waits": settings.max_waits,
        "max_batch_items": settings.max_batch_items,
    }
    return ServerLimits(**{name: value for name, value in given.items() if value is not None})


def _check_published_on(address: str | None) -> None:
    if not address or address.lower() == "localhost":
        return
    try:
        ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        raise UsageError(
            f"argument --published-on: {address!r} is not an IP address or localhost"
        ) from None


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Run a LightningStore server.",
        epilog=f"'{prog} stuck' asks a running store what may be stuck; see '{prog} stuck --help'.",
    )
    add = parser.add_argument
    add("--host", default="0.0.0.0", help="address to listen on (default: 0.0.0.0)")
    add("--port", type=port_number, default=4747, help="port to listen on (default: 4747)")
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin a browser may call from, * for any; may be repeated",
    )
    add_log_options(parser)
    add(
        "--tracker",
        nargs="+",
        choices=TRACKERS,
        default=[],
        help="where metrics go: one or more of prometheus and console (default: nowhere)",
    )
    add("--n-workers", type=worker_count, default=1, help="server processes (default: 1)")
    add("--backend", choices=BACKENDS, default="memory", help="where data lives (default: memory)")
    add(
        "--mongo-uri",
        default=DEFAULT_MONGO_URI,
        help=f"connection string of the mongo backend (default: {DEFAULT_MONGO_URI})",
    )
    add(
        "--api-token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that clients must show (default: no token)",
    )
    add(
        "--published-on",
        metavar="ADDR",
        help="address a container's port is published on; a loopback address means that the token "
        "is not demanded",
    )
    _add_tls_and_limits(parser)
    return parser


def _add_tls_and_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="PEM file with the certificate chain; serves HTTPS only (default: plain HTTP)",
    )
    add(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="PEM file with the private key (default: it is in the certificate's file)",
    )
    add(
        "--max-requests",
        type=counting_number,
        metavar="N",
        help="requests under way at once; more are answered 503 (default: 2048)",
    )
    add(
        "--max-waits",
        type=counting_number,
        metavar="N",
        help="waits for rollouts under way at once; more are answered 503 (default: 4096)",
    )
    add(
        "--max-batch-items",
        type=counting_number,
        metavar="N",
        help="items in one request; more are answered 413 (default: 100000)",
    )
