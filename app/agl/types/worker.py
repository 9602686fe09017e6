"""Workers: the processes that take rollouts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from agl.types.bounds import Identifier, StorableDict

WorkerStatus = Literal["idle", "busy", "unknown"]


class Worker(BaseModel):
    """What the store knows of a worker. Times are seconds since the epoch."""

    worker_id: Identifier
    status: WorkerStatus = "unknown"
    heartbeat_stats: StorableDict | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
