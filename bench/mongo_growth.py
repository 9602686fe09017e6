"""What the store in MongoDB costs when it is full, against what it costs when it is nearly empty.

Two databases on one server, 1,000 rollouts and many, each rollout with a span and its number; the
store is called in turns on both. Figures are medians of the time of a call and ratios of them, and
the CPU time of client and server together. A page of a common status is measured beside the
server's own ``find`` of the same documents. The state of the store is left out: the stand-in uses
no index within a ``$unionWith``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from bson import ObjectId
from pymongo import AsyncMongoClient

from agl.store.collection.mongo.indexes import INDEXES, ensure_collection
from agl.store.collection.mongo.roots import Creation
from agl.store.mongo import MongoLightningStore
from agl.types import Attempt, AttemptedRollout, Rollout, RolloutStatus, Span
from bench.mongo_insert import span as span_document
from bench.mongo_servers import PARTITION, MongoServer, cpu_seconds

SMALL = 1_000
ROUNDS = 150
FINDS = 7
RARE, WAITING = 400, 400
"""Failed rollouts and waiting ones in either store."""

DEEP = 50_000
"""Further ones that wait, when a dequeue is measured beside the server's own find."""

PAGE = 100

_BATCH = 2_000
_SHORT = {"attributes": {"n": 1}}

Call = Callable[[], Awaitable[object]]


def growth(server: MongoServer, rollouts: int) -> dict[str, Any]:
    """Fill both stores, and measure."""
    return asyncio.run(_growth(server, rollouts))


async def _growth(server: MongoServer, rollouts: int) -> dict[str, Any]:
    databases = server.new_database(), server.new_database()
    try:
        began = time.monotonic()
        for database, number in zip(databases, (SMALL, rollouts), strict=True):
            await _fill(server, database, number)
        filled = time.monotonic()
        stores = [_store(server, database) for database in databases]
        for store in stores:
            await store.statistics()  # counts once what it finds
        counted = time.monotonic()
        figures = {
            "rollouts": rollouts,
            "fill_seconds": round(filled - began),
            "first_count_seconds": round(counted - filled, 1),
            "calls": await _compare(server, *stores),
            "common_status": await _beside_find(
                server,
                databases[1],
                ({"status": "succeeded"}, {"_id": 1}, PAGE),
                lambda: stores[1].query_rollouts(status_in=["succeeded"], limit=PAGE),
            ),
        }
        await _deepen(server, databases[1], rollouts)
        figures["long_queue"] = await _beside_find(
            server,
            databases[1],
            ({"status": {"$in": ["queuing", "requeuing"]}}, {"queued_at": 1, "_id": 1}, 1),
            stores[1].dequeue_rollout,
        )
        for store in stores:
            await store.close()
        return figures
    finally:
        for database in databases:
            server.drop(database)


def _store(server: MongoServer, database: str) -> MongoLightningStore:
    return MongoLightningStore(
        mongo_uri=server.uri,
        database_name=database,
        partition_id=PARTITION,
        scan_debounce_seconds=1e9,
    )


async def _fill(server: MongoServer, database: str, rollouts: int) -> None:
    """As if so many had been run: some failed, some wait, the others succeeded."""
    async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
        target = client[database]
        models = {status: _model(status) for status in ("succeeded", "failed", "queuing")}
        for first in range(0, rollouts, _BATCH):
            numbers = range(first, min(first + _BATCH, rollouts))
            await target["rollouts"].insert_many(
                [{**models[_status_of(n)], **_varied(n)} for n in numbers], ordered=False
            )
            spans = [{**span_document(n), **_SHORT, "rollout_id": _id(n)} for n in numbers]
            await target["spans"].insert_many(spans, ordered=False)
            await target["span_sequence_ids"].insert_many(
                [{"partition_id": PARTITION, "key": _id(n), "value": 1} for n in numbers],
                ordered=False,
            )
        for name in ("rollouts", "spans", "span_sequence_ids"):  # faster than before the documents
            await ensure_collection(target, name, INDEXES[name])


def _status_of(number: int) -> RolloutStatus:
    if number < RARE:
        return "failed"
    return "queuing" if number < RARE + WAITING else "succeeded"


def _id(number: int) -> str:
    return f"ro-{number:012x}"


def _varied(number: int) -> dict[str, Any]:
    at = 1764000000.0 + number / 100
    return {"_id": ObjectId(), "rollout_id": _id(number), "start_time": at, "queued_at": at}


