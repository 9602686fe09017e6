"""``agl panels``: the dashboards in a browser, straight from Prometheus, without Grafana."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
from pathlib import Path

from agl.cli import CommandParser
from agl.cli._dashboards import add_source_options, library, runbooks_of_clone
from agl.cli._serving import (
    STOP_SIGNALS,
    add_log_options,
    bind,
    check_published_on,
    exit_quietly_on_stop_signals,
    ignore_stop_signals,
    is_loopback,
    log_settings,
    port_number,
    read_secret_file,
)
from agl.config import PanelsSettings
from agl.errors import UsageError
from agl.logging import setup_process_logging
from agl.ops.panels.boards import Library

logger = logging.getLogger(__name__)


def main(argv: list[str], prog: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    settings, boards = parse(argv, prog)
    exit_quietly_on_stop_signals()
    password = asked_password(settings)
    with bind(settings.host, settings.port) as listener:
        setup_process_logging(settings.log.level, settings.log.format)
        logger.info(
            "Serving %d dashboards of %s at http://%s:%d, from Prometheus at %s",
            len(boards.boards()),
            boards.folder,
            settings.host,
            settings.port,
            settings.prometheus,
        )
        asyncio.run(_serve(settings, boards, password, listener))
    ignore_stop_signals()
    logger.info("The panels have stopped.")
    return 0


def parse(argv: list[str], prog: str) -> tuple[PanelsSettings, Library]:
    """Settings and dashboards from the command line.

    Raises:
        UsageError: An option that does not exist, or values that make no sense together.
        EnvironmentFault: There are no dashboards here.
    """
    options = _parser(prog).parse_args(argv)
    boards = library(options.dashboards)
    settings = PanelsSettings(
        host=options.host,
        port=options.port,
        prometheus=options.prometheus_url,
        dashboards=boards.folder,
        scrape=options.scrape_interval,
        home=options.home,
        runbooks=_runbooks(options.runbooks),
        auth_file=options.auth_file,
        published_on=options.published_on,
        log=log_settings(options),
    )
    check_published_on(settings.published_on)
    if settings.auth_file is None and not is_loopback(_reachable(settings)):
        raise UsageError(
            f"argument --host: {_reachable(settings)} can be reached from other machines, where a"
            " password is needed: add --auth-file FILE, or listen on 127.0.0.1"
        )
    return settings, boards


def _runbooks(folder: Path | None) -> Path | None:
    if folder is None:
        return runbooks_of_clone()
    if not folder.is_dir():
        raise UsageError(f"argument --runbooks: {str(folder)!r} is not a folder")
    return folder


def asked_password(settings: PanelsSettings) -> str | None:
    """The password visitors are asked for, ``None`` on loopback; a broken file is found anyway.

    Raises:
        EnvironmentFault: The file is missing, unreadable, empty or no single line.
    """
    if settings.auth_file is None:
        return None
    password = read_secret_file("--auth-file", settings.auth_file)
    published = settings.published_on
    return None if published is not None and is_loopback(published) else password


def _reachable(settings: PanelsSettings) -> str:
    return settings.host if settings.published_on is None else settings.published_on


async def _serve(
    settings: PanelsSettings, boards: Library, password: str | None, listener: socket.socket
) -> None:
    from aiohttp import web

    from agl.ops.panels.server import Site, create_app

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _on_stop_signal, number, stop)
    site = Site(
        boards, settings.prometheus, settings.scrape, settings.home, password, settings.runbooks
    )
    runner = web.AppRunner(create_app(site), access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        await stop.wait()
    finally:
        await runner.cleanup()


def _on_stop_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    logger.info("Received %s.", number.name)
    stop.set()


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Serve the dashboards in a browser, straight from Prometheus, read-only.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=port_number, default=9091, help="port to listen on (default: 9091)")
    add_source_options(parser)
    add(
        "--home",
        default="",
        metavar="UID",
        help="dashboard that the root leads to (default: the list of all)",
    )
    add(
        "--runbooks",
        type=Path,
        metavar="FOLDER",
        help="folder with the runbooks that alerts link to (default: docs/runbooks of the clone)",
    )
    add(
        "--auth-file",
        type=Path,
        metavar="FILE",
        help="file with the password that visitors are asked for, with any user name; needed"
        " beyond loopback",
    )
    add(
        "--published-on",
        metavar="ADDR",
        help="address a container's port is published on; a loopback address means that the"
        " password is not asked for",
    )
    add_log_options(parser)
    return parser
