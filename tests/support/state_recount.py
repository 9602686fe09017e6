"""The figures of a store's state, counted anew from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store_model import FINISHED, UNDER_WAY, WAITING, Record

STATUSES = ("queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing")
ATTEMPT_STATUSES = ("preparing", "running", "failed", "succeeded", "unresponsive", "timeout")
MODES = ("train", "val", "test", "unknown")
REWARD = "agentlightning.reward.0.value"
REWARD_NAME = "agentlightning.reward"
SILENT, GONE = 60.0, 86_400.0


class QueueTimes:
    """When the rollouts that wait entered the queue, seen from outside."""

    def __init__(self) -> None:
        self.entered: dict[str, float] = {}

    def look(self, content: Record, now: float) -> None:
        waiting = [r["rollout_id"] for r in content["rollouts"] if r["status"] in WAITING]
        self.entered = {key: self.entered.get(key, now) for key in waiting}


def recount(content: Record, entered: Mapping[str, float], now: float) -> Record:
    """What ``state()`` has to say of ``content``, memory figures left out."""
    rollouts, attempts, workers = content["rollouts"], content["attempts"], content["workers"]
    latest: dict[str, Record] = {}
    for attempt in attempts:
        known = latest.setdefault(attempt["rollout_id"], attempt)
        if attempt["sequence_id"] > known["sequence_id"]:
            latest[attempt["rollout_id"]] = attempt
    under_way = [r for r in rollouts if r["status"] in UNDER_WAY]
    running = [
        (now - latest[r["rollout_id"]]["start_time"], r["config"]["timeout_seconds"])
        for r in under_way
        if r["rollout_id"] in latest
    ]
    with_spans = {span["rollout_id"] for span in content["spans"]}
    with_reward = {span["rollout_id"] for span in content["spans"] if is_reward(span)}
    heard = [(w["status"], now - at) for w in workers if (at := last_heard(w)) is not None]
    present = [(status, age) for status, age in heard if age <= GONE]
    return {
        "rollouts": {
            status: {mode: how_many(rollouts, {status}, mode) for mode in MODES}
            for status in STATUSES
        },
        "queue_depth": sum(r["status"] in WAITING for r in rollouts),
        "oldest_queued_age_seconds": max([now - at for at in entered.values()], default=0.0),
        "running_attempts": len(under_way),
        "oldest_running_age_seconds": max([age for age, _ in running], default=0.0),
        "oldest_running_timeout_ratio": max(
            [age / limit for age, limit in running if limit], default=0.0
        ),
        "attempts": {s: sum(a["status"] == s for a in attempts) for s in ATTEMPT_STATUSES},
        "retries": sum(a["sequence_id"] > 1 for a in attempts),
        "workers": {s: sum(w["status"] == s for w in workers) for s in ("idle", "busy", "unknown")},
        "silent_workers": sum(age > SILENT for _, age in present),
        "worker_oldest_heartbeat_age_seconds": {
            s: max([age for status, age in present if status == s], default=0.0)
            for s in ("idle", "busy", "unknown")
        },
        "spans_stored": len(content["spans"]),
        "spans_evicted": 0,
        "finished_without_spans": lacking(rollouts, with_spans),
        "finished_without_reward": lacking(rollouts, with_reward),
    }


def is_reward(span: Record) -> bool:
    return REWARD in span["attributes"] or span["name"] == REWARD_NAME


def last_heard(worker: Record) -> float | None:
    times = [worker["last_heartbeat_time"], worker["last_dequeue_time"]]
    return max([time for time in times if time is not None], default=None)


def how_many(rollouts: Any, statuses: set[str], mode: str) -> int:
    return sum(r["status"] in statuses and (r["mode"] or "unknown") == mode for r in rollouts)


def lacking(rollouts: Any, having: set[str]) -> Record:
    without = [r for r in rollouts if r["rollout_id"] not in having]
    return {mode: how_many(without, set(FINISHED) - {"cancelled"}, mode) for mode in MODES}
