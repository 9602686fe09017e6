"""Addresses and ports of a server: what to listen on, and what to tell others."""

from __future__ import annotations

import errno
import logging
import socket

logger = logging.getLogger(__name__)

ANY_ADDRESSES = ("0.0.0.0", "::")
LOOPBACK = "127.0.0.1"

_BACKLOG = 2048
_ROUTE_TARGET = ("192.0.2.1", 9)  # TEST-NET-1; a datagram socket sends nothing when it connects


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; connections wait in it until a server accepts them.

    Raises:
        RuntimeError: the port is in use or the address cannot be used; the text says which.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RuntimeError(f"Cannot listen on {host}:{port}: {error}") from error
    family, kind, protocol, _, address = min(found, key=lambda item: item[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RuntimeError(_cannot_listen(host, port, error)) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Cannot listen on {host}:{port}: address already in use; another process (perhaps "
            "another store) has this port"
        )
    return f"Cannot listen on {host}:{port}: {error.strerror or error}"


def free_port(host: str) -> int:
    """A port that nothing listens on at this moment."""
    with listen(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def outbound_address() -> str:
    """This machine's address on the default route; loopback when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ROUTE_TARGET)
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
    return address


def url(host: str, port: int, scheme: str = "http") -> str:
    """``scheme://host:port``, with brackets around an IPv6 address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