def _model(status: RolloutStatus) -> dict[str, Any]:
    """A rollout document of this status."""
    end = 1764000100.0 if status in ("succeeded", "failed") else None
    rollout = Rollout(
        rollout_id="ro", input={"task": 1}, start_time=1764000000.0, end_time=end, status=status
    )
    creation = Creation(PARTITION, rollout)
    if end is not None:
        attempt = Attempt(
            rollout_id="ro",
            attempt_id="at-12345678",
            sequence_id=1,
            start_time=1764000000.0,
            end_time=end,
            status="succeeded" if status == "succeeded" else "failed",
        )
        creation.attempts.append(attempt)
    return dict(creation.write().body)


def _calls(store: MongoLightningStore) -> dict[str, Call]:
    numbers = iter(range(1, 10**9))
    running: list[AttemptedRollout] = []

    async def start() -> None:
        running.append(await store.start_rollout({"task": 1}))

    async def dequeue() -> None:
        if await store.dequeue_rollout() is None:
            raise RuntimeError("the queue is empty")

    async def add_span() -> None:
        await store.add_span(_span(running[-1], next(numbers)))

    async def finish() -> None:
        last = running[-1]
        attempt_id = last.attempt.attempt_id
        await store.update_attempt(last.rollout_id, attempt_id, status="succeeded")

    return {
        "start": start,
        "dequeue": dequeue,
        "span": add_span,
        "second span": add_span,
        "finish": finish,
        "rare page": lambda: store.query_rollouts(status_in=["failed"], limit=PAGE),
        "spans of a rollout": lambda: store.query_spans(running[-1].rollout_id),
        "statistics": store.statistics,
    }


def _span(rollout: AttemptedRollout, number: int) -> Span:
    values = span_document(number)
    del values["partition_id"]
    values["rollout_id"] = rollout.rollout_id
    values["attempt_id"] = rollout.attempt.attempt_id
    return Span.model_validate(values)


async def _compare(
    server: MongoServer, small: MongoLightningStore, full: MongoLightningStore
) -> dict[str, dict[str, float]]:
    """Each call in turns on both."""
    calls = _calls(small), _calls(full)
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls[0]}
    cpu: dict[str, list[float]] = {name: [0.0, 0.0] for name in calls[0]}
    for round_number in range(ROUNDS):
        for name, times in seconds.items():
            for which in (0, 1) if round_number % 2 else (1, 0):
                used, started = _cpu(server), time.perf_counter()
                await calls[which][name]()
                times[which].append(time.perf_counter() - started)
                cpu[name][which] += _cpu(server) - used
    figures: dict[str, dict[str, float]] = {}
    for name, times in seconds.items():
        few, many = median(times[0]), median(times[1])
        figures[name] = {
            "ratio": round(many / few, 2),
            "small_ms": round(1000 * few, 2),
            "full_ms": round(1000 * many, 2),
            "cpu_ratio": round(cpu[name][1] / max(cpu[name][0], 1e-9), 2),
        }
    return figures


def _cpu(server: MongoServer) -> float:
    return time.process_time() + (0.0 if server.pid is None else cpu_seconds(server.pid))


async def _deepen(server: MongoServer, database: str, rollouts: int) -> None:
    """Have many more wait."""
    model = _model("queuing")
    async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
        for first in range(rollouts, rollouts + DEEP, _BATCH):
            await client[database]["rollouts"].insert_many(
                [{**model, **_varied(n)} for n in range(first, first + _BATCH)], ordered=False
            )


Find = tuple[dict[str, Any], dict[str, int], int]


async def _beside_find(
    server: MongoServer, database: str, question: Find, call: Call
) -> dict[str, float]:
    """A call, and the find (condition, order, limit) that it cannot do without, in turns."""
    condition, order, limit = question
    times: tuple[list[float], list[float]] = ([], [])
    async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
        rollouts = client[database]["rollouts"]
        match = {"partition_id": PARTITION, **condition}

        async def find() -> None:
            await rollouts.find(match).sort(order).limit(limit).to_list()

        for _ in range(FINDS):
            for which, one in enumerate((find, call)):
                started = time.perf_counter()
                await one()
                times[which].append(time.perf_counter() - started)
    raw, ours = median(times[0]), median(times[1])
    return {
        "find_ms": round(1000 * raw, 2),
        "call_ms": round(1000 * ours, 2),
        "ratio": round(ours / raw, 2),
    }
