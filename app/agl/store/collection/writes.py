"""All writes that one decision of the store leads to, collected before any is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from agl.types import Attempt, Rollout, Worker

Fields = tuple[str, ...]


@dataclass(slots=True)
class WriteBatch:
    """What to insert, which fields to change, and how the queue changes.

    Changed items are whole items of which only the named fields are written.
    """

    new_rollouts: list[Rollout] = field(default_factory=list[Rollout])
    new_attempts: list[Attempt] = field(default_factory=list[Attempt])
    rollouts: dict[Fields, list[Rollout]] = field(default_factory=dict[Fields, list[Rollout]])
    attempts: dict[Fields, list[Attempt]] = field(default_factory=dict[Fields, list[Attempt]])
    workers: dict[Fields, list[Worker]] = field(default_factory=dict[Fields, list[Worker]])
    take: int = 0
    """How many entries to take off the head of the queue; it was looked at before."""

    enqueue: list[str] = field(default_factory=list[str])
    """Ids of new rollouts to append to the queue."""

    requeue: list[str] = field(default_factory=list[str])
    """Ids to append unless they are in the queue."""

    leave_queue: list[str] = field(default_factory=list[str])
    """Ids to take out of the queue, wherever they are in it."""

    def change_rollout(self, rollout: Rollout, fields: Fields) -> None:
        self.rollouts.setdefault(fields, []).append(rollout)

    def change_attempt(self, attempt: Attempt, fields: Fields) -> None:
        self.attempts.setdefault(fields, []).append(attempt)

    def upsert_worker(self, worker: Worker, fields: Fields) -> None:
        self.workers.setdefault(fields, []).append(worker)
