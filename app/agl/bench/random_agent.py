"""An agent that sleeps and writes spans with attributes of random shape, as real traces have them.

The same seed and number give the same spans; only ids and times differ.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.trace import Tracer

from agl.bench.agent import REWARD_SPAN, emit_reward

FINAL_SPAN = "final"
TASK = "task"

_DEEPEST = 3
_BREADTH = (2, 6)
_KEY_LENGTH = (3, 20)
_VALUE_LENGTH = (5, 300)
_REWARD_CHANCE = 0.5

Tree: TypeAlias = "dict[str, str | Tree]"


@dataclass(frozen=True)
class TraceSettings:
    """Which trace to write: number ``index`` of the endless list that ``seed`` names."""

    seed: int
    index: int
    max_rounds: int
    sleep_seconds: float

    @property
    def task(self) -> str:
        """The text that has to come back in a span."""
        return f"task {self.index} of seed {self.seed}"


@dataclass(frozen=True)
class TracePlan:
    """What one trace holds besides its attributes; sleeps in seconds."""

    sleeps: tuple[tuple[float, float], ...]
    """Of the two steps of each round."""

    rewards: tuple[float | None, ...]
    """Emitted at the end of each round."""

    chosen: int
    """The round, from 0, whose first step names the task."""

    last_sleep: float
    last_reward: float
    """From 1 to 2."""

    def names(self) -> Iterator[str]:
        """Yield the names of the spans in the order they start."""
        for number, reward in enumerate(self.rewards):
            yield f"agent{number}"
            yield from (f"round{number}_1", f"round{number}_2")
            if reward is not None:
                yield REWARD_SPAN
        yield from (FINAL_SPAN, REWARD_SPAN)


def draw_plan(settings: TraceSettings) -> TracePlan:
    """Return what the trace of these settings holds."""
    rng = random.Random(f"{settings.seed}:{settings.index}")  # noqa: S311 - reproducible, no secret
    rounds = rng.randint(1, settings.max_rounds)
    most = settings.sleep_seconds
    return TracePlan(
        sleeps=tuple((rng.uniform(0, most), rng.uniform(0, most)) for _ in range(rounds)),
        rewards=tuple(
            rng.random() if rng.random() < _REWARD_CHANCE else None for _ in range(rounds)
        ),
        chosen=rng.randrange(rounds),
        last_sleep=rng.uniform(0, most),
        last_reward=rng.uniform(1, 2),
    )


def write_trace(tracer: Tracer, settings: TraceSettings, sleep: Callable[[float], object]) -> None:
    """Play the agent: every span goes to ``tracer``, every pause through ``sleep``."""
    plan = draw_plan(settings)
    rng = random.Random(f"{settings.seed}:{settings.index}:attributes")  # noqa: S311 - as above
    for number, pauses in enumerate(plan.sleeps):
        with tracer.start_as_current_span(f"agent{number}"):
            for step, pause in enumerate(pauses, start=1):
                attributes = random_attributes(rng)
                if number == plan.chosen and step == 1:
                    attributes[TASK] = settings.task
                with tracer.start_as_current_span(f"round{number}_{step}", attributes=attributes):
                    sleep(pause)
            reward = plan.rewards[number]
            if reward is not None:
                emit_reward(tracer, reward)
    with tracer.start_as_current_span(FINAL_SPAN, attributes=random_attributes(rng)):
        sleep(plan.last_sleep)
    emit_reward(tracer, plan.last_reward)


def random_attributes(rng: random.Random) -> dict[str, str]:
    """Return a random tree of 1 to 3 levels as attributes with dotted names."""
    return dict(_flat(_random_tree(rng, 1), ""))


def _random_tree(rng: random.Random, level: int) -> Tree:
    deepest = rng.randint(level, _DEEPEST)
    return {
        _word(rng, _KEY_LENGTH): _word(rng, _VALUE_LENGTH)
        if level == deepest
        else _random_tree(rng, level + 1)
        for _ in range(rng.randint(*_BREADTH))
    }


def _flat(tree: Tree, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, str):
            yield prefix + key, value
        else:
            yield from _flat(value, f"{prefix}{key}.")


def _word(rng: random.Random, length: tuple[int, int]) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(*length)))
