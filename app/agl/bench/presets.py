"""The scenarios that have names, and how they are made smaller."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Agent = Literal["arithmetic", "random"]
Mode = Literal["batch", "batch_partial", "single"]

_SHORTEST_POLL_SECONDS = 0.2
_COUNTS = ("rollouts", "batch_size", "remaining", "concurrency", "runners")


@dataclass(frozen=True)
class Preset:
    """A training loop; the defaults are those of agent-lightning 0.3."""

    what: str
    agent: Agent = "random"
    mode: Mode = "batch"
    rollouts: int = 16_384
    batch_size: int = 128
    """Rollouts that the algorithm enqueues at a time (not in ``single``)."""

    remaining: int = 512
    """``batch_partial`` enqueues the next batch when fewer than so many are unfinished."""

    concurrency: int = 32
    """``single``: how many are under way."""

    runners: int = 32
    """Runner processes."""

    max_rounds: int = 10
    """Rounds of an agent, of three spans each, are 1 to this many."""

    sleep_seconds: float = 1.0
    """An agent sleeps 0 to so long in two spans of a round."""

    poll_seconds: float = 5.0
    """Pause between two looks at what is finished."""

    together: bool = False
    """Whether a batch is enqueued in one call instead of one by one."""

    timeout: float = 7200.0
    """When to give up."""

    def scaled(self, factor: float) -> Self:
        """Return the same loop with ``factor`` times as much, 0 < factor <= 1.

        Rollouts, batch size, remaining, concurrency and runners become smaller, rounded up; the
        pause between looks does likewise, down to 0.2 s. What an agent does stays the same.
        """
        smaller: dict[str, Any] = {
            name: max(math.ceil(getattr(self, name) * factor), 1) for name in _COUNTS
        }
        poll = max(self.poll_seconds * factor, min(self.poll_seconds, _SHORTEST_POLL_SECONDS))
        return dataclasses.replace(self, **smaller, poll_seconds=poll)

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return it with the values that are not ``None``."""
        return dataclasses.replace(self, **{k: v for k, v in given.items() if v is not None})

    @property
    def longest_rollout(self) -> float:
        """Seconds that an agent may sleep in a rollout."""
        return (2 * self.max_rounds + 1) * self.sleep_seconds if self.agent == "random" else 0.0


PRESETS: Mapping[str, Preset] = {
    "minimal": Preset(
        "arithmetic with tools, some of which fails on purpose; seconds",
        agent="arithmetic",
        rollouts=200,
        batch_size=50,
        runners=8,
        poll_seconds=0.2,
        together=True,
        timeout=600.0,
    ),
    "medium": Preset(
        "an everyday training",
        rollouts=10_000,
        batch_size=1_000,
        runners=100,
        sleep_seconds=0.1,
    ),
    "midhigh": Preset(
        "a training on many machines",
        rollouts=20_000,
        batch_size=2_048,
        runners=300,
        max_rounds=6,
        sleep_seconds=0.1,
    ),
    "large-batch": Preset(
        "few, very large batches",
        rollouts=50_000,
        batch_size=10_000,
        runners=1_000,
        max_rounds=3,
        sleep_seconds=0.1,
    ),
    "long-queues": Preset(
        "the next batch long before the last is done",
        mode="batch_partial",
        rollouts=50_000,
        batch_size=1_024,
        remaining=4_096,
        runners=256,
        max_rounds=4,
        sleep_seconds=0.1,
    ),
    "high-concurrency": Preset(
        "every rollout on its own, thousands at once",
        mode="single",
        rollouts=50_000,
        concurrency=2_048,
        runners=256,
        max_rounds=2,
        sleep_seconds=0.1,
    ),
    "heavy-traces": Preset(
        "many spans a rollout",
        mode="batch_partial",
        rollouts=10_000,
        batch_size=1_024,
        remaining=1_024,
        runners=512,
        max_rounds=20,
    ),
}
