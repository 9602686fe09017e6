"""Rollouts that have been waiting, running or silent for long."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from agl.types.rollout import RolloutStatus

StuckKind = Literal["queued", "running", "silent"]


class StuckItem(BaseModel):
    """A rollout that may need a look. Times are in seconds."""

    kind: StuckKind
    """Waiting for a worker, under way, or under way without a sign of life."""

    rollout_id: str
    status: RolloutStatus
    attempt_id: str | None = None
    """The latest attempt, where there is one."""

    attempt: int | None = None
    """Its sequence id: 1 for the first attempt."""

    worker_id: str | None = None
    age_seconds: float
    """Since the rollout was created, the attempt began, or it gave its last sign of life."""

    limit_seconds: float | None = None
    """The timeout that ends it, where there is one."""

    share: float | None = None
    """Age divided by limit; the watchdog acts above 1."""
