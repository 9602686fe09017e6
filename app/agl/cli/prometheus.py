"""``agl prometheus``: the exporter, a process of its own that reads the shared metrics folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import re
import resource
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli import CommandParser
from agl.cli._serving import (
    add_log_options,
    bind,
    exit_quietly_on_stop_signals,
    ignore_stop_signals,
    log_settings,
    port_number,
)
from agl.cli._token import read_token
from agl.config import ExporterSettings, load_environment
from agl.errors import UsageError
from agl.logging import setup_process_logging
from agl.utils.garbage import spare_old_objects
from agl.utils.multiprocess import prepare_reader_folder

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agl.cli._state_poll import StatePoll

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"
_KEEP_ALIVE_SECONDS = 75  # longer than most scrape intervals
_UNAUTHORIZED = "send the exporter's token as 'Authorization: Bearer TOKEN' or as a password\n"
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?")


def main(argv: list[str], prog: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    settings = parse(argv, prog)
    exit_quietly_on_stop_signals()
    token = None if settings.auth_file is None else read_token(settings.auth_file, "--auth-file")
    folder = ensure_prometheus_dir()
    allow_many_files()
    with bind(settings.host, settings.port) as listener:
        setup_process_logging(settings.log.level, settings.log.format)
        app = create_prometheus_app(settings.metrics_path, token, state_poll(settings))
        spare_old_objects()
        logger.info(
            "Serving the metrics of %s at http://%s:%d%s",
            folder,
            settings.host,
            settings.port,
            settings.metrics_path,
        )
        code = _serve(app, settings, listener)
    ignore_stop_signals()
    return code


def parse(argv: list[str], prog: str) -> ExporterSettings:
    """Settings from the command line.

    Raises:
        UsageError: An option that does not exist, or a value that makes no sense.
    """
    options = _parser(prog).parse_args(argv)
    environment = load_environment()
    store_url = options.store_url or environment.store_url or None
    token_file = options.store_token_file or environment.store_token_file
    if store_url is None and options.store_token_file is not None:
        raise UsageError("argument --store-token-file: --store-url is missing")
    return ExporterSettings(
        host=options.host,
        port=options.port,
        metrics_path=checked_metrics_path(options.metrics_path),
        auth_file=options.auth_file,
        store_url=store_url,
        store_token_file=token_file,
        store_cert=options.store_cert or environment.store_cert,
        access_log=options.access_log,
        log=log_settings(options),
    )


def state_poll(settings: ExporterSettings) -> StatePoll | None:
    """Who asks the store for its state; ``None`` where no store was named.

    Raises:
        UsageError: The store's address cannot be used.
        EnvironmentFault: There is no token in the token's file.
    """
    if settings.store_url is None:
        return None
    from agl.cli._state_poll import StatePoll
    from agl.utils.exporter_state import StateGauges

    return StatePoll(
        settings.store_url, settings.store_token_file, StateGauges(), settings.store_cert
    )


def checked_metrics_path(path: str) -> str:
    """``path`` without its trailing slash.

    Raises:
        UsageError: It has no leading slash, is the root, is taken, or cannot be part of a URL.
    """
    if not path.startswith("/"):
        raise UsageError(
            f"argument --metrics-path: {path!r} must start with a slash, such as /v1/prometheus"
        )
    if not path.strip("/"):
        raise UsageError(
            "argument --metrics-path: the metrics cannot be at the root, choose a path such as "
            "/v1/prometheus"
        )
    if not _PATH.fullmatch(path):
        raise UsageError(f"argument --metrics-path: {path!r} is not a plain URL path")
    if path.rstrip("/") == HEALTH_PATH:
        raise UsageError(f"argument --metrics-path: {HEALTH_PATH} answers health checks")
    return path.rstrip("/")


def ensure_prometheus_dir() -> Path:
    """The folder of ``PROMETHEUS_MULTIPROC_DIR``; created when it is missing.

    Raises:
        EnvironmentFault: The variable is not set, or the folder cannot be created or read.
    """
    return prepare_reader_folder(load_environment().multiproc_dir)


def allow_many_files() -> None:
    """Let this process open as many files as it may: it keeps those of the folder open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def create_prometheus_app(
    metrics_path: str, token: str | None = None, poll: StatePoll | None = None
) -> FastAPI:
    """The exporter: ``/health``, and the metrics at ``metrics_path`` with and without final slash.

    The metrics are read anew for every scrape, as text or OpenMetrics, gzipped when the client
    takes it; scrapes that come while the folder is being read share the next read.

    Args:
        metrics_path: URL path of the metrics.
        token: What a scrape must show, as Bearer token or as password; ``None`` for nothing.
        poll: Who asks the store for its state while the app runs; ``None`` for nobody.

    Raises:
        UsageError: ``metrics_path`` cannot be used.
        EnvironmentFault: There is no folder to read.
    """
    from fastapi import FastAPI, Request, Response
    from starlette.routing import Route

    from agl.store.rest.guard import presented_token
    from agl.utils.exporter import Exporter

    path = checked_metrics_path(metrics_path)
    exporter = Exporter(ensure_prometheus_dir(), None if poll is None else poll.gauges)

    @contextlib.asynccontextmanager
    async def running(app: FastAPI) -> AsyncGenerator[None]:
        try:
            await asyncio.to_thread(exporter.prepare)
        except Exception:
            logger.exception("The metrics folder could not be read.")
        task = None if poll is None else asyncio.create_task(poll.run())
        yield
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    app = FastAPI(
        title="agl-stack exporter",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=running,
    )

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    def may_scrape(request: Request) -> bool:
        shown = presented_token(request.headers.get("authorization", ""))
        return token is None or hmac.compare_digest(shown, token.encode())

    async def metrics(request: Request) -> Response:
        if not may_scrape(request):
            return Response(_UNAUTHORIZED, 401, {"WWW-Authenticate": 'Basic realm="agl"'})
        headers = request.headers
        try:
            answer = await exporter.scrape(
                headers.get("accept", ""), headers.get("accept-encoding", "")
            )
        except Exception:
            logger.exception("The metrics folder could not be read.")
            return Response("the metrics folder could not be read\n", 500)
        return Response(answer.body, headers=answer.headers)

    app.add_api_route(HEALTH_PATH, health, methods=["GET"])
    app.add_api_route(HEALTH_PATH, health, methods=["HEAD"], include_in_schema=False)
    for route in (path, f"{path}/"):
        app.router.routes.append(Route(route, metrics))
    return app


