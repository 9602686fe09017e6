"""What the store in memory costs when it is full, against what it costs when it is nearly empty.

All figures are ratios within one run, or counts. ``--rollouts`` sets how full: every rollout has
``--spans`` spans of 8 attributes of 80 characters. A small store of 1,000 rollouts is measured in
turns with the full one, as CPU time of this thread, so that other work on the machine and a clock
that changes its pace touch both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import psutil

from agl.store.memory import InMemoryLightningStore
from agl.types import EnqueueRolloutRequest, RolloutConfig, Span
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.ownership import share_objects

SMALL = 1_000
ROUNDS = 15
BLOCK = 40
Operation = Callable[[], Awaitable[object]]


class ClockedStore(InMemoryLightningStore):
    """A store whose clock can be put forward."""

    ahead = 0.0

    def _now(self) -> float:
        return time.time() + self.ahead


class Load:
    """Fills a store and calls it."""

    def __init__(self, rollouts: int, spans: int, *, tracker: bool, limits: bool = False) -> None:
        self.rollouts = rollouts
        self.spans = spans
        self.started: list[tuple[str, str]] = []
        self.number = 0
        self._config = RolloutConfig(timeout_seconds=3600.0) if limits else None
        total = rollouts * spans
        self.store = ClockedStore(
            tracker=PrometheusMetricsBackend() if tracker else None,
            eviction_memory_threshold=total if limits else 2**50,
            safe_memory_threshold=total // 2 if limits else None,
            span_size_estimator=(lambda _: 1) if limits else None,
        )

    async def start(self) -> None:
        """As many rollouts again as run, in a tenth of the number, wait in the queue."""
        queued = max(self.rollouts // 10, ROUNDS * BLOCK)
        for first in range(0, queued, 1000):
            count = min(1000, queued - first)
            await self.store.enqueue_many_rollouts(
                [EnqueueRolloutRequest(input={"task": first + n}) for n in range(count)]
            )
        for n in range(self.rollouts):
            rollout = await self.store.start_rollout({"task": n}, config=self._config)
            self.started.append((rollout.rollout_id, rollout.attempt.attempt_id))

    async def fill_spans(self) -> None:
        """Give every rollout its spans, and finish nine of ten."""
        for at, (rollout_id, attempt_id) in enumerate(self.started):
            await self.store.add_many_spans(
                [self.span(rollout_id, attempt_id, n) for n in range(self.spans)]
            )
            if at % 10:
                await self.store.update_attempt(rollout_id, attempt_id, status="succeeded")

    def span(self, rollout_id: str, attempt_id: str, number: int) -> Span:
        """As the server gets it: from bytes."""
        self.number += 1
        return Span.model_validate_json(span_json(rollout_id, attempt_id, number, self.number))

    def operations(self) -> dict[str, Operation]:
        """What is measured; each call is on another rollout, spread over the whole store."""
        store, picks = self.store, self._picks()
        prepared = iter([self.span(*next(picks), 100) for _ in range(ROUNDS * BLOCK)])
        return {
            "dequeue": store.dequeue_rollout,
            "start": lambda: store.start_rollout({"task": 0}),
            "add_span": lambda: store.add_span(next(prepared)),
            "update_attempt": lambda: self._heartbeat(*next(picks)),
            "get by id": lambda: store.get_rollout_by_id(next(picks)[0]),
            "first page": lambda: store.query_rollouts(status_in=["succeeded"], limit=20),
            "spans of one": lambda: store.query_spans(next(picks)[0], limit=10),
        }

    def _heartbeat(self, rollout_id: str, attempt_id: str) -> Awaitable[object]:
        return self.store.update_attempt(
            rollout_id, attempt_id, metadata={"step": 1}, last_heartbeat_time=self.store._now()
        )

    def _picks(self) -> Any:
        step = 7919  # a prime, so that picks are far from each other
        at = 0
        while True:
            yield self.started[at % len(self.started)]
            at += step


def span_json(rollout_id: str, attempt_id: str, number: int, unique: int) -> bytes:
    """A span of 8 attributes of 80 characters, as our client sends it."""
    trace_id, span_id = f"{unique:032x}", f"{unique:016x}"
    attributes = {f"attribute.{n}": f"{unique + n:080d}" for n in range(8)}
    return json.dumps(
        {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": number,
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_id": None,
            "name": "step",
            "status": {"status_code": "OK", "description": None},
            "attributes": attributes,
            "events": [],
            "links": [],
            "start_time": 1764444444.123,
            "end_time": 1764444445.123,
            "context": {
                "trace_id": trace_id,
                "span_id": span_id,
                "is_remote": False,
                "trace_state": {},
            },
            "parent": None,
            "resource": {"attributes": {}, "schema_url": ""},
        },
        separators=(",", ":"),
    ).encode()


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


async def cost(operation: Operation) -> float:
    """Microseconds of CPU a call."""
    started = time.thread_time_ns()
    for _ in range(BLOCK):
        await operation()
    return (time.thread_time_ns() - started) / BLOCK / 1000


async def compare(small: Load, full: Load) -> dict[str, dict[str, float]]:
    """Cost of each operation in both stores, measured in turns."""
    gc.collect()
    gc.disable()
    figures: dict[str, dict[str, float]] = {}
    pairs = zip(small.operations().items(), full.operations().values(), strict=True)
    for (name, in_small), in_full in pairs:
        costs: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            costs[0].append(await cost(in_small))
            costs[1].append(await cost(in_full))
        few, many = median(costs[0]), median(costs[1])
        figures[name] = {
            "small_us": round(few, 1),
            "full_us": round(many, 1),
            "ratio": round(many / few, 2),
        }
    gc.enable()
    return figures


async def growth(rollouts: int, spans: int, *, tracker: bool) -> dict[str, Any]:
    small = Load(SMALL, spans, tracker=tracker)
    await small.start()
    await small.fill_spans()
    full = Load(rollouts, spans, tracker=tracker)
    objects, before = len(gc.get_objects()), resident()
    await full.start()
    with_rollouts = resident()
    tracked_rollouts = len(gc.get_objects()) - objects
    await full.fill_spans()
    with_spans = resident()
    tracked_spans = len(gc.get_objects()) - objects - tracked_rollouts
    started = time.perf_counter()
    gc.collect()
    collection = time.perf_counter() - started
    size = len(span_json(*full.started[0], 1, full.number))
    total = rollouts * spans
    return {
        "rollouts": rollouts,
        "spans": total,
        "tracker": tracker,
        "cost": await compare(small, full),
        "span_json_bytes": size,
        "memory_per_span": round((with_spans - with_rollouts) / total / size, 2),
        "bytes_per_rollout": (with_rollouts - before) // (rollouts * 11 // 10),
        "tracked_per_rollout": round(tracked_rollouts / (rollouts * 11 / 10), 1),
        "tracked_per_span": round(tracked_spans / total, 2),
        "full_collection_ms": round(collection * 1000),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench growth", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--spans", type=int, default=4)
    options = parser.parse_args(arguments)
    with share_objects():
        for tracker in (False, True):
            figures = asyncio.run(growth(options.rollouts, options.spans, tracker=tracker))
            print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
