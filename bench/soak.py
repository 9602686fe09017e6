"""Whether a server that works for long keeps its memory.

Two parts, each against a fresh server in a process of its own, with the Prometheus tracker on:

* ``passing``: everything that leaves nothing behind (questions, waits, heartbeats, duplicates,
  polls of an empty queue, unknown ids). Memory has to be flat after the warm-up.
* ``working``: whole rollouts, whose spans are evicted at a low threshold. Rollouts and attempts are
  kept for ever, so memory grows by them and by nothing else.

Before either begins, the server's kept answers (``rest/replays.py``) are filled to their limit,
which traffic alone would take minutes for. Figures are slopes of the resident memory after a
warm-up of a third of the time, fitted by least squares. ``passing`` is called flat, and the exit
code is 0, when it rises by at most 64 KiB a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from agl.cli import CommandParser
from agl.cli._bench_options import not_negative
from agl.errors import NotFoundError
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.client import LightningStoreClient
from agl.store.rest.replays import ENTRY_BYTES, KEPT_BYTES
from agl.store.rest.server import LightningStoreServer
from agl.types import AttemptedRollout, EnqueueRolloutRequest, OtelResource, Span, TraceStatus
from agl.utils.garbage import spare_old_objects
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.server_launcher import PythonServerLauncherArgs
from bench import entry
from bench.documents import document, flat
from bench.servers import ROOT

HOST = "127.0.0.1"
CLIENTS = 8
SPAN_BYTES = 4 * 2**20
SPANS = 4
ATTRIBUTES = {f"attribute-{i}": "x" * 80 for i in range(8)}
START_SECONDS = 30.0
SAMPLE_SECONDS = 1.0
FLAT_KIB_PER_MINUTE = 64.0


@dataclass
class Samples:
    """Resident bytes of the server over time and over calls."""

    seconds: list[float] = field(default_factory=list[float])
    calls: list[float] = field(default_factory=list[float])
    rss: list[float] = field(default_factory=list[float])

    def after(self, warm_up: float) -> Samples:
        first = next((i for i, s in enumerate(self.seconds) if s >= warm_up), len(self.seconds))
        return Samples(self.seconds[first:], self.calls[first:], self.rss[first:])


class Load:
    """Clients in this process, at work until told to stop."""

    def __init__(self, client: LightningStoreClient) -> None:
        self.client = client
        self.done = 0
        self._stop = False

    async def run(self, work: Callable[[int], Awaitable[None]], seconds: float) -> None:
        async def again(number: int) -> None:
            while not self._stop:
                await work(number)
                self.done += 1

        workers = [asyncio.create_task(again(number)) for number in range(CLIENTS)]
        finished, _ = await asyncio.wait(
            workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        self._stop = True
        await asyncio.gather(*workers)
        if finished:
            raise RuntimeError("The clients stopped early")


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    seconds, started = options.minutes * 60 / 2, time.time()
    report = {part: asyncio.run(soak(part, seconds)) for part in ("passing", "working")}
    print(text_of(report))
    if options.json is not None:
        problems = [] if is_flat(report["passing"]) else ["memory grows though nothing stays"]
        parameters = {"minutes": options.minutes}
        result = document("soak", parameters, flat("", report), started, report, problems)
        result.write(options.json)
    return 0 if is_flat(report["passing"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="./scripts/bench soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--minutes", type=not_negative, default=10.0, help="for both parts together (default: 10)"
    )
    parser.add_argument("--json", type=entry.target, help="also write the figures to this file")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    return parser


# The server


async def serve(port: int) -> None:
    """Serve a store whose spans may take little memory, until killed."""
    tracker = PrometheusMetricsBackend()
    store = InMemoryLightningStore(
        thread_safe=True, eviction_memory_threshold=SPAN_BYTES, tracker=tracker
    )
    server = LightningStoreServer(
        store,
        launcher_args=PythonServerLauncherArgs(
            host=HOST, port=port, healthcheck_url="/v1/agl/health", launch_mode="asyncio"
        ),
        tracker=tracker,
    )
    await server.start()
    spare_old_objects()  # as the command does
    await asyncio.Event().wait()


@contextlib.contextmanager
def serving() -> Generator[tuple[int, psutil.Process]]:
    """A server in a process of its own: its port and the process."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.soak", "--serve", str(port)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_ready(process, port)
        yield port, psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"The server ended with exit code {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"The server did not listen on port {port} within {START_SECONDS:.0f} s")


# The parts


async def soak(part: str, seconds: float) -> dict[str, float]:
    """Figures of one part."""
    with serving() as (port, process):
        client = LightningStoreClient(f"http://{HOST}:{port}")
        try:
            await fill_kept_answers(client)
            load = Load(client)
            work = Working(client) if part == "working" else await Passing.prepared(client)
            samples = Samples()
            watching = asyncio.create_task(_watch(process, load, samples))
            await load.run(work, seconds)
            watching.cancel()
            totals: Any = await client.statistics()
        finally:
            await client.close()
    steady = samples.after(seconds / 3)
    if len(steady.rss) < 5:
        raise RuntimeError("Too few samples: give it more minutes")
    return {
        "calls": load.done,
        "resident_mib": steady.rss[-1] / 2**20,
        "kib_per_minute": slope(steady.seconds, steady.rss) * 60 / 2**10,
        "bytes_per_call": slope(steady.calls, steady.rss),
        "rollouts": totals["total_rollouts"],
        "evicted_spans": totals["evicted_spans"],
    }


