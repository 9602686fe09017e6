"""A snapshot of Prometheus' samples, and the ways to the folder that it lies in."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from agl.bench.target import redacted
from agl.errors import EnvironmentFault
from agl.ops.shapes import mapping, parsed
from agl.store.rest.transport import split_credentials

CONTAINER_DATA = "/prometheus"
_SNAPSHOT_SECONDS = 300.0
_ASK_SECONDS = 10.0
_SNAPSHOT = re.compile(r"\w[\w-]*")
OVERLAY = "compose.admin-api.yml"


@dataclass(frozen=True)
class Block:
    """A block of samples; times in seconds since the epoch."""

    folder: Path
    start: float
    end: float
    samples: int


class Data(Protocol):
    """Prometheus' data folder, wherever it is."""

    def check(self) -> None:
        """Raise EnvironmentFault when it is out of reach, before Prometheus is asked."""
        ...

    def fetch(self, snapshot: str, into: Path) -> None:
        """Put the blocks of a snapshot into a folder. Raises EnvironmentFault."""
        ...

    def remove(self, snapshot: str) -> None:
        """Delete the snapshot. Raises EnvironmentFault."""
        ...


@dataclass(frozen=True)
class Folder:
    """The data folder is on this machine."""

    path: Path

    def check(self) -> None:
        if not (self.path / "wal").is_dir():
            raise EnvironmentFault(
                f"{self.path} is not the data folder of a Prometheus",
                remedy="give the one that it was started with (--storage.tsdb.path)",
            )

    def fetch(self, snapshot: str, into: Path) -> None:
        source = self.path / "snapshots" / snapshot
        if not source.is_dir():
            raise EnvironmentFault(
                f"the snapshot {snapshot} is not in {source.parent}: {self.path} is the data folder"
                " of another Prometheus; the snapshot stays where it was made",
                remedy="give the folder of the one at --prometheus",
            )
        try:
            shutil.copytree(source, into, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise EnvironmentFault(f"{source} cannot be copied: {error}") from error

    def remove(self, snapshot: str) -> None:
        shutil.rmtree(self.path / "snapshots" / snapshot, ignore_errors=True)


@dataclass(frozen=True)
class Container:
    """The data folder is in a container, whose files ``docker cp`` hands out."""

    name: str

    def check(self) -> None:
        self._docker("exec", self.name, "test", "-d", f"{CONTAINER_DATA}/wal")

    def fetch(self, snapshot: str, into: Path) -> None:
        source = str(PurePosixPath(CONTAINER_DATA, "snapshots", snapshot))
        self._docker("cp", f"{self.name}:{source}/.", str(into))

    def remove(self, snapshot: str) -> None:
        path = str(PurePosixPath(CONTAINER_DATA, "snapshots", snapshot))
        self._docker("exec", self.name, "rm", "-rf", path)

    def _docker(self, *arguments: str) -> None:
        try:
            done = subprocess.run(
                ["docker", *arguments], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise EnvironmentFault(f"docker cannot be run: {error.strerror}") from error
        if done.returncode:
            said = done.stderr.strip() or f"{' '.join(arguments[2:])} failed in {self.name}"
            raise EnvironmentFault(f"docker {arguments[0]}: {said}")


@contextmanager
def taken(prometheus: str, data: Data, into: Path) -> Generator[list[Block]]:
    """Take a snapshot and put its blocks into a folder; Prometheus' own copy is deleted after it.

    Raises:
        EnvironmentFault: the admin API is off, Prometheus is away, or its folder is out of reach.
    """
    data.check()
    name = _take(prometheus)
    try:
        data.fetch(name, into)
    finally:
        data.remove(name)
    yield blocks(into)


def blocks(folder: Path) -> list[Block]:
    """The blocks below a folder, the oldest first."""
    found: list[Block] = []
    for meta in folder.glob("*/meta.json"):
        told = parsed(meta.read_text())
        stats = mapping(told.get("stats"))
        found.append(
            Block(
                meta.parent,
                float(told.get("minTime", 0)) / 1000,
                float(told.get("maxTime", 0)) / 1000,
                int(stats.get("numSamples", 0)),
            )
        )
    return sorted(found, key=lambda block: block.start)


def build_info(prometheus: str) -> dict[str, str]:
    """What Prometheus says of its version. Raises EnvironmentFault when it does not answer."""
    data = mapping(_ask(prometheus, "/api/v1/status/buildinfo", "GET", _ASK_SECONDS).get("data"))
    return {name: str(data[name]) for name in ("version", "revision", "goVersion") if name in data}


def _take(prometheus: str) -> str:
    told = _ask(prometheus, "/api/v1/admin/tsdb/snapshot", "POST", _SNAPSHOT_SECONDS)
    if told.get("status") != "success":
        error = str(told.get("error") or "it gave no reason")
        if "admin API" in error:
            raise EnvironmentFault(
                f"Prometheus at {redacted(prometheus)} has its admin API off, as it should be",
                remedy="put it on for the snapshot: --overlay for the bundle's, else start"
                " Prometheus with --web.enable-admin-api on loopback",
            )
        raise EnvironmentFault(f"Prometheus made no snapshot: {error}")
    name = str(mapping(told.get("data")).get("name", ""))
    if not _SNAPSHOT.fullmatch(name):
        raise EnvironmentFault(f"Prometheus calls its snapshot {name[:80]!r}, which is no name")
    return name


def _ask(prometheus: str, path: str, method: str, seconds: float) -> dict[str, object]:
    root, authorization = split_credentials(prometheus.rstrip("/"))
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(root + path, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return parsed(answer.read().decode())
    except urllib.error.HTTPError as error:
        return parsed(error.read().decode(errors="replace")) or {"error": f"HTTP {error.code}"}
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise EnvironmentFault(
            f"Prometheus at {redacted(prometheus)} does not answer: {reason}",
            remedy="check --prometheus",
        ) from error