def _serve(app: FastAPI, settings: ExporterSettings, listener: socket.socket) -> int:
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=settings.access_log,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
    )
    try:
        server.run(sockets=[listener])
    except SystemExit as exc:
        # uvicorn drains on its own, then raises the signal again, which ends in our handler.
        if exc.code:
            raise
    logger.info("Received shutdown signal. Stopped the Prometheus exporter.")
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Serve the metrics that store processes write into PROMETHEUS_MULTIPROC_DIR.",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: 0.0.0.0)")
    parser.add_argument(
        "--port", type=port_number, default=4748, help="port to listen on (default: 4748)"
    )
    parser.add_argument(
        "--metrics-path",
        default="/v1/prometheus",
        help="URL path of the metrics (default: /v1/prometheus)",
    )
    parser.add_argument(
        "--auth-file",
        type=Path,
        metavar="FILE",
        help="file with the token a scrape must show, as Bearer token or as the password of any "
        "user; /health stays open (default: none is demanded)",
    )
    parser.add_argument(
        "--store-url",
        metavar="URL",
        help="store whose state is asked for every 5 s and served as agl_state_*, such as "
        "http://127.0.0.1:4747 (default: AGL_STORE_URL in the environment, or none)",
    )
    parser.add_argument(
        "--store-token-file",
        type=Path,
        metavar="FILE",
        help="file with the store's API token (default: AGL_STORE_TOKEN_FILE in the environment, "
        "or none)",
    )
    parser.add_argument(
        "--store-cert",
        type=Path,
        metavar="FILE",
        help="PEM file with the store's own certificate, to be trusted by whatever name the store "
        "is reached (default: AGL_STORE_CERT in the environment, or what the system trusts)",
    )
    add_log_options(parser)
    parser.add_argument("--access-log", action="store_true", help="log every request")
    return parser
