"""What a scenario enqueues, and what must come of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, get_args

from agl.bench.agent import final_reward
from agl.bench.neighbours import AGENT_KEY
from agl.bench.presets import Agent, Preset
from agl.bench.random_agent import TASK, TraceSettings, draw_plan
from agl.bench.tasks import TOOL_BUDGET, draw_task
from agl.bench.verify import Evidence, problems
from agl.store.client_server import LightningStoreClient
from agl.types import (
    LLM,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    Rollout,
    RolloutConfig,
    Span,
)

T = TypeVar("T")

LLM_NAME = "planner"
PROMPT_NAME = "prompt"

AGENTS = get_args(Agent)
"""Whom a runner can play."""

_VALIDATION_EVERY = 5


class Reader(Protocol):
    """Repeats a question until it is answered."""

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return what the operation returns."""
        ...


class Workload(Protocol):
    """The rollouts of a scenario, by number from 0."""

    def resources(self, batch: int) -> NamedResources:
        """Return what the rollouts of a batch use."""
        ...

    def request(self, index: int, resources_id: str) -> EnqueueRolloutRequest:
        """Return a rollout to enqueue; its metadata is to be added to."""
        ...

    async def read(
        self, client: LightningStoreClient, reader: Reader, rollout: Rollout
    ) -> Evidence | None:
        """Read a finished rollout back; ``None`` when the store no longer has it."""
        ...

    def problems(self, index: int, resources_id: str, evidence: Evidence) -> list[str]:
        """Return a line for everything that is not as it must be."""
        ...


class ArithmeticWorkload:
    """Arithmetic of known answers; some rollouts need a second attempt, some fail."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def resources(self, batch: int) -> NamedResources:
        template = f"Round {batch}. Work out {{task}} step by step, one tool call a step."
        return {
            LLM_NAME: _llm("shunting-yard", max_tool_calls=TOOL_BUDGET),
            PROMPT_NAME: PromptTemplate(template=template, engine="f-string"),
        }

    def request(self, index: int, resources_id: str) -> EnqueueRolloutRequest:
        task = draw_task(self._seed, index)
        return EnqueueRolloutRequest(
            input={"task": task.text, "answer": task.answer},
            mode="val" if index % _VALIDATION_EVERY == 0 else "train",
            resources_id=resources_id,
            config=RolloutConfig(max_attempts=task.max_attempts, retry_condition=["failed"]),
            metadata={AGENT_KEY: "arithmetic"},
        )

    async def read(
        self, client: LightningStoreClient, reader: Reader, rollout: Rollout
    ) -> Evidence | None:
        key = rollout.rollout_id
        attempts = await reader.call(lambda: client.query_attempts(key))
        spans = await reader.call(lambda: client.query_spans(key))
        return Evidence(rollout, attempts.items, spans.items) if attempts.total else None

    def problems(self, index: int, resources_id: str, evidence: Evidence) -> list[str]:
        return problems(draw_task(self._seed, index), resources_id, evidence)


class RandomWorkload:
    """Traces of random shape and size; every rollout succeeds at its first attempt."""

    def __init__(self, seed: int, preset: Preset) -> None:
        self._seed = seed
        self._preset = preset

    def resources(self, batch: int) -> NamedResources:
        return {LLM_NAME: _llm(f"random-{batch}")}

    def request(self, index: int, resources_id: str) -> EnqueueRolloutRequest:
        settings = self._settings(index)
        return EnqueueRolloutRequest(
            input={
                "task": settings.task,
                "seed": settings.seed,
                "index": settings.index,
                "max_rounds": settings.max_rounds,
                "sleep_seconds": settings.sleep_seconds,
            },
            mode="train",
            resources_id=resources_id,
            metadata={AGENT_KEY: "random"},
        )

    async def read(
        self, client: LightningStoreClient, reader: Reader, rollout: Rollout
    ) -> Evidence | None:
        key = rollout.rollout_id
        spans = await reader.call(lambda: client.query_spans(key, attempt_id="latest"))
        if not spans.total and await reader.call(lambda: client.get_rollout_by_id(key)) is None:
            return None
        return Evidence(rollout, (), spans.items)

    def problems(self, index: int, resources_id: str, evidence: Evidence) -> list[str]:
        settings = self._settings(index)
        rollout = evidence.rollout
        found: list[str] = []
        if rollout.status != "succeeded":
            found.append(f"status {rollout.status}, expected succeeded")
        if rollout.resources_id != resources_id:
            found.append(f"resources {rollout.resources_id}, expected {resources_id}")
        found += _trace_problems(settings, evidence.spans)
        return [f"{rollout.rollout_id} ({settings.task}): {line}" for line in found]

    def _settings(self, index: int) -> TraceSettings:
        preset = self._preset
        return TraceSettings(self._seed, index, preset.max_rounds, preset.sleep_seconds)


def workload_of(preset: Preset, seed: int) -> Workload:
    """Return the workload that a preset names."""
    if preset.agent == "arithmetic":
        return ArithmeticWorkload(seed)
    return RandomWorkload(seed, preset)


def _trace_problems(settings: TraceSettings, spans: Sequence[Span]) -> list[str]:
    found: list[str] = []
    tasks = [span.attributes[TASK] for span in spans if TASK in span.attributes]
    if tasks != [settings.task]:
        found.append(f"the task in its spans is {tasks}, expected one: {settings.task!r}")
    reward = final_reward(spans)
    if reward is None or not 1 <= reward <= 2:
        found.append(f"final reward {reward}, expected one from 1 to 2")
    wanted = list(draw_plan(settings).names())
    names = [span.name for span in spans]
    if names != wanted:
        missing, extra = Counter(wanted) - Counter(names), Counter(names) - Counter(wanted)
        differs = [f"missing {dict(missing)}"] if missing else []
        differs += [f"too many {dict(extra)}"] if extra else []
        found.append(f"spans: {', '.join(differs) or 'in another order'}")
    numbers = [span.sequence_id for span in spans]
    if any(first >= second for first, second in itertools.pairwise(numbers)):
        found.append(f"span numbers {numbers}")
    return found


def _llm(model: str, **parameters: int) -> LLM:
    return LLM(endpoint="local", model=model, sampling_parameters=parameters)
