"""Documents and indexes as agent-lightning 0.3.0 left them in MongoDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pymongo
from pymongo.database import Database

STATUSES = ("queuing", "running", "succeeded", "failed")
BEGAN = datetime(2026, 1, 1)


def write_legacy(
    database: Database[dict[str, Any]],
    partition_id: str,
    rollouts: int,
    statuses: Sequence[str] = STATUSES,
) -> None:
    """Rollouts of these statuses, in turns; two attempts, two spans and queue entries for each."""
    documents: dict[str, list[dict[str, Any]]] = {
        "rollouts": [],
        "attempts": [],
        "spans": [],
        "rollout_queue": [],
    }
    for number in range(rollouts):
        status = statuses[number % len(statuses)]
        for name, found in _rollout(partition_id, number, status).items():
            documents[name] += found
    for name, found in documents.items():
        if found:
            database[name].insert_many(found)
    database["span_sequence_ids"].insert_one(
        {"partition_id": partition_id, "key": "ro-0", "value": 2}
    )
    _write_indexes(database)


def _rollout(partition_id: str, number: int, status: str) -> dict[str, list[dict[str, Any]]]:
    rollout_id = f"ro-{number}"
    known = {"partition_id": partition_id, "rollout_id": rollout_id}
    start = 1_767_225_600.0 + number
    rollout = {
        **known,
        "input": {"task": number},
        "start_time": start,
        "end_time": start + 5 if status in ("succeeded", "failed") else None,
        "mode": "train",
        "resources_id": None,
        "status": status,
        "config": {
            "timeout_seconds": 60.0,
            "unresponsive_seconds": None,
            "max_attempts": 3,
            "retry_condition": ["timeout"],
        },
        "metadata": {"n": number},
    }
    attempts = [] if status == "queuing" else [_attempt(known, status, start, n) for n in (1, 2)]
    spans = [_span(known, attempt, start) for attempt in attempts]
    entry = {
        "partition_id": partition_id,
        "value": rollout_id,
        "consumed": status != "queuing",
        "created_at": BEGAN + timedelta(seconds=number),
    }
    return {
        "rollouts": [rollout],
        "attempts": attempts,
        "spans": spans,
        "rollout_queue": [entry],
    }


def _attempt(known: dict[str, Any], status: str, start: float, number: int) -> dict[str, Any]:
    latest = status if number == 2 else "timeout"
    return {
        **known,
        "attempt_id": f"at-{known['rollout_id']}-{number}",
        "sequence_id": number,
        "start_time": start + number,
        "end_time": None if latest in ("running", "timeout") else start + 5,
        "status": latest,
        "worker_id": "Worker-1",
        "last_heartbeat_time": start + number,
        "metadata": {},
    }


def _span(known: dict[str, Any], attempt: dict[str, Any], start: float) -> dict[str, Any]:
    return {
        **known,
        "attempt_id": attempt["attempt_id"],
        "sequence_id": attempt["sequence_id"],
        "trace_id": f"{attempt['sequence_id']:032x}",
        "span_id": f"{attempt['sequence_id']:016x}",
        "parent_id": None,
        "name": "answer",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"a.b": 1},
        "events": [],
        "links": [],
        "start_time": start,
        "end_time": start + 1,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }


def _write_indexes(database: Database[dict[str, Any]]) -> None:
    for name, fields in (
        ("rollouts", ("rollout_id",)),
        ("attempts", ("rollout_id", "attempt_id")),
        ("rollout_queue", ("consumed", "_id")),
    ):
        keys = [("partition_id", 1), *((field, 1) for field in fields)]
        unique = "uniq_partition_" + "_".join(fields)
        database[name].create_index(keys, unique=True, name=unique)
    for name, text in (("resources", "update_time"), ("workers", "status")):
        letters = [(letter, pymongo.ASCENDING) for letter in dict.fromkeys(text)]
        database[name].create_index(letters, name="idx_" + "_".join(text))
    database["rollouts"].create_index("status", name="idx_status")
    database["attempts"].create_index("status", name="idx_status")
