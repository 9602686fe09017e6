"""Processes that fill a metrics folder as server processes do, and count when they are told to."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, cast

PATHS_PER_FOLDER = 220
"""Label sets of each of two metrics: about 10,000 samples with 44 buckets, as upstream has."""


class Writers:
    """So many processes on one folder, each a child of one parent that imports once."""

    def __init__(self, folder: Path, processes: int, paths: int) -> None:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "bench.exporter_load", str(processes), str(paths)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._orders = cast("IO[str]", self._parent.stdin)
        self._answers = cast("IO[str]", self._parent.stdout)
        self._wait()

    def count(self) -> None:
        """Let every process count in every label set; returns when it is written."""
        self._orders.write("count\n")
        self._orders.flush()
        self._wait()

    def _wait(self) -> None:
        if self._answers.readline() != "done\n":
            raise RuntimeError("the writers have ended")

    def __enter__(self) -> Writers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._orders.close()
        self._parent.wait()

    @staticmethod
    def die(folder: Path, paths: int) -> None:
        """One process that counts and ends without a word; what it imports is there already."""
        import agl.utils.mapped_values
        import agl.utils.metrics  # noqa: F401 - see above

        child = os.fork()
        if child == 0:
            _die(folder, paths)
        os.waitpid(child, 0)


def _die(folder: Path, paths: int) -> None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    _count(_timers(paths), 1)
    os._exit(0)


def _timers(paths: int) -> Sequence[tuple[object, object]]:
    from prometheus_client import CollectorRegistry

    from agl.utils.metrics import LATENCY_BUCKETS, PrometheusMetricsBackend

    backend = PrometheusMetricsBackend(registry=CollectorRegistry())
    names = ("path", "method", "status")
    for name in ("agl.bench.http", "agl.bench.store"):
        backend.register_counter(f"{name}.total", names)
        backend.register_histogram(f"{name}.latency", names, buckets=LATENCY_BUCKETS)
    timers = []
    for number in range(paths):
        labels = {"path": f"/v1/agl/things/{number}/{{id}}", "method": "POST", "status": "200"}
        name = ("agl.bench.http", "agl.bench.store")[number % 2]
        timers.append((backend, (f"{name}.total", f"{name}.latency", labels)))
    return timers


def _count(timers: Sequence[tuple[object, object]], seed: int) -> None:
    chance = random.Random(seed)
    for backend, (counter, histogram, labels) in timers:
        for _ in range(4):
            backend.inc(counter, labels)
            backend.observe(histogram, chance.lognormvariate(-5, 2), labels)


def main() -> None:
    processes, paths = int(sys.argv[1]), int(sys.argv[2])
    timers = _timers(paths)
    pipes: list[tuple[int, int]] = []
    for number in range(processes):
        to_child, from_child = os.pipe(), os.pipe()
        if os.fork() == 0:
            for end in (to_child[1], from_child[0], *(end for pair in pipes for end in pair)):
                os.close(end)
            _serve(timers, number, to_child[0], from_child[1])
        os.close(to_child[0])
        os.close(from_child[1])
        pipes.append((to_child[1], from_child[0]))
    print("done", flush=True)
    for _ in sys.stdin:
        for to_child, from_child in pipes:
            os.write(to_child, b"x")
            os.read(from_child, 1)
        print("done", flush=True)
    for to_child, _ in pipes:
        os.close(to_child)
    for _ in pipes:
        os.wait()  # the folder is removed next


def _serve(timers: Sequence[tuple[object, object]], seed: int, orders: int, answers: int) -> None:
    while os.read(orders, 1):
        seed += 1000
        _count(timers, seed)
        os.write(answers, b"x")
    os._exit(0)


if __name__ == "__main__":
    main()
