"""``agl stack container-exporter``: memory, kills and starts of the bundle's containers.

It reads the host's cgroup files, which every user may read, and nothing else: no Docker socket,
which would be as good as root. A container's cgroup is called by its id; which service it is shows
in the name of the slice above it, which the compose files choose (``cgroup_parent``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from agl.errors import EnvironmentFault
from agl.ops.options import LineParser

PORT = 9101
SLICE = ".slice"
MAX_DEPTH = 8
NO_LIMIT = 1 << 60
"""Version 1 says "no limit" with the largest multiple of a page."""
_CONTAINER = re.compile(r"(?:docker-)?([0-9a-f]{64})(?:\.scope)?")

HELP = {
    "agl_container_memory_bytes": (
        "gauge",
        "Memory of the service's container, without file pages that can be given back.",
    ),
    "agl_container_memory_limit_bytes": ("gauge", "Most memory that it may have."),
    "agl_container_oom_kills_total": ("counter", "Processes that ended at that limit."),
    "agl_container_starts_total": ("counter", "Starts of the service's container seen up to now."),
}


@dataclass(frozen=True)
class Memory:
    """One look at a container's cgroup; bytes. ``limit`` is ``None`` for none."""

    used: int
    limit: int | None
    kills: int


@dataclass
class Seen:
    """What is counted of one service: by cgroup, each of which is one start of a container."""

    kills: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])


@dataclass
class Collector:
    """Looks at the cgroups of one Compose project whenever it is asked.

    Attributes:
        root: Where the host's cgroup file systems are mounted.
        project: Compose project; its slices are called ``PROJECT-SERVICE.slice``.
    """

    root: Path
    project: str
    _seen: dict[str, Seen] = field(default_factory=dict[str, Seen])
    _lock: Lock = field(default_factory=Lock)

    def render(self) -> str:
        """All series in Prometheus' text format."""
        samples: dict[str, list[str]] = {name: [] for name in HELP}
        with self._lock:
            now = self._look()
            for service, memories in sorted(now.items()):
                label = f'{{service="{service}"}}'
                used = sum(memory.used for memory in memories)
                limits = [memory.limit for memory in memories if memory.limit is not None]
                samples["agl_container_memory_bytes"].append(f"{label} {used}")
                if limits:
                    limit = f"{label} {sum(limits)}"
                    samples["agl_container_memory_limit_bytes"].append(limit)
            for service, seen in sorted(self._seen.items()):
                label = f'{{service="{service}"}}'
                kills = f"{label} {sum(seen.kills.values())}"
                samples["agl_container_oom_kills_total"].append(kills)
                samples["agl_container_starts_total"].append(f"{label} {len(seen.kills)}")
        return "".join(
            f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            + "".join(f"{name}{sample}\n" for sample in samples[name])
            for name, (kind, text) in HELP.items()
        )

    def _look(self) -> dict[str, list[Memory]]:
        found: dict[str, list[Memory]] = {}
        for service, container, folder in self._containers():
            try:
                # A cgroup is made anew for each start, with a number of its own.
                number = folder.stat().st_ino
                memory = read_memory(folder)
            except OSError:
                continue  # gone meanwhile
            found.setdefault(service, []).append(memory)
            kills = self._seen.setdefault(service, Seen()).kills
            kills[container, number] = max(memory.kills, kills.get((container, number), 0))
        return found

    def _containers(self) -> Iterator[tuple[str, str, Path]]:
        """(service, container id, folder) of each container that runs."""
        for name, folder in _slices(self._hierarchy(), f"{self.project}-", 0):
            service = name.removeprefix(f"{self.project}-").removesuffix(SLICE)
            for entry in _folders(folder):
                match = _CONTAINER.fullmatch(entry.name)
                if match:
                    yield service, match[1], Path(entry.path)

    def _hierarchy(self) -> Path:
        return self.root if (self.root / "cgroup.controllers").exists() else self.root / "memory"


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _slices(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    """Slices whose names begin so, however deep: systemd nests them, Docker may be nested too."""
    for entry in _folders(folder):
        if _CONTAINER.fullmatch(entry.name):
            continue
        if entry.name.startswith(prefix) and entry.name.endswith(SLICE):
            yield entry.name, Path(entry.path)
        if depth < MAX_DEPTH:
            yield from _slices(Path(entry.path), prefix, depth + 1)


def read_memory(folder: Path) -> Memory:
    """What the kernel says of one cgroup, of either version. Raises OSError when it is gone."""
    if (folder / "memory.current").exists():
        used, limit = _number(folder / "memory.current"), _number(folder / "memory.max")
        inactive, events = "inactive_file", "memory.events"
    else:
        used = _number(folder / "memory.usage_in_bytes")
        limit = _number(folder / "memory.limit_in_bytes")
        inactive, events = "total_inactive_file", "memory.oom_control"
    return Memory(
        used=max(0, used - _table(folder / "memory.stat").get(inactive, 0)),
        limit=limit if 0 < limit < NO_LIMIT else None,
        kills=_table(folder / events).get("oom_kill", 0),
    )


def _number(path: Path) -> int:
    text = path.read_text("ascii").strip()
    return NO_LIMIT if text == "max" else int(text)


def _table(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text("ascii").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def server(collector: Collector, address: tuple[str, int]) -> ThreadingHTTPServer:
    """A server of ``/metrics`` and ``/health`` that is not started yet."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = {"/metrics": collector.render, "/health": lambda: "ok\n"}
            answer = known.get(self.path)
            body = answer().encode() if answer else b""
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A line for each scrape tells nothing."""

    return ThreadingHTTPServer(address, Handler)


def main(argv: list[str], prog: str) -> int:
    """Serve until ended; returns 0. Raises EnvironmentFault where there are no cgroup files."""
    parser = LineParser(prog=prog, description="Serve memory and starts of the containers.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--cgroup-root", type=Path, default=Path("/sys/fs/cgroup"))
    parser.add_argument("--project", default="agl")
    options = parser.parse_args(argv)
    root: Path = options.cgroup_root
    if not (root / "cgroup.controllers").exists() and not (root / "memory").is_dir():
        raise EnvironmentFault(
            f"{root} has no cgroup files of memory", remedy="mount the host's /sys/fs/cgroup there"
        )
    with server(Collector(root, options.project), (options.host, options.port)) as running:
        running.serve_forever()
    return 0
