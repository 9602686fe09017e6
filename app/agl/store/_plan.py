"""One decision of the store: what the rules say, turned into writes.

A plan is filled from what was read, without any I/O, and then written at once.
"""

from __future__ import annotations

from typing import Any

from agl.store import rules
from agl.store.collection.writes import Fields, WriteBatch
from agl.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptStatus,
    Rollout,
    RolloutStatus,
    Worker,
)
from agl.utils.ownership import replace
from agl.utils.request_ids import draw_id

_MOVE_FIELDS: Fields = ("status", "end_time")
_CURRENT_FIELDS: Fields = ("status", "current_rollout_id", "current_attempt_id")

ATTEMPT_DIGITS = 8


class Plan:
    """Writes to make, and what to tell afterwards to those who follow rollouts."""

    __slots__ = ("claimed", "finished", "late", "now", "reopened", "touched", "writes")

    def __init__(self, now: float) -> None:
        self.now = now
        self.writes = WriteBatch()
        self.claimed: list[tuple[Rollout, Attempt]] = []
        """Rollouts taken from the queue, as they were before, with their new attempt."""

        self.finished: list[Rollout] = []
        """Rollouts that finish by this plan."""

        self.reopened: list[Rollout] = []
        """Rollouts that were finished and are not any more."""

        self.touched: list[tuple[Rollout, Attempt | None]] = []
        """Rollouts whose status or limits change, as they will be, with the attempt concerned."""

        self.late: list[str] = []
        """What came after the end of its rollout: ``span`` or ``attempt``."""

    def start_attempt(
        self,
        rollout: Rollout,
        previous: Attempt | None,
        worker_id: str | None,
        *,
        dequeued: bool = False,
    ) -> tuple[Rollout, Attempt]:
        """A new attempt at a stored rollout, which is ``preparing`` from now on."""
        attempt = new_attempt(
            rollout.rollout_id, previous.sequence_id + 1 if previous else 1, worker_id, self.now
        )
        move = rules.move_rollout(rollout, "preparing", self.now)
        if move is not None and dequeued:
            move = move._replace(queue="stay")  # the entry is taken off the head
        if dequeued:
            self.claimed.append((rollout, attempt))
        rollout = self.apply(rollout, move, attempt)
        self.writes.new_attempts.append(attempt)
        return rollout, attempt

    def apply(
        self, rollout: Rollout, move: rules.RolloutMove | None, attempt: Attempt | None
    ) -> Rollout:
        """Carry out a move of a stored rollout; returns the rollout as it will be."""
        if move is not None:
            if rollout.status in FINISHED_STATUSES and move.status not in FINISHED_STATUSES:
                self.reopened.append(rollout)
            rollout = replace(rollout, status=move.status, end_time=move.end_time)
            self.writes.change_rollout(rollout, _MOVE_FIELDS)
            self.move_queue(rollout.rollout_id, move)
            if move.finishes:
                self.finished.append(rollout)
        self.touched.append((rollout, attempt))
        return rollout

    def move_queue(self, rollout_id: str, move: rules.RolloutMove) -> None:
        if move.queue == "enter":
            self.writes.requeue.append(rollout_id)
        elif move.queue == "leave":
            self.writes.leave_queue.append(rollout_id)

    def give_up(self, rollout: Rollout, attempt: Attempt, status: AttemptStatus) -> None:
        """End the latest attempt from outside, as the watchdog does."""
        move = rules.move_attempt(attempt, status, self.now)
        attempt = replace(attempt, status=move.status, end_time=move.end_time)
        self.writes.change_attempt(attempt, _MOVE_FIELDS)
        self.apply(rollout, rules.follow_attempt(rollout, attempt, self.now), attempt)
        self.sync_worker(attempt)

    def give_back(self, rollout: Rollout, attempt: Attempt) -> None:
        """Back to the queue, whatever the config says of retries: nobody knows of this attempt."""
        move = rules.move_attempt(attempt, "unresponsive", self.now)
        attempt = replace(attempt, status=move.status, end_time=move.end_time)
        self.writes.change_attempt(attempt, _MOVE_FIELDS)
        self.apply(rollout, rules.move_rollout(rollout, "requeuing", self.now), attempt)

    def sync_worker(self, attempt: Attempt, *, dequeued: bool = False) -> None:
        """Let the worker of an attempt follow the attempt's status."""
        if not attempt.worker_id:
            return
        move = rules.worker_after(attempt.status)
        when = "last_busy_time" if move.busy else "last_idle_time"
        values: dict[str, Any] = {when: self.now}
        if dequeued:
            values["last_dequeue_time"] = self.now
        worker = Worker(
            worker_id=attempt.worker_id,
            status=move.status,
            current_rollout_id=attempt.rollout_id if move.busy else None,
            current_attempt_id=attempt.attempt_id if move.busy else None,
            **values,
        )
        self.writes.upsert_worker(worker, (*_CURRENT_FIELDS, *values))

    def idle_worker(self, worker_id: str, known: Worker | None) -> None:
        """Note that a worker asked for work and found none."""
        if known is not None and known.status == "idle":
            fields: Fields = ("last_dequeue_time",)
        else:
            fields = (*_CURRENT_FIELDS, "last_idle_time", "last_dequeue_time")
        worker = Worker(
            worker_id=worker_id,
            status="idle",
            last_idle_time=self.now,
            last_dequeue_time=self.now,
        )
        self.writes.upsert_worker(worker, fields)


def new_rollout_id() -> str:
    return f"ro-{draw_id(12)}"


def attempt_id_of(drawn: str) -> str:
    return f"at-{drawn}"


def new_attempt(rollout_id: str, sequence_id: int, worker_id: str | None, now: float) -> Attempt:
    return Attempt(
        rollout_id=rollout_id,
        attempt_id=attempt_id_of(draw_id(ATTEMPT_DIGITS)),
        sequence_id=sequence_id,
        start_time=now,
        worker_id=worker_id or None,
    )


def new_rollout(
    status: RolloutStatus,
    now: float,
    **values: Any,
) -> Rollout:
    return Rollout(rollout_id=new_rollout_id(), status=status, start_time=now, **values)
