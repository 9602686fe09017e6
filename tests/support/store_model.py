"""A store made of dictionaries and ifs: what the rules say, written down a second time.

It follows the documented rules, not the store's code, and takes its sweet time over it. Ids are
tokens (``ro-1``, ``at-3``, ``rs-2``) in the order of creation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

FINISHED = ("succeeded", "failed", "cancelled")
WAITING = ("queuing", "requeuing")
UNDER_WAY = ("preparing", "running")
NO_CONFIG = {
    "timeout_seconds": None,
    "unresponsive_seconds": None,
    "max_attempts": 1,
    "retry_condition": [],
}


class Refused(Exception):
    """The call fails; the text is the message."""


class StoreModel:
    """Every method takes the arguments of the store's and returns what the store has to return."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rollouts: dict[str, Record] = {}
        self.attempts: dict[str, list[Record]] = {}
        self.queue: list[set[str]] = []
        """Groups in order; within a group, queued in one go by the watchdog, any order will do."""

        self.spans: dict[tuple[str, str, str], Record] = {}
        self.counters: dict[str, int] = {}
        self.workers: dict[str, Record] = {}
        self.resources: dict[str, Record] = {}
        self.latest_resources: str | None = None
        self._ids = {"ro": 0, "at": 0, "rs": 0}

    def waiting(self) -> set[str]:
        """Who waits to be claimed."""
        return {key for key, rollout in self.rollouts.items() if rollout["status"] in WAITING}

    # The watchdog

    def sweep(self) -> None:
        requeued: set[str] = set()
        for rollout_id, rollout in self.rollouts.items():
            if rollout["status"] not in UNDER_WAY or not self.attempts[rollout_id]:
                continue
            verdict = self._verdict(rollout, self.attempts[rollout_id][-1])
            if verdict is None:
                continue
            attempt = self.attempts[rollout_id][-1]
            attempt["status"] = verdict
            self._follow(rollout, attempt)
            self._sync_worker(attempt)
            if rollout["status"] == "requeuing":
                requeued.add(rollout_id)
        if requeued:
            for rollout_id in requeued:
                self._leave_queue(rollout_id)
            self.queue.append(requeued)

    def _verdict(self, rollout: Record, attempt: Record) -> str | None:
        limit = rollout["config"]["timeout_seconds"]
        if limit is not None and self.now - attempt["start_time"] > limit:
            return "timeout"
        silence = rollout["config"]["unresponsive_seconds"]
        heard = attempt["last_heartbeat_time"]
        heard = attempt["start_time"] if heard is None else heard
        if silence is not None and self.now - heard > silence:
            return "unresponsive"
        return None

    # Rollouts

    def start_rollout(
        self,
        input: Any,
        mode: str | None = None,
        resources_id: str | None = None,
        config: Record | None = None,
        metadata: Record | None = None,
        worker_id: str | None = None,
    ) -> Record:
        self.sweep()
        rollout = self._create(input, mode, resources_id, config, metadata, "preparing")
        return self._try_again(rollout, worker_id)

    def enqueue_rollout(
        self,
        input: Any,
        mode: str | None = None,
        resources_id: str | None = None,
        config: Record | None = None,
        metadata: Record | None = None,
    ) -> Record:
        self.sweep()
        rollout = self._create(input, mode, resources_id, config, metadata, "queuing")
        self.queue.append({rollout["rollout_id"]})
        return dict(rollout)

    def enqueue_many_rollouts(self, rollouts: Sequence[Record]) -> list[Record]:
        return [self.enqueue_rollout(**request) for request in rollouts]

    def claim(self, limit: int, worker_id: str | None, claimed: Sequence[str]) -> list[Record]:
        """What a dequeue returns, of which ``claimed`` are the rollout ids."""
        self.sweep()
        waiting = sum(len(group) for group in self.queue)
        if len(claimed) != max(0, min(limit, waiting)):
            raise AssertionError(f"{len(claimed)} claimed of {waiting}, {limit} were asked for")
        results: list[Record] = []
        for rollout_id in claimed:
            if rollout_id not in self.queue[0]:
                raise AssertionError(f"{rollout_id} overtook {self.queue[0]}")
            self._leave_queue(rollout_id)
            results.append(self._try_again(self.rollouts[rollout_id], worker_id, sync=False))
        if results:
            self._sync_worker(results[-1]["attempt"], dequeued=True)
        elif worker_id:
            self._nothing_for(worker_id)
        return results

    def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> Record:
        self.sweep()
        rollout = self._rollout(rollout_id)
        self._leave_queue(rollout_id)
        return self._try_again(rollout, worker_id)

    def query_rollouts(self) -> list[Record]:
        self.sweep()
        return [self._with_latest(rollout) for rollout in self.rollouts.values()]

    def get_rollout_by_id(self, rollout_id: str) -> Record | None:
        self.sweep()
        rollout = self.rollouts.get(rollout_id)
        return None if rollout is None else self._with_latest(rollout)

    def update_rollout(self, rollout_id: str, **changes: Any) -> Record:
        self.sweep()
        rollout = self._rollout(rollout_id)
        status = changes.pop("status", None)
        rollout.update(changes)
        if status is not None:
            self._move(rollout, status)
        return dict(rollout)

    def wait_for_rollouts(self, rollout_ids: Sequence[str], timeout: float = 0) -> list[Record]:
        self.sweep()
        known = [self.rollouts[key] for key in rollout_ids if key in self.rollouts]
        return [dict(rollout) for rollout in known if rollout["status"] in FINISHED]

    def wait_for_rollout(self, rollout_id: str, timeout: float = 0) -> Record | None:
        found = self.wait_for_rollouts([rollout_id])
        return found[0] if found else None

    # Attempts

    def query_attempts(self, rollout_id: str) -> list[Record]:
        self.sweep()
        return [dict(attempt) for attempt in self.attempts.get(rollout_id, [])]

    def get_latest_attempt(self, rollout_id: str) -> Record | None:
        self.sweep()
        attempts = self.attempts.get(rollout_id)
        return dict(attempts[-1]) if attempts else None

    def update_attempt(self, rollout_id: str, attempt_id: str, **changes: Any) -> Record:
        self.sweep()
        rollout = self._rollout(rollout_id)
        if not self.attempts[rollout_id]:
            raise Refused(f"No attempts found for rollout {rollout_id}")
        attempt = self._attempt(rollout_id, attempt_id)
        is_latest = attempt is self.attempts[rollout_id][-1]
        before = attempt["status"]
        attempt.update(changes)
        revived = (
            before == "unresponsive"
            and "status" not in changes
            and "last_heartbeat_time" in changes
        )
        if "status" in changes:
            if attempt["status"] in UNDER_WAY:
                attempt["end_time"] = None
            elif attempt["status"] in ("failed", "succeeded") and attempt["status"] != before:
                attempt["end_time"] = self.now
            if is_latest:
                self._follow(rollout, attempt)
        elif revived:
            attempt["status"] = "running"
            if is_latest and rollout["status"] not in FINISHED:
                self._move(rollout, "running")
        if revived or "status" in changes or changes.get("worker_id"):
            self._sync_worker(attempt)
        return dict(attempt)

    # Spans

    def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        self.counters[rollout_id] = self.counters.get(rollout_id, 0) + 1
        return self.counters[rollout_id]

    def get_many_span_sequence_ids(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        return [self.get_next_span_sequence_id(*pair) for pair in pairs]

    def add_span(self, span: Record) -> Record | None:
        stored = self.add_many_spans([span])
        return stored[0] if stored else None

    def add_many_spans(self, spans: Sequence[Record]) -> list[Record]:
        for span in spans:
            self._raise_counter(span["rollout_id"], span["sequence_id"])
        for span in spans:
            if span["rollout_id"] not in self.rollouts:
                raise Refused(f"Rollout {span['rollout_id']} not found")
            self._attempt(span["rollout_id"], span["attempt_id"])
        stored: list[Record] = []
        for span in spans:
            key = (span["rollout_id"], span["attempt_id"], span["span_id"])
            if key not in self.spans:
                self.spans[key] = span
                stored.append(span)
            self._alive(span["rollout_id"], span["attempt_id"])
        return stored

    def query_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Record]:
        self.sweep()
        if attempt_id == "latest":
            attempts = self.attempts.get(rollout_id)
            if not attempts:
                return []
            attempt_id = attempts[-1]["attempt_id"]
        found = [
            span
            for key, span in self.spans.items()
            if key[0] == rollout_id and attempt_id in (None, key[1])
        ]
        return sorted(found, key=lambda span: span["sequence_id"])

    # Resources

    def add_resources(self, resources: Record) -> Record:
        return self._put_resources(self._new_id("rs"), resources)

    def update_resources(self, resources_id: str, resources: Record) -> Record:
        self.sweep()
        return self._put_resources(resources_id, resources)

    def query_resources(self) -> list[Record]:
        return [dict(update) for update in self.resources.values()]

    def get_resources_by_id(self, resources_id: str) -> Record | None:
        return self.resources.get(resources_id)

    def get_latest_resources(self) -> Record | None:
        return None if self.latest_resources is None else self.resources[self.latest_resources]

    # Workers

    def query_workers(self) -> list[Record]:
        self.sweep()
        return [dict(worker) for worker in self.workers.values()]

    def get_worker_by_id(self, worker_id: str) -> Record | None:
        return self.workers.get(worker_id)

    def update_worker(self, worker_id: str, **changes: Any) -> Record:
        worker = self._worker(worker_id)
        worker.update(changes, last_heartbeat_time=self.now)
        return dict(worker)

    def statistics(self) -> dict[str, int]:
        return {
            "total_rollouts": len(self.rollouts),
            "total_attempts": sum(len(attempts) for attempts in self.attempts.values()),
            "total_spans": len(self.spans),
            "total_resources": len(self.resources),
            "total_workers": len(self.workers),
        }

    def content(self) -> Record:
        """Everything, for comparison."""
        return copy.deepcopy(
            {
                "rollouts": list(self.rollouts.values()),
                "attempts": [one for attempts in self.attempts.values() for one in attempts],
                "queue": sorted(key for group in self.queue for key in group),
                "spans": list(self.spans.values()),
                "workers": list(self.workers.values()),
                "resources": list(self.resources.values()),
            }
        )

    # What the above is made of

    def _new_id(self, kind: str) -> str:
        self._ids[kind] += 1
        return f"{kind}-{self._ids[kind]}"

    def _rollout(self, rollout_id: str) -> Record:
        if rollout_id not in self.rollouts:
            raise Refused(f"Rollout {rollout_id} not found")
        return self.rollouts[rollout_id]

    def _attempt(self, rollout_id: str, attempt_id: str) -> Record:
        attempts = self.attempts[rollout_id]
        if attempt_id == "latest":
            return attempts[-1]
        for attempt in attempts:
            if attempt["attempt_id"] == attempt_id:
                return attempt
        raise Refused(f"Attempt {attempt_id} not found for rollout {rollout_id}")

    def _create(
        self,
        input: Any,
        mode: str | None,
        resources_id: str | None,
        config: Record | None,
        metadata: Record | None,
        status: str,
    ) -> Record:
        rollout_id = self._new_id("ro")
        rollout = {
            "rollout_id": rollout_id,
            "input": input,
            "start_time": self.now,
            "end_time": None,
            "mode": mode,
            "resources_id": self.latest_resources if resources_id is None else resources_id,
            "status": status,
            "config": config or NO_CONFIG,
            "metadata": {} if metadata is None else metadata,
        }
        self.rollouts[rollout_id] = rollout
        self.attempts[rollout_id] = []
        return rollout

    def _try_again(self, rollout: Record, worker_id: str | None, *, sync: bool = True) -> Record:
        attempts = self.attempts[rollout["rollout_id"]]
        attempt = {
            "rollout_id": rollout["rollout_id"],
            "attempt_id": self._new_id("at"),
            "sequence_id": len(attempts) + 1,
            "start_time": self.now,
            "end_time": None,
            "status": "preparing",
            "worker_id": worker_id,
            "last_heartbeat_time": None,
            "metadata": None,
        }
        attempts.append(attempt)
        rollout["status"], rollout["end_time"] = "preparing", None
        if sync:
            self._sync_worker(attempt)
        return self._with_latest(rollout)

    def _with_latest(self, rollout: Record) -> Record:
        attempts = self.attempts[rollout["rollout_id"]]
        return {**rollout, "attempt": dict(attempts[-1])} if attempts else dict(rollout)

    def _move(self, rollout: Record, status: str) -> None:
        rollout_id = rollout["rollout_id"]
        if status in WAITING:
            if not any(rollout_id in group for group in self.queue):
                self.queue.append({rollout_id})
        else:
            self._leave_queue(rollout_id)
        if status not in FINISHED:
            rollout["end_time"] = None
        elif rollout["status"] != status:
            rollout["end_time"] = self.now
        rollout["status"] = status

    def _follow(self, rollout: Record, attempt: Record) -> None:
        """A status was given to the latest attempt."""
        if rollout["status"] in FINISHED:
            return
        status = attempt["status"]
        if status in ("failed", "timeout", "unresponsive"):
            config = rollout["config"]
            again = (
                status in config["retry_condition"]
                and attempt["sequence_id"] < config["max_attempts"]
            )
            status = "requeuing" if again else "failed"
        self._move(rollout, status)

    def _alive(self, rollout_id: str, attempt_id: str) -> None:
        """A span arrived."""
        rollout = self.rollouts[rollout_id]
        attempt = self._attempt(rollout_id, attempt_id)
        attempt["last_heartbeat_time"] = self.now
        if attempt["status"] in ("preparing", "unresponsive"):
            attempt["status"] = "running"
            self._sync_worker(attempt)
        is_latest = attempt is self.attempts[rollout_id][-1]
        if is_latest and attempt["status"] == "running" and rollout["status"] not in FINISHED:
            self._move(rollout, "running")

    def _leave_queue(self, rollout_id: str) -> None:
        self.queue = [left for group in self.queue if (left := group - {rollout_id})]

    def _raise_counter(self, rollout_id: str, number: int) -> None:
        self.counters[rollout_id] = max(self.counters.get(rollout_id, 0), number)

    def _worker(self, worker_id: str) -> Record:
        return self.workers.setdefault(
            worker_id,
            {
                "worker_id": worker_id,
                "status": "unknown",
                "heartbeat_stats": None,
                "last_heartbeat_time": None,
                "last_dequeue_time": None,
                "last_busy_time": None,
                "last_idle_time": None,
                "current_rollout_id": None,
                "current_attempt_id": None,
            },
        )

    def _sync_worker(self, attempt: Record, *, dequeued: bool = False) -> None:
        if not attempt["worker_id"]:
            return
        worker = self._worker(attempt["worker_id"])
        busy = attempt["status"] in UNDER_WAY
        worker["current_rollout_id"] = attempt["rollout_id"] if busy else None
        worker["current_attempt_id"] = attempt["attempt_id"] if busy else None
        worker["last_busy_time" if busy else "last_idle_time"] = self.now
        if busy:
            worker["status"] = "busy"
        else:
            ended = attempt["status"] in ("succeeded", "failed")
            worker["status"] = "idle" if ended else "unknown"
        if dequeued:
            worker["last_dequeue_time"] = self.now

    def _nothing_for(self, worker_id: str) -> None:
        worker = self._worker(worker_id)
        worker["last_dequeue_time"] = self.now
        if worker["status"] != "idle":
            worker["status"] = "idle"
            worker["last_idle_time"] = self.now
            worker["current_rollout_id"] = worker["current_attempt_id"] = None

    def _put_resources(self, resources_id: str, resources: Record) -> Record:
        old = self.resources.get(resources_id)
        update = {
            "resources_id": resources_id,
            "create_time": self.now if old is None else old["create_time"],
            "update_time": self.now,
            "version": 1 if old is None else old["version"] + 1,
            "resources": resources,
        }
        self.resources[resources_id] = update
        self.latest_resources = resources_id
        return dict(update)
