"""What the two servers of the command line share: ports, addresses, signals and log options."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import Literal

from agl.config import (
    LOG_FORMATS,
    LOG_LEVELS,
    MOST_SERVER_PROCESSES,
    LogSettings,
    load_environment,
)
from agl.errors import EnvironmentFault, UsageError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_quietly_on_stop_signals() -> None:
    """Until the server runs, SIGTERM and SIGINT end the process with exit code 0.

    Also needed as process 1 of a container, where the kernel drops signals nobody handles.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _exit_now)


def ignore_stop_signals() -> None:
    """For the last moments, when everything is stopped already."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _exit_now(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        default="INFO",
        help="least severe lines to log (default: INFO)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="auto writes text in a terminal and one JSON object a line elsewhere "
        "(default: AGL_LOG_FORMAT, else auto)",
    )


def log_settings(options: argparse.Namespace) -> LogSettings:
    """The log options, with ``AGL_LOG_FORMAT`` as the default of the format."""
    return LogSettings(
        level=options.log_level,
        format=options.log_format or load_environment().log_format,
    )


def port_number(text: str) -> int:
    """A TCP port from the command line."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def counting_number(text: str) -> int:
    """A number of things, 1 or more, from the command line."""
    if not text.isascii() or not text.isdecimal() or int(text[:9]) < 1 or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 999999999")
    return int(text)


def worker_count(text: str) -> int | Literal["auto"]:
    """A number of server processes from the command line, or ``auto``."""
    if text == "auto":
        return "auto"
    is_number = text.isascii() and text.isdecimal()
    if not is_number or not 1 <= int(text[:9]) <= MOST_SERVER_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of processes, from 1 to {MOST_SERVER_PROCESSES}, or auto"
        )
    return int(text)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet.

    Raises:
        UsageError: ``host`` is no address of any kind.
        EnvironmentFault: The port is taken, or the address cannot be used here.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise UsageError(f"argument --host: {host!r} is not an address ({reason})") from exc
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as exc:
        bound.close()
        raise _cannot_bind(host, port, exc) from exc
    return bound


def check_port_is_free(host: str, port: int) -> None:
    """Raises like ``bind``; changes nothing."""
    bind(host, port).close()


def _cannot_bind(host: str, port: int, exc: OSError) -> EnvironmentFault:
    if exc.errno == errno.EADDRINUSE:
        return EnvironmentFault(
            f"port {port} on {host} is taken",
            remedy=f"stop what listens there (ss -ltnp 'sport = :{port}') or choose --port",
        )
    if exc.errno == errno.EADDRNOTAVAIL:
        return EnvironmentFault(
            f"{host} is not an address of this machine", remedy="choose another --host"
        )
    return EnvironmentFault(
        f"cannot listen on port {port} of {host} ({exc.strerror or exc})",
        remedy="choose another --port or --host",
    )


def check_published_on(address: str | None) -> None:
    """Raises UsageError when ``--published-on`` is neither an IP address nor localhost."""
    if not address or address.lower() == "localhost":
        return
    try:
        ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        raise UsageError(
            f"argument --published-on: {address!r} is not an IP address or localhost"
        ) from None


def read_secret_file(option: str, file: Path) -> str:
    """The one line of a file that holds a password; ``option`` names it in errors.

    Raises:
        EnvironmentFault: It is missing, unreadable, empty or more than one line.
    """
    what = f"argument {option}: {file}"
    remedy = "write one line into it (openssl rand -hex 32), readable for this user"
    try:
        secret = file.read_text(encoding="utf-8").strip("\r\n")
    except UnicodeDecodeError as exc:
        raise EnvironmentFault(f"{what} is not UTF-8", remedy=remedy) from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise EnvironmentFault(f"{what} cannot be read ({reason})", remedy=remedy) from exc
    if not secret.strip():
        raise EnvironmentFault(f"{what} is empty", remedy=remedy)
    if not secret.isprintable():
        raise EnvironmentFault(f"{what} does not hold one line", remedy=remedy)
    return secret


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; host names other than localhost cannot."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
