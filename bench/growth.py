"""What the store in memory costs when it is full, against what it costs when it is nearly empty.

Figures are ratios within one run, or counts. Every rollout has spans of 8 attributes of 80
characters. A small store of 1,000 rollouts is measured in turns with the full one, in CPU time of
the thread, so that other work on the machine and a changing clock touch both alike.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import psutil

from agl.cli import CommandParser
from agl.cli._bench_options import positive
from agl.store.memory import InMemoryLightningStore
from agl.types import EnqueueRolloutRequest, RolloutConfig, Span
from agl.utils.garbage import spare_old_objects
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.ownership import share_objects
from bench import entry
from bench.documents import document, flat
from bench.in_process import InProcessServer

SMALL = 1_000
ROUNDS = 25
BLOCK = 40
NEVER = 2**50
PARTS = ("plain", "tracker", "stalls")
Call = Callable[[], Awaitable[object]]
Ids = tuple[str, str]


QUESTIONS = {
    "statistics": (1000, "/statistics", ""),
    "state": (1000, "/state", ""),
    "stuck": (100, "/stuck", ""),
    "stuck_1000": (20, "/stuck", "limit=1000"),
    "first_page": (100, "/rollouts", "limit=100"),
    "first_page_by_status": (100, "/rollouts", "limit=100&status_in=succeeded&status_in=failed"),
    "deep_page_by_status": (3, "/rollouts", "limit=100&offset=400000&status_in=succeeded"),
    "newest_page": (3, "/rollouts", "limit=100&sort_by=start_time&sort_order=desc"),
    "page_by_end": (3, "/rollouts", "limit=100&sort_by=end_time"),
    "deep_page_by_id": (3, "/rollouts", "limit=100&offset=400000&sort_by=rollout_id"),
    "everything": (1, "/rollouts", "limit=-1"),
    "page_by_part_of_id": (3, "/rollouts", "limit=100&rollout_id_contains=abc"),
}
"""How often to ask and what; the answers are whole requests."""


class ClockedStore(InMemoryLightningStore):
    """A store whose clock can be put forward."""

    ahead = 0.0

    def _now(self) -> float:
        return time.time() + self.ahead


class Load:
    """A store, how to fill it and how to call it."""

    def __init__(self, store: ClockedStore, rollouts: int, spans: int) -> None:
        self.store = store
        self.rollouts = rollouts
        self.spans = spans
        self.started: list[Ids] = []
        self._number = 0
        self._at = 0

    async def start(self, config: RolloutConfig | None = None) -> None:
        """Start all rollouts; a tenth as many wait in the queue."""
        queued = max(self.rollouts // 10, 2 * ROUNDS * BLOCK)
        for first in range(0, queued, 1000):
            await self.store.enqueue_many_rollouts(
                [
                    EnqueueRolloutRequest(input={"task": number})
                    for number in range(first, min(first + 1000, queued))
                ]
            )
        for number in range(self.rollouts):
            rollout = await self.store.start_rollout({"task": number}, config=config)
            self.started.append((rollout.rollout_id, rollout.attempt.attempt_id))

    async def fill(self, unfinished: int) -> None:
        """Give every rollout its spans, and finish all but one of ``unfinished``."""
        for at, ids in enumerate(self.started):
            await self.store.add_many_spans([self.span(ids, n) for n in range(self.spans)])
            if at % unfinished:
                await self.store.update_attempt(*ids, status="succeeded")

    def span(self, ids: Ids, number: int) -> Span:
        """A span as the server has it, parsed from bytes."""
        return Span.model_validate_json(self.span_json(ids, number))

    def span_json(self, ids: Ids, number: int) -> bytes:
        """A span that no rollout has yet."""
        self._number += 1
        return span_json(ids, number, self._number)

    def calls(self) -> dict[str, Callable[[], list[Call]]]:
        """For each operation measured, what makes the next block of calls, ready to be awaited.

        Ids are made anew, since those of a request have just been parsed.
        """
        store = self.store
        page = partial(store.query_rollouts, status_in=["succeeded"], limit=20)
        return {
            "dequeue": lambda: [store.dequeue_rollout] * BLOCK,
            "start": lambda: [partial(store.start_rollout, {"task": 0})] * BLOCK,
            "add_span": lambda: [
                partial(store.add_span, self.span(ids, 100)) for ids in self._others()
            ],
            "update_attempt": lambda: [
                partial(store.update_attempt, *ids, metadata={"step": 1}) for ids in self._others()
            ],
            "get by id": lambda: [
                partial(store.get_rollout_by_id, ids[0]) for ids in self._others()
            ],
            "first page by status": lambda: [page] * BLOCK,
            "spans of a rollout": lambda: [
                partial(store.query_spans, ids[0]) for ids in self._others()
            ],
        }

    def requests(self, server: InProcessServer) -> dict[str, Callable[[], list[Call]]]:
        """The same as requests to a server of the store, bytes in and bytes out."""
        post, get = partial(server.call, "POST"), partial(server.call, "GET")
        start = partial(post, "/rollouts", b'{"input":{"task":0}}')
        page = partial(get, "/rollouts", query=b"status_in=succeeded&limit=20")
        return {
            "dequeue": lambda: [partial(post, "/queues/rollouts/dequeue")] * BLOCK,
            "start": lambda: [start] * BLOCK,
            "add_span": lambda: [
                partial(post, "/spans", self.span_json(ids, 100)) for ids in self._others()
            ],
            "update_attempt": lambda: [
                partial(post, f"/rollouts/{ids[0]}/attempts/{ids[1]}", b'{"metadata":{"step":1}}')
                for ids in self._others()
            ],
            "get by id": lambda: [partial(get, f"/rollouts/{ids[0]}") for ids in self._others()],
            "first page by status": lambda: [page] * BLOCK,
            "spans of a rollout": lambda: [
                partial(get, "/spans", query=f"rollout_id={ids[0]}".encode())
                for ids in self._others()
            ],
        }

    def _others(self) -> Iterator[Ids]:
        """Rollouts far from each other, a block of them."""
        for _ in range(BLOCK):
            self._at = (self._at + 7919) % len(self.started)
            rollout_id, attempt_id = self.started[self._at]
            yield "".join(rollout_id), "".join(attempt_id)


def span_json(ids: Ids, number: int, unique: int) -> bytes:
    """A span of 8 attributes of 80 characters, as our client sends it."""
    trace_id, span_id = f"{unique:032x}", f"{unique:016x}"
    attributes = ",".join([f'"attribute.{n}":"{unique + n:080d}"' for n in range(8)])
    return (
        f'{{"rollout_id":"{ids[0]}","attempt_id":"{ids[1]}","sequence_id":{number},'
        f'"trace_id":"{trace_id}","span_id":"{span_id}","parent_id":null,"name":"step",'
        '"status":{"status_code":"OK","description":null},'
        f'"attributes":{{{attributes}}},"events":[],"links":[],'
        '"start_time":1764444444.123,"end_time":1764444445.123,'
        f'"context":{{"trace_id":"{trace_id}","span_id":"{span_id}","is_remote":false,'
        '"trace_state":{}},"parent":null,"resource":{"attributes":{},"schema_url":""}}'
    ).encode()


def resident() -> int:
    """Bytes of memory of this process."""
    gc.collect()
    return psutil.Process().memory_info().rss


def objects() -> int:
    """How many objects the garbage collector looks at."""
    gc.collect()
    return len(gc.get_objects())


async def cost(calls: list[Call]) -> float:
    """Microseconds of CPU a call."""
    started = time.thread_time_ns()
    for call in calls:
        await call()
    return (time.thread_time_ns() - started) / len(calls) / 1000


Blocks = dict[str, Callable[[], list[Call]]]


async def compare(small: Blocks, full: Blocks) -> dict[str, dict[str, float]]:
    """Cost of each operation in both stores, measured in turns, without garbage collections."""
    gc.collect()
    gc.disable()
    figures: dict[str, dict[str, float]] = {}
    for name, in_small in small.items():
        costs: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            costs[0].append(await cost(in_small()))
            costs[1].append(await cost(full[name]()))
        few, many = median(costs[0]), median(costs[1])
        figures[name] = {
            "ratio": round(many / few, 2),
            "small_us": round(few, 1),
            "full_us": round(many, 1),
        }
    gc.enable()
    return figures


async def growth(rollouts: int, spans: int, *, tracker: bool) -> dict[str, Any]:
    """Ratios of cost, and what a rollout and a span take."""
    backend = PrometheusMetricsBackend() if tracker else None
    stores = [ClockedStore(tracker=backend, eviction_memory_threshold=NEVER) for _ in range(2)]
    small, full = Load(stores[0], SMALL, spans), Load(stores[1], rollouts, spans)
    await small.start()
    await small.fill(10)
    stored, total = rollouts * 11 / 10, rollouts * spans
    memory, tracked = [resident()], [objects()]
    await full.start()
    memory.append(resident())
    tracked.append(objects())
    await full.fill(10)
    memory.append(resident())
    tracked.append(objects())
    started = time.thread_time()
    gc.collect()
    collection = time.thread_time() - started
    size = len(span_json(full.started[0], 1, total))
    return {
        "calls": await compare(small.calls(), full.calls()),
        "requests": await compare(
            *[load.requests(InProcessServer(load.store, backend)) for load in (small, full)]
        ),
        "span_json_bytes": size,
        "memory_per_span_to_json": round((memory[2] - memory[1]) / total / size, 2),
        "bytes_per_rollout": round((memory[1] - memory[0]) / stored),
        "collector_objects_per_rollout": round((tracked[1] - tracked[0]) / stored, 2),
        "collector_objects_per_span": round((tracked[2] - tracked[1]) / total, 2),
        "full_collection_ms": round(collection * 1000),
    }


class Gaps:
    """Longest time, in milliseconds of CPU, for which other tasks had to wait."""

    def __init__(self) -> None:
        self._last = time.thread_time()
        self.longest = 0.0

    def note(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, (now - self._last) * 1000)
        self._last = now


async def longest_gap(work: Awaitable[object]) -> float:
    """How long ``work`` keeps the event loop at a time, at most."""
    task = asyncio.ensure_future(work)
    gaps = Gaps()
    while not task.done():
        await asyncio.sleep(0)
        gaps.note()
    await task
    return round(gaps.longest, 1)


async def stalls(rollouts: int, spans: int) -> dict[str, Any]:
    """Longest gaps of what touches a lot: eviction, the watchdog, questions over everything."""
    total = rollouts * spans
    store = ClockedStore(
        eviction_memory_threshold=total,
        safe_memory_threshold=total // 2,
        span_size_estimator=lambda _: 1,
    )
    load = Load(store, rollouts, spans)
    await load.start(RolloutConfig(timeout_seconds=86_400.0))
    await load.fill(2)
    spare_old_objects()  # as a server does

    server = InProcessServer(store, None)

    async def evict() -> None:
        while (await store.statistics())["total_span_bytes"] > total // 2:
            await server.call("POST", "/spans", load.span_json(load.started[-1], 100))
            await asyncio.sleep(0)

    async def time_out() -> None:
        store.ahead = 90_000.0
        watching = asyncio.create_task(store.watchdog.run(0.01))
        unfinished = True
        while unfinished:
            await asyncio.sleep(0.01)
            running = await store.query_rollouts(status_in=["preparing", "running"], limit=1)
            unfinished = running.total > 0
        watching.cancel()

    async def ask(times: int, path: str, query: str = "") -> None:
        for _ in range(times):
            await server.parts("GET", path, query=query.encode())
            await asyncio.sleep(0)

    figures = {
        f"{name}_ms": await longest_gap(ask(times, path, query))
        for name, (times, path, query) in QUESTIONS.items()
    }
    figures["eviction_ms"] = await longest_gap(evict())
    figures["watchdog_ms"] = await longest_gap(time_out())
    statistics = await store.statistics()
    return {**figures, "evicted_spans": statistics["evicted_spans"]}


def measure(part: str, rollouts: int, spans: int) -> dict[str, Any]:
    """One part, in this process."""
    with share_objects():  # as a server does
        if part == "stalls":
            return asyncio.run(stalls(rollouts, spans))
        return asyncio.run(growth(rollouts, spans, tracker=part == "tracker"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="scripts/bench growth", description=__doc__)
    parser.add_argument("--rollouts", type=positive, default=100_000, help="how full (%(default)s)")
    parser.add_argument("--spans", type=positive, default=4, help="spans a rollout (%(default)s)")
    parser.add_argument("--part", choices=PARTS, help="only this one, as one line of JSON")
    parser.add_argument(
        "--json", type=entry.target, metavar="FILE", help="write the result there as well"
    )
    options = parser.parse_args(arguments)
    if options.part is not None:
        print(json.dumps(measure(options.part, options.rollouts, options.spans)))
        return 0
    started = time.time()
    report = {part: _in_process(part, options.rollouts, options.spans) for part in PARTS}
    parameters = {"rollouts": options.rollouts, "spans": options.spans}
    print(json.dumps({**parameters, **report}, indent=2))
    if options.json is not None:
        result = document("growth", parameters, flat("", report), started, report)
        result.write(options.json)
    return 0


def _in_process(part: str, rollouts: int, spans: int) -> dict[str, Any]:
    """One part in a process of its own, whose memory nobody used before."""
    command = [sys.executable, "-m", "bench.growth", "--part", part]
    command += ["--rollouts", str(rollouts), "--spans", str(spans)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


if __name__ == "__main__":
    sys.exit(entry.run("bench growth", main))
