"""The state machine of rollouts, attempts and workers: state, event and clock in, decision out.

Nothing here reads or writes anything. In short:

* A rollout follows the status of its *latest* attempt, and only a status given in the call counts.
* A finished rollout stays finished, whatever an attempt or a span says later; only an explicit
  ``update_rollout`` or ``start_attempt`` opens it again, which clears its end time.
* A sign of life (span or heartbeat) revives an ``unresponsive`` attempt and no other.
* The queue follows the rollout: whoever is queuing or requeuing is in it, nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Literal, NamedTuple

from agl.types import (
    ENDED_STATUSES,
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    WorkerStatus,
)

QueueMove = Literal["stay", "enter", "leave"]

ALIVE_STATUSES: frozenset[AttemptStatus] = frozenset(("preparing", "running"))
GIVEN_UP_STATUSES: frozenset[AttemptStatus] = frozenset(("failed", "timeout", "unresponsive"))


class RolloutMove(NamedTuple):
    """A new state of a rollout, and what follows from it."""

    status: RolloutStatus
    end_time: float | None
    queue: QueueMove
    finishes: bool
    """It was not finished before."""


class AttemptMove(NamedTuple):
    """A new state of an attempt."""

    status: AttemptStatus
    end_time: float | None


class WorkerMove(NamedTuple):
    """A new state of the worker of an attempt."""

    status: WorkerStatus
    busy: bool
    """Whether the attempt becomes the worker's current one; otherwise it has none."""


def claimable(rollout: Rollout) -> bool:
    """Whether a worker that finds the rollout in the queue may take it."""
    return rollout.status in QUEUING_STATUSES


def move_rollout(rollout: Rollout, status: RolloutStatus, now: float) -> RolloutMove | None:
    """What an explicit status does to a rollout (any status may follow any other).

    ``None``: it has this status already. One that waits makes sure of its place in the queue.
    """
    if status == rollout.status and status not in QUEUING_STATUSES:
        return None
    finished = status in FINISHED_STATUSES
    if status in QUEUING_STATUSES:
        queue: QueueMove = "enter"
    else:
        queue = "leave" if rollout.status in QUEUING_STATUSES else "stay"
    return RolloutMove(
        status,
        now if finished else None,
        queue,
        finished and rollout.status not in FINISHED_STATUSES,
    )


def rollout_status_after(
    status: AttemptStatus, sequence_id: int, config: RolloutConfig
) -> RolloutStatus:
    """Where the status of the latest attempt takes an unfinished rollout."""
    if status not in GIVEN_UP_STATUSES:
        return _same_name(status)
    retry = status in config.retry_condition and sequence_id < config.max_attempts
    return "requeuing" if retry else "failed"


def _same_name(status: AttemptStatus) -> RolloutStatus:
    if status == "preparing":
        return "preparing"
    return "running" if status == "running" else "succeeded"


def follow_attempt(rollout: Rollout, attempt: Attempt, now: float) -> RolloutMove | None:
    """What a status given to the latest attempt does to the rollout."""
    if rollout.status in FINISHED_STATUSES:
        return None
    status = rollout_status_after(attempt.status, attempt.sequence_id, rollout.config)
    return move_rollout(rollout, status, now)


def move_attempt(attempt: Attempt, status: AttemptStatus, now: float) -> AttemptMove:
    """What an explicit status does to an attempt (any status may follow any other).

    Only success and failure have an end time; to go on clears it.
    """
    if status in ALIVE_STATUSES:
        return AttemptMove(status, None)
    if status in ENDED_STATUSES and status != attempt.status:
        return AttemptMove(status, now)
    return AttemptMove(status, attempt.end_time)


def attempt_after_sign_of_life(status: AttemptStatus, *, span: bool) -> AttemptStatus:
    """The status of an attempt that sent a span or a heartbeat.

    Both revive the unresponsive; a span also shows that a preparing attempt runs.
    """
    if status == "unresponsive" or (span and status == "preparing"):
        return "running"
    return status


def rollout_after_sign_of_life(
    rollout: Rollout, attempt: Attempt, now: float
) -> RolloutMove | None:
    """What a sign of life of the latest attempt, already revived by it, does to the rollout.

    A rollout that waits for a retry goes on with the attempt that turned out to live.
    """
    if rollout.status in FINISHED_STATUSES or attempt.status != "running":
        return None
    return move_rollout(rollout, "running", now)


def worker_after(status: AttemptStatus) -> WorkerMove:
    """What the status of an attempt says of its worker."""
    if status in ALIVE_STATUSES:
        return WorkerMove("busy", busy=True)
    if status in ENDED_STATUSES:
        return WorkerMove("idle", busy=False)
    return WorkerMove("unknown", busy=False)


def deadline(rollout: Rollout, attempt: Attempt) -> float | None:
    """When the watchdog has to act on a running rollout; ``None`` for never.

    A limit or heartbeat that is not a number (NaN) is never exceeded.
    """
    limits: list[float] = []
    if rollout.config.timeout_seconds is not None:
        limits.append(attempt.start_time + rollout.config.timeout_seconds)
    if rollout.config.unresponsive_seconds is not None:
        limits.append(_last_sign(attempt) + rollout.config.unresponsive_seconds)
    return min((limit for limit in limits if not isnan(limit)), default=None)


def overdue(rollout: Rollout, attempt: Attempt, now: float) -> AttemptStatus | None:
    """Whether the latest attempt has run too long (``timeout``) or is silent (``unresponsive``)."""
    if rollout.status not in RUNNING_STATUSES:
        return None
    limit, silence = rollout.config.timeout_seconds, rollout.config.unresponsive_seconds
    if limit is not None and now - attempt.start_time > limit:
        return "timeout"
    if silence is not None and now - _last_sign(attempt) > silence:
        return "unresponsive"
    return None


def _last_sign(attempt: Attempt) -> float:
    heartbeat = attempt.last_heartbeat_time
    return attempt.start_time if heartbeat is None else heartbeat


def scan_unhealthy_rollouts(
    rollouts: Iterable[AttemptedRollout], now: float
) -> dict[tuple[str, str], AttemptStatus]:
    """The attempts to give up, by rollout id and attempt id."""
    return {
        (rollout.rollout_id, rollout.attempt.attempt_id): status
        for rollout in rollouts
        if (status := overdue(rollout, rollout.attempt, now)) is not None
    }
