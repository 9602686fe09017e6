"""``agl prometheus``: the exporter, a process of its own that reads the shared metrics folder."""

from __future__ import annotations

import argparse
import logging
import re
import socket
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
from agl.config import ExporterSettings, load_environment
from agl.errors import UsageError
from agl.logging import setup_process_logging
from agl.utils.multiprocess import get_prometheus_registry, prepare_reader_folder

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?")


def main(argv: list[str], prog: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    settings = parse(argv, prog)
    exit_quietly_on_stop_signals()
    folder = ensure_prometheus_dir()
    with bind(settings.host, settings.port) as listener:
        setup_process_logging(settings.log.level, settings.log.format)
        app = create_prometheus_app(settings.metrics_path)
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
    return ExporterSettings(
        host=options.host,
        port=options.port,
        metrics_path=checked_metrics_path(options.metrics_path),
        access_log=options.access_log,
        log=log_settings(options),
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


def create_prometheus_app(metrics_path: str) -> FastAPI:
    """The exporter: ``/health``, and the metrics at ``metrics_path`` with and without final slash.

    The metrics are read anew for every request, as text or OpenMetrics, gzipped when the client
    takes it.

    Raises:
        UsageError: ``metrics_path`` cannot be used.
    """
    import gzip

    from fastapi import FastAPI, Request, Response
    from prometheus_client.exposition import choose_encoder, gzip_accepted
    from starlette.routing import Route

    path = checked_metrics_path(metrics_path)
    registry = get_prometheus_registry()
    app = FastAPI(title="agl-stack exporter", docs_url=None, redoc_url=None, redirect_slashes=False)

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        try:
            body = encoder(registry)
        except Exception:
            logger.exception("The metrics folder could not be read.")
            return Response("the metrics folder could not be read\n", 500)
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, compresslevel=5)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    app.add_api_route(HEALTH_PATH, health, methods=["GET", "HEAD"])
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
    add_log_options(parser)
    parser.add_argument("--access-log", action="store_true", help="log every request")
    return parser
