"""MongoDB, the store in front of it and the yardstick, each in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pymongo

from agl.store.collection.mongo.indexes import INDEXES
from bench.servers import HEALTH_PATH, ROOT, free_port, metrics_folder

sys.path.append(str(ROOT / "tests" / "lab"))

from mongo import MongoServer, any_server

__all__ = ["STAND_IN", "MongoServer", "RunningStore", "any_server"]
__all__ += ["cpu_seconds", "inserting", "serving"]

STAND_IN = ("--sync-on-commit", "--cache-size", "4G")
"""Its ``bulkWrite`` drops the ``j: true`` that its ``insert`` heeds, so it syncs every commit; and
it builds an index in one transaction, which has to fit into its cache."""


PARTITION = "bench"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RunningStore:
    """A store that answers; ``pids`` are its server processes, without the one that starts them."""

    port: int
    pids: tuple[int, ...]


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used with all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def serving(
    server: MongoServer, database: str, processes: int, *, tracker: bool = True
) -> Generator[RunningStore]:
    """Run ``agl store`` on MongoDB while inside.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    command = [str(Path(sys.executable).with_name("agl")), "store", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "WARNING", "--n-workers", str(processes)]
    command += ["--backend", "mongo", "--mongo-uri", server.uri, "--database", database]
    command += ["--partition-id", PARTITION]
    if tracker:
        command += ["--tracker", "prometheus"]
    with metrics_folder() as folder, tempfile.TemporaryFile() as log:
        environment = {name: value for name, value in os.environ.items() if name[:5] != "PROME"}
        if tracker:
            environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            try:
                pids = _wait_ready(process, port, processes)
            except RuntimeError as error:
                log.seek(0)
                said = log.read().decode(errors="replace")[-2000:]
                raise RuntimeError(f"agl store: {error}\n{said}") from None
            yield RunningStore(port, pids)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, processes: int) -> tuple[int, ...]:
    deadline = time.monotonic() + _START_SECONDS
    seen: dict[int, float] = {}
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"ended with exit code {process.returncode}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if len(children) == processes and _healthy(port):
            for pid in map(int, children):
                seen.setdefault(pid, time.monotonic())
            if time.monotonic() - max(seen[int(pid)] for pid in children) > 1.0 + processes:
                return tuple(map(int, children))
        time.sleep(0.05)
    raise RuntimeError(f"not ready within {_START_SECONDS:.0f} s")


def _healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", HEALTH_PATH)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def inserting(
    server: MongoServer,
    database: str,
    processes: int,
    clients: int,
    seconds: Sequence[float],
    *,
    indexes: bool,
) -> dict[str, Any]:
    """Bare inserts by so many processes; with the indexes of our spans or with none but ``_id``."""
    name = "yardstick_indexed" if indexes else "yardstick_bare"
    with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        client[database].create_collection(name)
        if indexes:
            client[database][name].create_indexes([index.model() for index in INDEXES["spans"]])
    command = [sys.executable, "-m", "bench.mongo_insert", server.uri, database, name]
    shares = [clients // processes + (n < clients % processes) for n in range(processes)]
    running = [
        subprocess.Popen(
            [*command, str(share), *map(str, seconds)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    try:
        pipes = [(p.stdin, p.stdout) for p in running if p.stdin and p.stdout]
        for _, output in pipes:
            output.readline()
        for start, _ in pipes:
            start.write("\n")
            start.flush()
        time.sleep(seconds[0])
        before = 0.0 if server.pid is None else cpu_seconds(server.pid)
        time.sleep(seconds[1])
        after = 0.0 if server.pid is None else cpu_seconds(server.pid)
        found = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    rate = sum(one["inserts_per_second"] for one in found)
    return {
        "spans_per_second": rate,
        "p50_ms": max(one["p50_ms"] for one in found),
        "p99_ms": max(one["p99_ms"] for one in found),
        "client_cpu_us": sum(one["client_cpu_us"] for one in found) / len(found),
        "mongo_cpu_us_per_span": 1e6 * (after - before) / (rate * seconds[1]),
    }


def describe(server: MongoServer) -> str:
    """Which server the figures are from."""
    with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        version = client.server_info()["version"]
    own = {"secantusd-rs": "SecantusDB Rust", "secantusd-py": "SecantusDB Python"}
    return f"{own.get(server.name, server.name)}, which says it is MongoDB {version}"