async def fill_kept_answers(client: LightningStoreClient) -> None:
    """Poll the empty queue until the server keeps as many answers as it ever does."""

    async def poll(times: int) -> None:
        for _ in range(times):
            await client.dequeue_rollout()

    await asyncio.gather(*[poll(KEPT_BYTES // ENTRY_BYTES // CLIENTS) for _ in range(CLIENTS)])


async def _watch(process: psutil.Process, load: Load, samples: Samples) -> None:
    began = time.monotonic()
    while True:
        samples.seconds.append(time.monotonic() - began)
        samples.calls.append(load.done)
        samples.rss.append(process.memory_info().rss)
        await asyncio.sleep(SAMPLE_SECONDS)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Rise of the straight line through the points, by least squares."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


class Working:
    """One call is one rollout: queued, claimed, its spans stored, finished, waited for."""

    def __init__(self, client: LightningStoreClient) -> None:
        self._client = client

    async def __call__(self, number: int) -> None:
        client = self._client
        await client.enqueue_many_rollouts([EnqueueRolloutRequest(input={"task": number})])
        claimed = await client.dequeue_rollout(worker_id=f"w-{number}")
        if claimed is None:
            return
        spans = [make_span(claimed, number) for number in range(1, SPANS + 1)]
        await client.add_many_spans(spans)
        await client.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await client.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=0)


class Passing:
    """One call is one request that leaves nothing behind."""

    def __init__(self, client: LightningStoreClient, rollouts: list[AttemptedRollout]) -> None:
        self._client = client
        self._rollouts = rollouts
        self._random = random.Random(1)

    @classmethod
    async def prepared(cls, client: LightningStoreClient) -> Passing:
        rollouts: list[AttemptedRollout] = []
        for number in range(100):
            rollout = await client.start_rollout(number, worker_id=f"w-{number % CLIENTS}")
            await client.add_many_spans([make_span(rollout, i) for i in range(1, SPANS + 1)])
            rollouts.append(rollout)
        return cls(client, rollouts)

    async def __call__(self, number: int) -> None:
        client, one = self._client, self._random.choice(self._rollouts)
        key = one.rollout_id
        match self._random.randrange(12):
            case 0:
                await client.get_rollout_by_id(key)
            case 1:
                await client.query_rollouts(limit=20, sort_by="start_time", sort_order="desc")
            case 2:
                await client.query_spans(key, "latest")
            case 3:
                await client.query_attempts(key)
            case 4:
                await client.add_span(make_span(one, 1))  # is there already
            case 5:
                await client.update_attempt(key, "latest", last_heartbeat_time=time.time())
            case 6:
                await client.update_attempt(key, "latest", status="running")
            case 7:
                await client.dequeue_rollout(worker_id=f"w-{number}")
            case 8:
                await client.update_worker(f"w-{number}", {"cpu": self._random.random()})
            case 9:
                await client.wait_for_rollouts(rollout_ids=[key], timeout=0.01)
            case 10:
                await client.get_next_span_sequence_id(key, one.attempt.attempt_id)
            case _:
                with contextlib.suppress(NotFoundError):
                    unknown = f"ro-{self._random.randrange(2**40):012x}"
                    await client.update_attempt(unknown, "latest", status="failed")


def make_span(rollout: AttemptedRollout, number: int) -> Span:
    return Span(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        parent_id=None,
        name="step",
        status=TraceStatus(status_code="OK"),
        attributes=dict(ATTRIBUTES),
        events=[],
        links=[],
        start_time=1.0,
        end_time=2.0,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def is_flat(part: dict[str, float]) -> bool:
    """Whether memory stays what it is, but for a grain that a long run does not notice."""
    return part["kib_per_minute"] <= FLAT_KIB_PER_MINUTE


def text_of(report: dict[str, dict[str, float]]) -> str:
    passing, working = report["passing"], report["working"]
    return "\n".join(
        [
            f"passing  {passing['calls']:>9,.0f} calls     "
            f"{passing['kib_per_minute']:+9.1f} KiB/min  {passing['bytes_per_call']:+8.1f} "
            f"bytes/call     at {passing['resident_mib']:.1f} MiB: "
            f"{'flat' if is_flat(passing) else 'NOT flat'}",
            f"working  {working['calls']:>9,.0f} rollouts  "
            f"{working['kib_per_minute']:+9.1f} KiB/min  {working['bytes_per_call']:+8.1f} "
            f"bytes/rollout  at {working['resident_mib']:.1f} MiB, "
            f"{working['evicted_spans']:,.0f} spans evicted",
        ]
    )


if __name__ == "__main__":
    sys.exit(entry.run("bench soak", lambda: main(sys.argv[1:])))
