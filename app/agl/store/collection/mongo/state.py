"""The figures of a partition's state: counters and a few looks into indexes, in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from agl.store.collection.mongo.pool import Document
from agl.store.collection.mongo.totals import COUNTERS, Totals
from agl.types import QUEUING_STATUSES, AttemptStatus, RolloutStatus, WorkerStatus
from agl.types.state import (
    ATTEMPT_STATUSES,
    GONE_SECONDS,
    MODE_NAMES,
    ROLLOUT_STATUSES,
    SILENT_SECONDS,
    WORKER_STATUSES,
    ModeName,
)

_KIND = "kind"
_QUEUED, _RUNNING, _WORKERS = "queued", "running", "workers"


def _modes() -> dict[ModeName, int]:
    return dict.fromkeys(MODE_NAMES, 0)


@dataclass
class StateFound:
    """What was found; times are seconds since the epoch."""

    rollouts: dict[RolloutStatus, dict[ModeName, int]] = field(
        default_factory=lambda: {status: _modes() for status in ROLLOUT_STATUSES}
    )
    attempts: dict[AttemptStatus, int] = field(
        default_factory=lambda: dict.fromkeys(ATTEMPT_STATUSES, 0)
    )
    retries: int = 0
    spans: int = 0
    without_spans: dict[ModeName, int] = field(default_factory=_modes)
    without_reward: dict[ModeName, int] = field(default_factory=_modes)
    queued_at: float | None = None
    """When the rollout that waits longest entered the queue."""

    running_since: dict[float | None, float] = field(default_factory=dict[float | None, float])
    """When the oldest attempts under way began, by their timeout."""

    workers: dict[WorkerStatus, int] = field(
        default_factory=lambda: dict.fromkeys(WORKER_STATUSES, 0)
    )
    silent_workers: int = 0
    workers_heard: dict[WorkerStatus, float | None] = field(
        default_factory=lambda: dict.fromkeys(WORKER_STATUSES)
    )
    """When the worker that is silent longest was heard of, those gone left out."""


async def read_state(totals: Totals, database: AsyncDatabase[Document], now: float) -> StateFound:
    """The figures, in one round trip. Documents are looked at for workers only, which are few."""
    mine = {"partition_id": totals.partition_id}
    pipeline: list[Mapping[str, Any]] = [{"$match": mine}]
    pipeline += [_longest_waiting(mine, status) for status in sorted(QUEUING_STATUSES)]
    pipeline += [_oldest_running(mine), _workers(mine, now)]
    rows = await (await database[COUNTERS].aggregate(pipeline)).to_list()
    found = StateFound()
    _take_totals(found, totals.sum(row for row in rows if _KIND not in row))
    for row in rows:
        _take_row(found, row)
    return found


def _longest_waiting(mine: Mapping[str, Any], status: str) -> Mapping[str, Any]:
    """Documents of 0.3, which are first, do not say when they entered the queue."""
    entered = {"$ifNull": ["$queued_at", "$start_time"]}
    stages: list[Mapping[str, Any]] = [
        {"$match": {**mine, "status": status}},
        {"$sort": {"queued_at": 1, "_id": 1}},
        {"$limit": 1},
        {"$project": {"_id": 0, _KIND: {"$literal": _QUEUED}, "since": entered}},
    ]
    return {"$unionWith": {"coll": "rollouts", "pipeline": stages}}


def _oldest_running(mine: Mapping[str, Any]) -> Mapping[str, Any]:
    """All of it is in an index, in which only those under way are looked at."""
    group = {"_id": "$config.timeout_seconds", "since": {"$min": "$running_since"}}
    stages: list[Mapping[str, Any]] = [
        {"$match": {**mine, "running_since": {"$gt": 0}}},
        {"$project": {"_id": 0, "running_since": 1, "config.timeout_seconds": 1}},
        {"$group": group},
        {"$project": {"_id": 0, _KIND: {"$literal": _RUNNING}, "timeout": "$_id", "since": 1}},
    ]
    return {"$unionWith": {"coll": "rollouts", "pipeline": stages}}


def _workers(mine: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    present = {"$gte": ["$heard", now - GONE_SECONDS]}
    silent = {"$and": [present, {"$lt": ["$heard", now - SILENT_SECONDS]}]}
    heard = {"$max": ["$last_heartbeat_time", "$last_dequeue_time"]}
    group = {
        "_id": "$status",
        "count": {"$sum": 1},
        "silent": {"$sum": {"$cond": [silent, 1, 0]}},
        "since": {"$min": {"$cond": [present, "$heard", None]}},
    }
    stages: list[Mapping[str, Any]] = [
        {"$match": mine},
        {"$project": {"_id": 0, "status": 1, "heard": heard}},
        {"$group": group},
        {
            "$project": {
                "_id": 0,
                _KIND: {"$literal": _WORKERS},
                "status": "$_id",
                "count": 1,
                "silent": 1,
                "since": 1,
            }
        },
    ]
    return {"$unionWith": {"coll": "workers", "pipeline": stages}}


def _take_totals(found: StateFound, totals: Mapping[str, int]) -> None:
    for status, modes in found.rollouts.items():
        modes.update(_by_mode(totals, f"rollouts:{status}"))
    for status in found.attempts:
        found.attempts[status] = totals.get(f"attempts:{status}", 0)
    found.retries = totals.get("retries", 0)
    found.spans = totals.get("spans", 0)
    found.without_spans = _by_mode(totals, "without_spans")
    found.without_reward = _by_mode(totals, "without_reward")


def _by_mode(totals: Mapping[str, int], name: str) -> dict[ModeName, int]:
    counted: dict[ModeName, int] = {mode: totals.get(f"{name}:{mode}", 0) for mode in MODE_NAMES}
    counted["unknown"] += totals.get(name, 0)  # counted by an earlier version
    return counted


def _take_row(found: StateFound, row: Mapping[str, Any]) -> None:
    kind = row.get(_KIND)
    if kind == _QUEUED:
        found.queued_at = _earlier((found.queued_at, row["since"]))
    elif kind == _RUNNING:
        found.running_since[row.get("timeout")] = row["since"]
    elif kind == _WORKERS and row["status"] in found.workers:
        found.workers[row["status"]] = row["count"]
        found.silent_workers += row["silent"]
        found.workers_heard[row["status"]] = row["since"]


def _earlier(times: Iterable[float | None]) -> float | None:
    return min([time for time in times if time is not None], default=None)
