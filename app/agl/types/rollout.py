"""Rollouts (tasks for an agent) and attempts (tries at them)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, field_validator, model_validator

from agl.types.bounds import (
    MAX_INTEGER,
    Identifier,
    Storable,
    StorableDict,
    TimeLimit,
    Timestamp,
)
from agl.types.first_fault import FirstFault

RolloutStatus = Literal[
    "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"
]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
RolloutMode = Literal["train", "val", "test"]
TaskInput = Any

QUEUING_STATUSES: frozenset[RolloutStatus] = frozenset(("queuing", "requeuing"))
RUNNING_STATUSES: frozenset[RolloutStatus] = frozenset(("preparing", "running"))
ENDED_STATUSES: frozenset[AttemptStatus] = frozenset(("failed", "succeeded"))
FINISHED_STATUSES: frozenset[RolloutStatus] = frozenset(("failed", "succeeded", "cancelled"))

ROLLOUT_MODES: tuple[RolloutMode, ...] = get_args(RolloutMode)


class RolloutConfig(BaseModel):
    """How long a rollout may take and how often it is tried."""

    timeout_seconds: TimeLimit | None = None
    """Longest an attempt may run, in seconds from its start; ``None`` for no limit."""

    unresponsive_seconds: TimeLimit | None = None
    """Longest an attempt may be silent, in seconds since its last heartbeat or span."""

    max_attempts: int = Field(default=1, ge=1, le=MAX_INTEGER)
    """Attempts in total, the first one included."""

    retry_condition: Annotated[list[AttemptStatus], FirstFault()] = Field(
        default_factory=list[AttemptStatus]
    )
    """Attempt statuses after which the rollout is queued again (failed, timeout, unresponsive)."""


class Rollout(BaseModel):
    """One task for an agent. Times are seconds since the epoch."""

    rollout_id: str
    input: Storable
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: Identifier | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: StorableDict | None = None


class Attempt(BaseModel):
    """One try at a rollout. Times are seconds since the epoch."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """1 for the first attempt of a rollout."""

    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: Identifier | None = None
    last_heartbeat_time: Timestamp | None = None
    metadata: StorableDict | None = None


class AttemptUpdate(BaseModel):
    """What to write on one attempt: the fields given, and no others."""

    rollout_id: str
    attempt_id: str
    """An attempt id, or ``latest``."""

    status: AttemptStatus | None = None
    worker_id: Identifier | None = None
    last_heartbeat_time: Timestamp | None = None
    metadata: StorableDict | None = None

    @field_validator("status", "worker_id", "last_heartbeat_time", "metadata", mode="before")
    @classmethod
    def _given_is_not_null(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("it cannot be a null value; leave it out to leave it alone")
        return value

    def changes(self) -> dict[str, Any]:
        """The fields to write, by name."""
        return {
            name: getattr(self, name)
            for name in self.model_fields_set
            if name not in ("rollout_id", "attempt_id")
        }


class AttemptedRollout(Rollout):
    """A rollout with its latest attempt."""

    attempt: Attempt

    @model_validator(mode="after")
    def _same_rollout(self) -> Self:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError("Inconsistent rollout_id between Rollout and Attempt")
        return self


class EnqueueRolloutRequest(BaseModel):
    """What a caller says of a rollout to enqueue; ``input`` is required, ``None`` allowed."""

    input: Storable
    mode: RolloutMode | None = None
    resources_id: Identifier | None = None
    config: RolloutConfig | None = None
    metadata: StorableDict | None = None
