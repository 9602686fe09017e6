"""The load generator: a C program, compiled on first use, that starts and finishes rollouts.

What it plays and how it counts is told at the top of ``native/load.c``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agl.bench.histogram import Histogram
from agl.config import cache_folder
from agl.errors import EnvironmentFault, UsageError
from agl.store.rest.transport import split_credentials
from agl.utils.whole_file import whole_file

ROLLOUT = "start, 4 spans of 8 attributes of 80 characters, finish"
REQUESTS_PER_ROLLOUT = 6
KINDS = ("start_rollout", "add_span", "update_attempt")
BUSY_SHARE = 0.7
"""Share of its own ceiling, or of a core, above which the loader may be what is measured."""

_NATIVE = Path(__file__).with_name("native")
_COMPILE = ("cc", "-O2", "-o")
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class Load:
    """What to play: seconds, connections, and the rollouts a second of an open loop (0: closed)."""

    connections: int
    seconds: float
    warmup: float = 0.0
    rate: float = 0.0
    patience: float = 0.0
    """How long the server may be away before the run is given up."""


@dataclass(frozen=True)
class LoadRun:
    """One run of the loader, as it was counted; times in seconds."""

    seconds: float
    rollouts: int
    requests: int
    failures: int
    first_failure: str
    broken: int
    """Requests whose connection was lost."""

    away: float
    gave_up: bool
    interrupted: bool
    unanswered: int
    """Requests of the open loop that were due and had no answer at the end."""

    late_server: int
    """Requests sent more than 1 ms late because every connection waited for an answer."""

    late_loader: int
    """Requests sent more than 1 ms late although a connection was free."""

    largest_lateness: float
    loader_cpu: float
    server_cpu: float | None
    latencies: Mapping[str, Histogram]
    """By kind of request, and ``all``."""

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> LoadRun:
        """Return what the program's JSON says."""
        histograms = {
            kind: Histogram.of(said[kind]["largest"], said[kind]["buckets"])
            for kind in (*KINDS, "all")
        }
        same = ("seconds", "rollouts", "requests", "failures", "first_failure", "broken", "gave_up")
        counts = ("interrupted", "unanswered", "late_server", "late_loader", "server_cpu")
        return cls(
            **{name: said[name] for name in (*same, *counts, "loader_cpu")},
            away=said["away_seconds"],
            largest_lateness=said["largest_lateness"] / 1e9,
            latencies=histograms,
        )

    @property
    def rollouts_per_second(self) -> float:
        """Finished rollouts a second."""
        return self.rollouts / self.seconds if self.seconds else 0.0

    @property
    def requests_per_second(self) -> float:
        """Answers a second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def loader_cpu_share(self) -> float:
        """How much of a core the loader took."""
        return self.loader_cpu / self.seconds if self.seconds else 0.0

    @property
    def server_cpu_share(self) -> float:
        """How much of a core the server's processes took; 0 when they were not named."""
        return (self.server_cpu or 0.0) / self.seconds if self.seconds else 0.0

    @property
    def server_cpu_per_request(self) -> float:
        """CPU seconds of the server's processes a request; 0 when they were not named."""
        return (self.server_cpu or 0.0) / self.requests if self.requests else 0.0


def build(name: str = "load") -> Path:
    """Return the compiled program, compiling it unless that has been done for this source.

    Raises:
        EnvironmentFault: there is no C compiler, or it fails.
    """
    sources = (_NATIVE / f"{name}.c", _NATIVE / "histogram.h")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    program = cache_folder() / f"{name}-{digest}"
    if program.exists():
        return program
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(program) as partial:
            command = [*_COMPILE, str(partial), str(sources[0])]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise EnvironmentFault(
            "no C compiler for the load generator", remedy="sudo apt-get install -y gcc libc6-dev"
        ) from None
    except subprocess.CalledProcessError as failed:
        raise EnvironmentFault(f"the load generator does not compile: {failed.stderr}") from None
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {program}: {error.strerror}", remedy="set XDG_CACHE_HOME to a folder"
        ) from error
    return program


class Loader:
    """Plays loads against one store; ``url`` may hold credentials.

    Raises:
        UsageError: the URL is one that the loader cannot speak.
        EnvironmentFault: it cannot be compiled, or the host is unknown.
    """

    def __init__(self, url: str) -> None:
        self._program = build()
        root, authorization = split_credentials(url.rstrip("/"))
        parts = urlsplit(root)
        if parts.scheme != "http" or parts.hostname is None:
            raise UsageError(
                "--store-url: the load generator speaks plain http; "
                "name the address behind whatever adds TLS"
            )
        self._port = parts.port or 80
        self._address = _address(parts.hostname, self._port)
        self._prefix = parts.path
        self._headers = f"Host: {parts.netloc}\r\n"
        if authorization:
            self._headers += f"Authorization: {authorization}\r\n"
        self._process: subprocess.Popen[str] | None = None

    def play(self, load: Load, pids: Sequence[int] = ()) -> LoadRun:
        """Play one load; ``pids`` are the processes of the server, where their CPU is wanted.

        Raises:
            EnvironmentFault: what answers cannot be understood.
        """
        command = [str(self._program), self._address, str(self._port), self._prefix]
        command += [str(load.connections), str(load.warmup), str(load.seconds)]
        command += [str(load.rate), str(load.patience), *map(str, pids)]
        self._process = process = subprocess.Popen(
            command,
            env={"AGL_LOAD_HEADERS": self._headers},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said, complaint = process.communicate()
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            scarce = any(os.strerror(number) in complaint for number in _SCARCE)
            raise EnvironmentFault(
                complaint.strip() or "the load generator was killed",
                remedy="fewer --clients, or more open files (ulimit -n)" if scarce else "",
            )
        return LoadRun.parse(json.loads(said))

    def stop(self) -> None:
        """End a run early; :meth:`play` returns what was done until then."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def ceiling(load: Load, running: Callable[[Loader], None] = lambda _: None) -> float:
    """Return how many requests a second the loader itself reaches, in a closed loop.

    It plays against the least that a server can do, on this machine. ``running`` gets the loader
    before it starts, for whoever may want to stop it.
    """
    with _endpoint() as url:
        loader = Loader(url)
        running(loader)
        return loader.play(Load(load.connections, load.seconds, load.warmup)).requests_per_second


@contextlib.contextmanager
def _endpoint() -> Generator[str]:
    process = subprocess.Popen(
        [str(build("endpoint"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        if not port:
            raise EnvironmentFault("the bare endpoint of the load generator does not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def _address(host: str, port: int) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EnvironmentFault(
            f"the host {host!r} of --store-url is unknown: {error.strerror}"
        ) from error
    return str(found[0][4][0])
