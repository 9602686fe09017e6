"""The figures of a store in memory, kept up to date with every change so that nobody counts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agl.store._core import Pair
from agl.types import (
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    Rollout,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)
from agl.types.span import has_reward
from agl.types.state import (
    ATTEMPT_STATUSES,
    GONE_SECONDS,
    JUDGED_STATUSES,
    MODE_NAMES,
    ROLLOUT_STATUSES,
    SILENT_SECONDS,
    WORKER_STATUSES,
    ModeName,
    mode_name,
)
from agl.utils.locks import Guarded

_SPARE = 64


class _Group:
    """When things began, of which those that have ended are forgotten bit by bit."""

    __slots__ = ("heap", "size")

    def __init__(self) -> None:
        self.heap: list[tuple[float, str]] = []
        self.size = 0


class Beginnings:
    """When the attempts under way began, by their timeout; the oldest of each is at hand."""

    def __init__(self) -> None:
        self._groups: dict[float | None, _Group] = {}
        self._known: dict[str, tuple[float | None, float]] = {}

    def put(self, rollout_id: str, timeout: float | None, began: float) -> None:
        """The rollout is under way."""
        now = timeout, began
        if self._known.get(rollout_id) == now:
            return
        self.remove(rollout_id)
        group = self._groups.get(timeout)
        if group is None:
            group = self._groups[timeout] = _Group()
        self._known[rollout_id] = now
        heapq.heappush(group.heap, (began, rollout_id))
        group.size += 1

    def remove(self, rollout_id: str) -> None:
        """The rollout is not under way."""
        known = self._known.pop(rollout_id, None)
        if known is None:
            return
        timeout = known[0]
        group = self._groups[timeout]
        group.size -= 1
        if not group.size:
            del self._groups[timeout]
        elif len(group.heap) > 2 * group.size + _SPARE:
            group.heap = [entry for entry in set(group.heap) if self._counts(timeout, entry)]
            heapq.heapify(group.heap)

    def oldest(self) -> dict[float | None, float]:
        """When the oldest began, by timeout."""
        found: dict[float | None, float] = {}
        for timeout, group in self._groups.items():
            while not self._counts(timeout, group.heap[0]):
                heapq.heappop(group.heap)
            found[timeout] = group.heap[0][0]
        return found

    def _counts(self, timeout: float | None, entry: tuple[float, str]) -> bool:
        began, rollout_id = entry
        return self._known.get(rollout_id) == (timeout, began)


class _Lacking:
    """Finished rollouts that never had something, spans for example.

    Only the unfinished that had it and the finished that had not are remembered: few of many.
    """

    def __init__(self) -> None:
        self._had: set[str] = set()
        self._lacking: set[str] = set()
        self.counts: dict[ModeName, int] = dict.fromkeys(MODE_NAMES, 0)

    def moved(self, old: Rollout | None, new: Rollout) -> None:
        """A rollout has another status or mode, or is new."""
        key = new.rollout_id
        ended_before = old is not None and old.status in FINISHED_STATUSES
        ends = new.status in FINISHED_STATUSES
        lacks = key in self._lacking if ended_before else key not in self._had
        if lacks:
            self._count(old, -1)
            self._count(new, 1)
        if ends and not ended_before:
            self._had.discard(key)
            if lacks:
                self._lacking.add(key)
        elif ended_before and not ends:
            self._lacking.discard(key)
            if not lacks:
                self._had.add(key)

    def removed(self, rollout: Rollout) -> None:
        """A rollout is not stored any more."""
        if rollout.rollout_id in self._lacking:
            self._count(rollout, -1)
        self._lacking.discard(rollout.rollout_id)
        self._had.discard(rollout.rollout_id)

    def has(self, rollout: Rollout) -> None:
        """A rollout has it."""
        key = rollout.rollout_id
        if rollout.status not in FINISHED_STATUSES:
            self._had.add(key)
        elif key in self._lacking:
            self._lacking.discard(key)
            self._count(rollout, -1)

    def _count(self, rollout: Rollout | None, number: int) -> None:
        if rollout is not None and rollout.status in JUDGED_STATUSES:
            self.counts[mode_name(rollout.mode)] += number


class StateTally(Guarded):
    """Figures that follow every change of the collections.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._rollouts = {status: dict.fromkeys(MODE_NAMES, 0) for status in ROLLOUT_STATUSES}
        self._attempts = dict.fromkeys(ATTEMPT_STATUSES, 0)
        self._workers = dict.fromkeys(WORKER_STATUSES, 0)
        self._retries = 0
        self._requeued: dict[str, float] = {}
        """When rollouts that wait entered the queue, unless they did as they were created."""

        self._running = Beginnings()
        self._spans = _Lacking()
        self._rewards = _Lacking()
        self._seen: dict[str, tuple[WorkerStatus, float]] = {}
        """Status of workers, and when they sent a heartbeat or asked for work last."""

    # What has changed

    def rollout(self, old: Rollout | None, new: Rollout | None) -> None:
        """A rollout was added, has another status or mode, or was removed."""
        with self._mutex:
            if old is not None:
                self._rollouts[old.status][old.mode or "unknown"] -= 1
            if new is None:
                if old is not None:
                    self._rollout_removed(old)
                return
            self._rollouts[new.status][new.mode or "unknown"] += 1
            if new.status in FINISHED_STATUSES or (
                old is not None and old.status in FINISHED_STATUSES
            ):
                self._spans.moved(old, new)
                self._rewards.moved(old, new)
            waited = old is not None and old.status in QUEUING_STATUSES
            waits = new.status in QUEUING_STATUSES
            if waited and not waits:
                self._requeued.pop(new.rollout_id, None)
            elif old is not None and waits and not waited:
                self._requeued[new.rollout_id] = self._clock()

    def _rollout_removed(self, rollout: Rollout) -> None:
        self._spans.removed(rollout)
        self._rewards.removed(rollout)
        self._requeued.pop(rollout.rollout_id, None)
        self._running.remove(rollout.rollout_id)

    def attempt(self, old: Attempt | None, new: Attempt | None) -> None:
        """An attempt was added, has another status, or was removed."""
        with self._mutex:
            if old is not None:
                self._attempts[old.status] -= 1
            if new is not None:
                self._attempts[new.status] += 1
            if old is None and new is not None and new.sequence_id > 1:
                self._retries += 1
            elif new is None and old is not None and old.sequence_id > 1:
                self._retries -= 1

    def worker(self, old: Worker | None, new: Worker | None) -> None:
        """A worker was added, heard of, has another status, or was removed."""
        with self._mutex:
            if old is not None:
                self._workers[old.status] -= 1
            if new is None:
                if old is not None:
                    self._seen.pop(old.worker_id, None)
                return
            self._workers[new.status] += 1
            beat, asked = new.last_heartbeat_time, new.last_dequeue_time
            heard = asked if beat is None or (asked is not None and asked > beat) else beat
            if heard is not None:
                self._seen[new.worker_id] = (new.status, heard)

    def under_way(self, touched: Sequence[tuple[Rollout, Attempt | None]]) -> None:
        """Rollouts have another status, timeout or latest attempt."""
        if not touched:
            return
        with self._mutex:
            for rollout, attempt in touched:
                if attempt is None or rollout.status not in RUNNING_STATUSES:
                    self._running.remove(rollout.rollout_id)
                else:
                    timeout = rollout.config.timeout_seconds
                    self._running.put(rollout.rollout_id, timeout, attempt.start_time)

    def spans(self, spans: Sequence[Span], attempts: Sequence[Pair]) -> None:
        """Spans were stored; ``attempts`` are those they belong to."""
        with self._mutex:
            if len(attempts) == 1:
                self._spans_of(attempts[0][0], spans)
                return
            rollouts = {rollout.rollout_id: rollout for rollout, _ in attempts}
            for span in spans:
                self._spans_of(rollouts[span.rollout_id], (span,))

    def _spans_of(self, rollout: Rollout, spans: Iterable[Span]) -> None:
        self._spans.has(rollout)
        if any(map(has_reward, spans)):
            self._rewards.has(rollout)

    # What there is

    def entered_queue(self, rollout: Rollout) -> float:
        """When a rollout that waits began to."""
        return self._requeued.get(rollout.rollout_id, rollout.start_time)

    def figures(self, now: float) -> dict[str, Any]:
        """Those of a :class:`~agl.types.StoreState` that are known here, by name."""
        with self._mutex:
            age, share = oldest_running(self._running.oldest(), now)
            return {
                "rollouts": {status: dict(modes) for status, modes in self._rollouts.items()},
                "attempts": dict(self._attempts),
                "retries": self._retries,
                "finished_without_spans": dict(self._spans.counts),
                "finished_without_reward": dict(self._rewards.counts),
                "workers": dict(self._workers),
                **self._worker_figures(now),
                "oldest_running_age_seconds": age,
                "oldest_running_timeout_ratio": share,
            }

    def _worker_figures(self, now: float) -> dict[str, Any]:
        ages = dict.fromkeys(WORKER_STATUSES, 0.0)
        silent = 0
        for worker_id, (status, at) in list(self._seen.items()):
            age = now - at
            if age > GONE_SECONDS:
                del self._seen[worker_id]
                continue
            ages[status] = max(ages[status], age)
            silent += age > SILENT_SECONDS
        return {"silent_workers": silent, "worker_oldest_heartbeat_age_seconds": ages}


def how_many(
    rollouts: Mapping[RolloutStatus, Mapping[ModeName, int]], statuses: Iterable[RolloutStatus]
) -> int:
    """Rollouts of some statuses, whatever their mode."""
    return sum(sum(rollouts[status].values()) for status in statuses)


def oldest_running(began: Mapping[float | None, float], now: float) -> tuple[float, float]:
    """The highest age and share of a timeout, from when the oldest began, by their timeout."""
    ages = {timeout: max(now - since, 0.0) for timeout, since in began.items()}
    shares = [age / timeout for timeout, age in ages.items() if timeout and timeout > 0]
    return max(ages.values(), default=0.0), max(shares, default=0.0)
