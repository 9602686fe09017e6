"""Facts about the machine, read and never changed: listeners, limits, routes, system name.

Uses the standard library alone and runs on Python 3.9, since the preflight needs it.
"""

from __future__ import annotations

import ipaddress
import re
import resource
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
_TCP_LISTEN = "0A"
_DAEMONS = ("dockerd", "containerd")


@dataclass(frozen=True)
class System:
    """The distribution: its os-release id, version and code name."""

    id: str
    version: str
    codename: str
    pretty: str


@dataclass(frozen=True)
class Listener:
    """A TCP socket in state LISTEN and the process that holds it, if it can be told."""

    address: str
    port: int
    inode: str


def read_system(path: Path = Path("/etc/os-release")) -> System:
    """The distribution named in ``path``; empty fields when the file is missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        text = ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, flags=re.MULTILINE))
    return System(
        id=fields.get("ID", ""),
        version=fields.get("VERSION_ID", ""),
        codename=fields.get("VERSION_CODENAME", ""),
        pretty=fields.get("PRETTY_NAME", "unknown system"),
    )


def listeners() -> list[Listener]:
    """Every listening TCP socket of this network namespace."""
    return [
        listener
        for name in ("tcp", "tcp6")
        for listener in _parse_listeners(_read_lines(PROC / "net" / name))
    ]


def holder(inode: str) -> str:
    """``name (pid N)`` of the process holding a socket, or an empty string when hidden."""
    wanted = f"socket:[{inode}]"
    for directory in PROC.glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) == wanted for fd in (directory / "fd").iterdir()):
                name = (directory / "comm").read_text().strip()
                return f"{name} (pid {directory.name})"
        except OSError:
            continue
    return ""


def memory_bytes() -> int:
    """Total memory in bytes, 0 when unknown."""
    for line in _read_lines(PROC / "meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def nofile_limit() -> int:
    """The hard limit of open files that containers can get.

    It is the lowest one among the Docker daemon's processes, else this process' own.
    """
    limits = [limit for limit in map(_hard_nofile, _daemon_processes()) if limit is not None]
    if limits:
        return min(limits)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def routes() -> list[tuple[str, ipaddress.IPv4Network]]:
    """(interface, network) of every IPv4 route but the default one."""
    found: list[tuple[str, ipaddress.IPv4Network]] = []
    for line in _read_lines(PROC / "net" / "route")[1:]:
        fields = line.split()
        destination, mask = _little_endian(fields[1]), _little_endian(fields[7])
        if int(mask):
            found.append((fields[0], ipaddress.IPv4Network(f"{destination}/{mask}", strict=False)))
    return found


def _parse_listeners(lines: list[str]) -> Iterator[Listener]:
    for line in lines[1:]:
        fields = line.split()
        if fields[3] == _TCP_LISTEN:
            address, port = fields[1].rsplit(":", 1)
            yield Listener(_address(address), int(port, 16), fields[9])


def _address(text: str) -> str:
    if len(text) == 8:
        return str(_little_endian(text))
    words = [text[i : i + 8] for i in range(0, 32, 8)]
    packed = b"".join(struct.pack("<I", int(word, 16)) for word in words)
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def _little_endian(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(struct.pack("<I", int(text, 16)))


def _daemon_processes() -> Iterator[Path]:
    for directory in PROC.glob("[0-9]*"):
        try:
            if (directory / "comm").read_text().strip() in _DAEMONS:
                yield directory
        except OSError:
            continue


def _hard_nofile(directory: Path) -> int | None:
    for line in _read_lines(directory / "limits"):
        if line.startswith("Max open files"):
            hard = line.split()[4]
            return int(hard) if hard.isdigit() else 1 << 30
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
