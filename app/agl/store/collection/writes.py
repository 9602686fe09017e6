"""All writes that one decision of the store leads to, collected before any is made."""

from __future__ import annotations

from agl.types import Attempt, Rollout, Worker

Fields = tuple[str, ...]


class WriteBatch:
    """What to insert, which fields to change, and how the queue changes.

    Changed items are whole items of which only the named fields are written.
    """

    __slots__ = (
        "attempts",
        "enqueue",
        "leave_queue",
        "new_attempts",
        "new_rollouts",
        "requeue",
        "rollouts",
        "take",
        "workers",
    )

    def __init__(self) -> None:
        self.new_rollouts: list[Rollout] = []
        self.new_attempts: list[Attempt] = []
        self.rollouts: dict[Fields, list[Rollout]] = {}
        self.attempts: dict[Fields, list[Attempt]] = {}
        self.workers: dict[Fields, list[Worker]] = {}
        self.take = 0
        """How many entries to take off the head of the queue; it was looked at before."""

        self.enqueue: list[str] = []
        """Ids of new rollouts to append to the queue."""

        self.requeue: list[str] = []
        """Ids to append unless they are in the queue."""

        self.leave_queue: list[str] = []
        """Ids to take out of the queue, wherever they are in it."""

    def change_rollout(self, rollout: Rollout, fields: Fields) -> None:
        self.rollouts.setdefault(fields, []).append(rollout)

    def change_attempt(self, attempt: Attempt, fields: Fields) -> None:
        self.attempts.setdefault(fields, []).append(attempt)

    def upsert_worker(self, worker: Worker, fields: Fields) -> None:
        self.workers.setdefault(fields, []).append(worker)
