"""A MongoDB to test against: a stand-in on a free port, or a real server.

What is used, first match wins:

* ``AGL_TEST_MONGO_URI``: a running server, preferably MongoDB 8.0; databases are made and dropped.
* ``AGL_TEST_MONGO_SERVER``: ``secantusd-rs`` or ``secantusd-py``.
* ``secantusd-rs`` from PATH or ``~/.cargo/bin``.
* ``secantusd-py`` from the environment that ``tests/lab/mongo-venv.sh`` makes.

The stand-ins are for tests and trials only. Test ids say which server it was.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
import pytest

LAB_VENV = Path("~/.cache/agl-stack/lab").expanduser()
START_SECONDS = 60
PASSWORD = "s3cret"
"""Of every user that :func:`create_users` makes."""


def server_name() -> str:
    """``mongod`` for a real server, else the program of the stand-in."""
    if os.environ.get("AGL_TEST_MONGO_URI"):
        return "mongod"
    named = os.environ.get("AGL_TEST_MONGO_SERVER")
    return named or ("secantusd-rs" if _rust_program() else "secantusd-py")


def _rust_program() -> str | None:
    beside_cargo = Path("~/.cargo/bin").expanduser()
    return shutil.which("secantusd-rs") or shutil.which("secantusd-rs", path=beside_cargo)


def _program(name: str) -> str:
    in_venv = shutil.which(name, path=LAB_VENV / "bin")
    found = _rust_program() if name == "secantusd-rs" else in_venv
    if found is None:
        raise RuntimeError(f"{name} is not installed - type: tests/lab/mongo-venv.sh")
    return found


@dataclass
class MongoServer:
    """A server that answers; ``pid`` is ``None`` for one that we did not start."""

    name: str
    uri: str
    pid: int | None = None
    storage: Path | None = None

    @property
    def is_slow(self) -> bool:
        """Whether tests should work at reduced scale."""
        return self.name == "secantusd-py"

    def uri_of(self, user: str) -> str:
        """The connection string for one of the users that :func:`create_users` makes."""
        return self.uri.replace("://", f"://{user}:{PASSWORD}@", 1)

    def new_database(self) -> str:
        """A database name that nobody uses."""
        return f"agl_test_{uuid.uuid4().hex[:12]}"

    def drop(self, database: str) -> None:
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            client.drop_database(database)


def start_arguments(name: str, storage: Path, port: int = 0) -> list[str]:
    """The command line of a stand-in; port 0 picks a free one."""
    where = ["--host", "127.0.0.1", "--port", str(port), "--storage-path", str(storage)]
    return [_program(name), *where, "--log-level", "INFO", "--cache-size", "256M"]


@contextmanager
def running_stand_in(
    name: str, *extra: str, storage: Path | None = None, port: int = 0
) -> Iterator[MongoServer]:
    """A stand-in of its own, ended by its pid; its data is deleted unless ``storage`` is given."""
    with tempfile.TemporaryDirectory(prefix="agl-mongo-") as folder:
        log_path = Path(folder) / "log"
        data = storage or Path(folder) / "data"
        data.mkdir(exist_ok=True)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*start_arguments(name, data, port), *extra],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        try:
            found = _wait_for_port(process, log_path)
            uri = f"mongodb://127.0.0.1:{found}/?replicaSet=secantus"
            yield MongoServer(name, uri, process.pid, data)
        finally:
            _end(process)


def create_users(
    name: str,
    storage: Path,
    roles: Mapping[str, Mapping[str, str]],
    fill: Callable[[pymongo.MongoClient[dict[str, Any]]], object] = lambda _: None,
) -> None:
    """Make the data of a stand-in that is to be run with ``--auth``.

    Args:
        name: Which stand-in.
        storage: Its folder.
        roles: What each user may do.
        fill: Writes what else is to be in it.
    """
    with (
        running_stand_in(name, storage=storage) as server,
        pymongo.MongoClient[dict[str, Any]](server.uri) as client,
    ):
        for user, role in roles.items():
            client.admin.command("createUser", user, pwd=PASSWORD, roles=[role])
        fill(client)


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if port := _listening_port(process.pid, log):
            return port
        time.sleep(0.05)
    raise RuntimeError(f"the stand-in does not listen: {log.read_text()}")


def _listening_port(pid: int, log: Path) -> int | None:
    """From its output where it tells, else from the kernel."""
    told = re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text(), re.IGNORECASE)
    if told:
        return int(told[1])
    try:
        inodes = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return None
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].split(":")[1], 16)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a test may have stopped it
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def any_server(*extra: str) -> Iterator[MongoServer]:
    """The server to test against; a stand-in is started for as long as the context lasts.

    Args:
        extra: Arguments for the stand-in.
    """
    name = server_name()
    if name == "mongod":
        yield MongoServer(name, os.environ["AGL_TEST_MONGO_URI"])
        return
    with running_stand_in(name, *extra) as server:
        yield server


@pytest.fixture(scope="session", params=[server_name()])
def mongo_server(request: pytest.FixtureRequest) -> Iterator[MongoServer]:
    """One server for all tests of this process."""
    with any_server() as server:
        yield server


@pytest.fixture
def mongo_database(mongo_server: MongoServer) -> Iterator[str]:
    """A database of its own for one test, dropped afterwards."""
    name = mongo_server.new_database()
    yield name
    mongo_server.drop(name)
