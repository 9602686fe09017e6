"""Health probe for containers: ``python -m agl.probe URL [--timeout SECONDS] [--watch SECONDS]``.

Exit 0 when the URL answers 200, 1 with one line on stderr when it does not, 2 on wrong usage.

To start a process in a container takes Docker more of a processor than the question itself. So with
``--watch`` the first good answer ends the probe at once, as ``up`` waits for it, and the next probe
goes on asking for so long, until an answer is not good. It imports as little as it can: a plain
socket starts in a fraction of the time that the HTTP modules of the standard library need.
"""

from __future__ import annotations

import os
import socket
import sys
import time

USAGE = (
    "usage: python -m agl.probe http[s]://HOST[:PORT][/PATH] [--timeout SECONDS] [--watch SECONDS]"
)
DEFAULT_TIMEOUT = 3.0
WATCH_INTERVAL_SECONDS = 3.0
"""Between two questions of a probe that goes on asking."""

MARKER = "/dev/shm/agl-probe"  # noqa: S108 - what else writes there is the service itself
"""Says when the last probe of this start of the container ended well; every one can write there."""

FRESH_SECONDS = 6.0
"""Probes follow each other after 3 s. What is older is from before a pause, since when Docker takes
the container for unhealthy until a probe ends.
"""

_MAX_STATUS_LINE = 4096


def main(argv: list[str] | None = None) -> int:
    """Run the probe; returns the exit code."""
    try:
        url, timeout, seconds = _parse_arguments(sys.argv[1:] if argv is None else argv)
        host, port, path = _split_url(url)
    except ValueError as exc:
        print(f"agl.probe: error: {exc} ({USAGE})", file=sys.stderr)
        return 2
    tls = url.lower().startswith("https:")
    if seconds:
        problem = watch(host, port, path, timeout, seconds, tls=tls)
    else:
        problem = probe(host, port, path, timeout, tls=tls)
    if problem:
        print(f"agl.probe: {url}: {problem}", file=sys.stderr)
        return 1
    return 0


def probe(host: str, port: int, path: str, timeout: float, *, tls: bool = False) -> str:
    """Ask once; returns what is wrong, or the empty string when the answer is 200.

    Args:
        host: Name or address.
        port: TCP port.
        path: Path and query, starting with a slash.
        timeout: Seconds for everything together, connecting included.
        tls: Speak HTTPS. The certificate is not checked: it names the host that clients use,
            which is rarely the address that is probed.
    """
    deadline = time.monotonic() + timeout
    try:
        line = _first_line(host, port, path, deadline, tls)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except (OSError, UnicodeError) as exc:
        return f"no answer: {getattr(exc, 'strerror', None) or exc}"
    parts = line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/"):
        return "the answer is not HTTP"
    return "" if parts[1] == "200" else f"answered {' '.join(parts[1:])}"


def watch(
    host: str, port: int, path: str, timeout: float, seconds: float, *, tls: bool = False
) -> str:
    """Like :func:`probe`; where that was well before, ask again and again for ``seconds``."""
    end = time.monotonic() + seconds
    asks_on = _was_healthy()
    _mark(healthy=False)  # left so by a probe that Docker ends, as with a pause
    problem = probe(host, port, path, timeout, tls=tls)
    while asks_on and not problem and time.monotonic() + WATCH_INTERVAL_SECONDS < end:
        time.sleep(WATCH_INTERVAL_SECONDS)
        problem = probe(host, port, path, timeout, tls=tls)
    _mark(healthy=not problem)
    return problem


def _was_healthy() -> bool:
    start, _, when = _read(MARKER).partition(" ")
    try:
        age = time.monotonic() - float(when)
    except ValueError:
        return False
    return start == _start_of_container() and age < FRESH_SECONDS


def _start_of_container() -> str:
    """When its first process started, in ticks since the boot; empty where that is not told."""
    fields = _read("/proc/1/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:  # noqa: PTH123 - slow to import
            return file.read()
    except OSError:
        return ""


def _mark(*, healthy: bool) -> None:
    """Without a place to write, each probe asks once."""
    try:
        if healthy:
            with open(MARKER, "w", encoding="latin-1") as file:  # noqa: PTH123 - as above
                file.write(f"{_start_of_container()} {time.monotonic()}")
        else:
            os.unlink(MARKER)  # noqa: PTH108 - as above
    except OSError:
        pass


def _first_line(host: str, port: int, path: str, deadline: float, tls: bool) -> str:
    with _connect(host, port, deadline, tls) as connection:
        shown = f"[{host}]" if ":" in host else host
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {shown}:{port}\r\nAccept: */*\r\n"
            "User-Agent: agl-probe\r\nConnection: close\r\n\r\n".encode()
        )
        received = b""
        while b"\n" not in received and len(received) < _MAX_STATUS_LINE:
            connection.settimeout(_left(deadline))
            chunk = connection.recv(1024)
            if not chunk:
                break
            received += chunk
    return received.split(b"\n", 1)[0].decode("latin-1").strip()


def _connect(host: str, port: int, deadline: float, tls: bool) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_left(deadline))
    if not tls:
        return connection
    import ssl  # slow to import, and rarely needed

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _parse_arguments(argv: list[str]) -> tuple[str, float, float]:
    url, rest = "", list(argv)
    seconds = {"--timeout": DEFAULT_TIMEOUT, "--watch": 0.0}
    while rest:
        argument = rest.pop(0)
        name, separator, value = argument.partition("=")
        if name in seconds and (separator or rest):
            seconds[name] = _seconds(name, value if separator else rest.pop(0))
        elif argument.startswith("-") or url:
            raise ValueError(f"unexpected argument {argument!r}")
        else:
            url = argument
    if not url:
        raise ValueError("a URL is needed")
    return url, seconds["--timeout"], seconds["--watch"]


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise ValueError(f"{name} must be a number of seconds above 0, not {text!r}")
    return value


def _split_url(url: str) -> tuple[str, int, str]:
    scheme, separator, rest = url.partition("://")
    default = {"http": 80, "https": 443}.get(scheme.lower()) if separator else None
    if default is None:
        raise ValueError(f"only http:// and https:// URLs can be probed, not {url!r}")
    authority, slash, path = rest.partition("/")
    if any(ord(character) <= 32 or ord(character) > 126 for character in rest) or "@" in authority:
        raise ValueError(f"not a plain URL: {url!r}")
    if authority.startswith("["):
        host, _, tail = authority[1:].partition("]")
        port_text = tail.removeprefix(":")
    else:
        host, _, port_text = authority.partition(":")
    port = default if not port_text else int(port_text) if port_text.isdecimal() else 0
    if not host or not 0 < port < 65536:
        raise ValueError(f"no host and port in {url!r}")
    return host, port, slash + path if slash else "/"


if __name__ == "__main__":
    sys.exit(main())
