"""Servers that are started by a command, looked at until they are ready, and ended again."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import IO

import psutil

from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError

PORT = "{port}"
"""Stands in a command for the port that it is to listen on."""

HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
_PROBE_SECONDS = 2.0
_STOP_SECONDS = 15.0
_LAST_WORDS = 2000
"""Characters of a command's output that are kept for a message."""


@dataclass(frozen=True)
class Contender:
    """A server's command, in words, ``{port}`` among them; ``name`` is A or B."""

    name: str
    words: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables beside those of this process."""

    @classmethod
    def parse(cls, name: str, text: str) -> Contender:
        """Read a command as a shell would cut it; no shell runs it.

        Raises:
            UsageError: it cannot be cut into words, or has no place for the port.
        """
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"--{name.lower()}: {text!r} cannot be read: {error}") from None
        if not any(PORT in word for word in words):
            raise UsageError(
                f"--{name.lower()}: {text!r} has no {PORT}, where the server's port belongs"
            )
        return cls(name, words)

    def command(self, port: int) -> list[str]:
        """The command for one run."""
        return [word.replace(PORT, str(port)) for word in self.words]


@dataclass
class Server:
    """A server that answers; ``ready`` is seconds from its start to its first answer."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    ready: float
    log: IO[bytes]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    def pids(self) -> list[int]:
        """Its process and the processes that those have started."""
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            return [root.pid, *(child.pid for child in root.children(recursive=True))]
        return []

    def memory(self) -> int:
        """Resident memory of all its processes in bytes."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total

    def wait_for_its_end(self, seconds: float) -> None:
        """Give a process that seems to be dying the time to do so."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def fate(self, when: str) -> str:
        """How it ended, ``when``, and its last words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"server {self.name} {how} {when}{_last_words(self.log)}"


@contextlib.contextmanager
def serving(
    contender: Contender,
    ready_path: str,
    seconds: float,
    over: Callable[[], bool] = lambda: False,
) -> Generator[Server]:
    """Run a server while inside, from when it answers ``ready_path`` with a status below 400.

    Raises:
        EnvironmentFault: it does not start, dies, or is not ready within ``seconds`` or when
            ``over`` says that nobody waits any more.
    """
    port = free_port()
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        process = _start(contender, port, log)
        server = Server(contender.name, process, port, 0.0, log)
        try:
            _wait_ready(server, ready_path, began + seconds, over)
            server.ready = time.monotonic() - began
            yield server
        finally:
            _end(process)


def _start(contender: Contender, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = contender.command(port)
    try:
        return subprocess.Popen(
            command,
            env={**process_environment(), **contender.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFault(
            f"server {contender.name} cannot be started: {command[0]}: {error.strerror}"
        ) from error


def _wait_ready(server: Server, path: str, deadline: float, over: Callable[[], bool]) -> None:
    answer = "nothing"
    while time.monotonic() < deadline and not over():
        if fate := server.fate("before it was ready"):
            raise EnvironmentFault(fate)
        answer = _ask(server.port, path)
        if answer == "":
            return
        time.sleep(_POLL_SECONDS)
    raise EnvironmentFault(
        f"server {server.name} did not get ready in time: GET {server.url}{path} gave {answer};"
        f" raise --ready-timeout, or name another --ready-path{_last_words(server.log)}"
    )


def _ask(port: int, path: str) -> str:
    """What was wrong with the answer; empty when it was fine."""
    with contextlib.closing(HTTPConnection(HOST, port, timeout=_PROBE_SECONDS)) as connection:
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__
    return "" if status < 400 else f"HTTP {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever it has started, which is in its session."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - _LAST_WORDS, 0))
    said = log.read().decode(errors="replace").strip()
    log.seek(0, os.SEEK_END)
    return f"; its last words: {said}" if said else "; it said nothing"


def free_port() -> int:
    """A port on loopback that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
