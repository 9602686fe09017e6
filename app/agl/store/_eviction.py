"""Keeping the memory that spans take below a watermark."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from zlib import crc32

from agl.errors import SpansEvictedError
from agl.utils.locks import Guarded

_SHARES = 64
"""Dictionaries of evicted rollouts: making room in a single one of a million would stall a call."""


class SpanBudget(Guarded):
    """Bytes of spans by rollout, and which rollout gives up its spans next.

    Those that finished first go first; when none of them is left, unfinished ones, oldest spans
    first. Rollouts being written go only when nothing else is left and the threshold is exceeded.

    Args:
        threshold: Bytes above which spans are given up.
        safe: Bytes at which that ends.
    """

    def __init__(self, threshold: int, safe: int) -> None:
        super().__init__()
        self.threshold = threshold
        self.safe = safe
        self.total = 0
        self.evicted_spans = 0
        self._evicted: list[dict[str, tuple[str, ...]]] = [{} for _ in range(_SHARES)]
        self._bytes: OrderedDict[str, int] = OrderedDict()
        self._finished: deque[str] = deque()
        self._stale: Counter[str] = Counter()
        """Entries of ``_finished`` to skip, of rollouts that were opened again."""
        self._over = False

    @property
    def evicted_rollouts(self) -> int:
        return sum(map(len, self._evicted))

    def add(self, rollout_id: str, size: int, *, finished: bool) -> None:
        """Count spans that were stored."""
        with self._mutex:
            self.total += size
            known = self._bytes.get(rollout_id)
            if known is None and finished:
                self._finished.append(rollout_id)
            self._bytes[rollout_id] = (known or 0) + size

    def finish(self, rollout_ids: Iterable[str]) -> None:
        """Take note of rollouts that have finished."""
        with self._mutex:
            self._finished.extend(key for key in rollout_ids if key in self._bytes)

    def reopen(self, rollout_ids: Iterable[str]) -> None:
        """Take note of finished rollouts that were opened again."""
        with self._mutex:
            self._stale.update(key for key in rollout_ids if key in self._bytes)

    def over(self) -> bool:
        """Whether :meth:`next_victim` has something to say."""
        return self.total > (self.safe if self._over else self.threshold) or self._over

    def next_victim(self, writing: Collection[str]) -> str | None:
        """The rollout that should give up its spans now; ``None`` while all is well."""
        with self._mutex:
            self._over = self.total > (self.safe if self._over else self.threshold)
            if not self._over or not self._bytes:
                return None
            victim = self._longest_finished(writing)
            if victim is None:
                victim = next((key for key in self._bytes if key not in writing), None)
            if victim is None and self.total > self.threshold:
                victim = next(iter(self._bytes))
            return victim

    def _longest_finished(self, writing: Collection[str]) -> str | None:
        spared: list[str] = []
        victim = None
        while self._finished and victim is None:
            rollout_id = self._finished.popleft()
            if rollout_id in self._stale:
                self._forget_stale(rollout_id)
            elif rollout_id in writing:
                spared.append(rollout_id)
            elif rollout_id in self._bytes:
                victim = rollout_id
        self._finished.extendleft(reversed(spared))
        return victim

    def _forget_stale(self, rollout_id: str) -> None:
        self._stale[rollout_id] -= 1
        if not self._stale[rollout_id]:
            del self._stale[rollout_id]

    def evicted(self, rollout_id: str, spans_by_attempt: Mapping[str, int]) -> None:
        """Take note that a rollout has given up its spans."""
        with self._mutex:
            self.total -= self._bytes.pop(rollout_id, 0)
            self.evicted_spans += sum(spans_by_attempt.values())
            share = self._evicted_share(rollout_id)
            known = share.get(rollout_id, ())
            share[rollout_id] = tuple(dict.fromkeys((*known, *spans_by_attempt)))

    def _evicted_share(self, rollout_id: str) -> dict[str, tuple[str, ...]]:
        return self._evicted[crc32(rollout_id.encode("utf-8", "surrogatepass")) % _SHARES]

    def check_kept(self, rollout_id: str, attempt_id: str | None) -> None:
        """Refuse to speak of spans that are not complete any more.

        Raises:
            SpansEvictedError: those of this attempt, or of any if ``attempt_id`` is ``None``.
        """
        gone = self._evicted_share(rollout_id).get(rollout_id)
        if gone and (attempt_id is None or attempt_id in gone):
            raise SpansEvictedError(
                f"Spans for rollout {rollout_id} have been evicted to free memory "
                f"(attempts: {', '.join(sorted(gone))}); other attempts can still be queried by id"
            )
