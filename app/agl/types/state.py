"""What a store holds right now, in figures that can be alerted on."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel

from agl.types.rollout import AttemptStatus, RolloutMode, RolloutStatus
from agl.types.worker import WorkerStatus

ModeName = Literal[RolloutMode, "unknown"]

ROLLOUT_STATUSES: tuple[RolloutStatus, ...] = get_args(RolloutStatus)
ATTEMPT_STATUSES: tuple[AttemptStatus, ...] = get_args(AttemptStatus)
WORKER_STATUSES: tuple[WorkerStatus, ...] = get_args(WorkerStatus)
MODE_NAMES: tuple[ModeName, ...] = (*get_args(RolloutMode), "unknown")
"""Modes as figures name them; a rollout without one counts as ``unknown``."""

JUDGED_STATUSES: frozenset[RolloutStatus] = frozenset(("succeeded", "failed"))
"""A rollout that was cancelled need not have had spans or a reward."""

SILENT_SECONDS = 60.0
"""A worker that has neither sent a heartbeat nor asked for work for so long counts as silent.

Runners send a heartbeat every 10 s unless told otherwise.
"""

GONE_SECONDS = 86_400.0
"""Nobody waits for a worker that has been silent for a day: the store never forgets a worker."""


def mode_name(mode: RolloutMode | None) -> ModeName:
    """As figures name it."""
    return "unknown" if mode is None else mode


class StoreState(BaseModel):
    """Figures of the whole store, whichever of its processes answers. Ages are in seconds.

    An age is 0 where there is nothing whose age it could be.
    """

    name: str
    """Class of the store."""

    rollouts: dict[RolloutStatus, dict[ModeName, int]]
    """Rollouts by status and mode."""

    queue_depth: int
    """Rollouts that wait for a worker."""

    oldest_queued_age_seconds: float
    """Since the rollout that waits longest entered the queue, the last time if it was requeued."""

    running_attempts: int
    """Rollouts under way (``preparing`` or ``running``)."""

    oldest_running_age_seconds: float
    """Since the oldest of their attempts began."""

    oldest_running_timeout_ratio: float
    """The largest share of its timeout that one of them has used; the watchdog acts above 1."""

    attempts: dict[AttemptStatus, int]
    """Attempts by their present status."""

    retries: int
    """Attempts that were not the first of their rollout."""

    workers: dict[WorkerStatus, int]
    """Workers by status; those that have gone stay."""

    silent_workers: int
    """Workers not heard of for :data:`SILENT_SECONDS`, but within :data:`GONE_SECONDS`."""

    worker_oldest_heartbeat_age_seconds: dict[WorkerStatus, float]
    """The longest time since a worker sent a heartbeat or asked for work, those gone left out."""

    spans_stored: int
    """Spans that the store holds."""

    spans_evicted: int
    """Spans given up to free memory, since the store began."""

    finished_without_spans: dict[ModeName, int]
    """Rollouts that succeeded or failed and never had a span; a late one counts."""

    finished_without_reward: dict[ModeName, int]
    """Rollouts that succeeded or failed and never had a span with a reward; likewise."""

    span_bytes: int | None = None
    """Memory that spans take. This and what follows: only where spans are kept in memory."""

    eviction_threshold_bytes: int | None = None
    """Above this, spans are given up."""

    safe_threshold_bytes: int | None = None
    """At this, giving up ends."""

    memory_capacity_bytes: int | None = None
    """Memory that the store may take of the machine."""
