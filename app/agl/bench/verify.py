"""What a finished rollout must look like, and whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agl.bench.agent import (
    PLAN_SPAN,
    REWARD_SPAN,
    REWARD_VALUE,
    ROOT_SPAN,
    STEP_SPAN,
    TOOL_SPAN,
    final_reward,
)
from agl.bench.tasks import TOOL_BUDGET, Task
from agl.types import (
    Attempt,
    AttemptStatus,
    AttributeValue,
    Rollout,
    RolloutStatus,
    Span,
    StatusCode,
)


@dataclass(frozen=True)
class ExpectedSpan:
    """One span; ``parent`` is its parent's place in the attempt, ``None`` for the root."""

    name: str
    parent: int | None
    status: StatusCode
    attributes: dict[str, AttributeValue]


@dataclass(frozen=True)
class ExpectedAttempt:
    """One attempt and its spans in the order they start."""

    status: AttemptStatus
    spans: tuple[ExpectedSpan, ...]


@dataclass(frozen=True)
class Evidence:
    """What the store says of one rollout."""

    rollout: Rollout
    attempts: Sequence[Attempt]
    spans: Sequence[Span]


def expected_status(task: Task) -> RolloutStatus:
    """Return how the rollout of this task must end."""
    return "failed" if task.kind == "undefined" else "succeeded"


def expected_reward(task: Task) -> float | None:
    """Return the reward that must be the last one emitted; ``None`` when there must be none."""
    return None if task.kind == "undefined" else 1 + 1 / len(task.tools)


def expected_attempts(task: Task, resources_id: str) -> list[ExpectedAttempt]:
    """Return the attempts that the task's rollout must have, in order."""
    attempts: list[ExpectedAttempt] = []
    for number in range(1, task.max_attempts + 1):
        attempt = _expected_attempt(task, resources_id, number)
        attempts.append(attempt)
        if attempt.status == "succeeded":
            break
    return attempts


def problems(task: Task, resources_id: str, evidence: Evidence) -> list[str]:
    """Return one line for everything that is not as it must be; none when all is well."""
    rollout = evidence.rollout
    found = _rollout_problems(task, resources_id, rollout)
    expected = expected_attempts(task, resources_id)
    if len(evidence.attempts) != len(expected):
        found.append(f"{len(evidence.attempts)} attempts, expected {len(expected)}")
    known = {attempt.attempt_id for attempt in evidence.attempts}
    if any(span.attempt_id not in known for span in evidence.spans):
        found.append("spans of an attempt that does not exist")
    for wanted, attempt in zip(expected, evidence.attempts, strict=False):
        spans = [span for span in evidence.spans if span.attempt_id == attempt.attempt_id]
        found += [
            f"attempt {attempt.sequence_id}: {line}" for line in _differ(wanted, attempt, spans)
        ]
    reward = final_reward(evidence.spans)
    if reward != expected_reward(task):
        found.append(f"final reward {reward}, expected {expected_reward(task)}")
    return [f"{rollout.rollout_id} (task {task.index}: {task.text}): {line}" for line in found]


def _rollout_problems(task: Task, resources_id: str, rollout: Rollout) -> list[str]:
    found: list[str] = []
    if rollout.status != expected_status(task):
        found.append(f"status {rollout.status}, expected {expected_status(task)}")
    if rollout.resources_id != resources_id:
        found.append(f"resources {rollout.resources_id}, expected {resources_id}")
    if rollout.end_time is None or rollout.end_time < rollout.start_time:
        found.append(f"finished, but its end time is {rollout.end_time}")
    return found


def _expected_attempt(task: Task, resources_id: str, number: int) -> ExpectedAttempt:
    body, failed = _expected_steps(task, TOOL_BUDGET * number)
    root: dict[str, AttributeValue] = {
        "task": task.text,
        "agl.resources_id": resources_id,
        "agl.attempt": number,
    }
    if not failed:
        root["answer"] = task.answer
        reward = 1 + 1 / len(task.tools)
        body.append(ExpectedSpan(REWARD_SPAN, 0, "UNSET", {REWARD_VALUE: reward}))
    spans = (
        ExpectedSpan(ROOT_SPAN, None, "ERROR" if failed else "OK", root),
        ExpectedSpan(
            PLAN_SPAN, 0, "UNSET", {"gen_ai.usage.output_tokens": 2 * len(task.tools) + 1}
        ),
        *body,
    )
    return ExpectedAttempt("failed" if failed else "succeeded", spans)


def _expected_steps(task: Task, budget: int) -> tuple[list[ExpectedSpan], bool]:
    """Return the spans of the steps that get started, and whether the last of them fails."""
    spans: list[ExpectedSpan] = []
    for step, tool in enumerate(task.tools, start=1):
        refused = step > budget
        undefined = task.kind == "undefined" and step == len(task.tools)
        status: StatusCode = "ERROR" if refused or undefined else "UNSET"
        spans.append(ExpectedSpan(f"{STEP_SPAN} {step}", 0, status, {"step.number": step}))
        if refused:
            return spans, True
        place = len(spans) + 1
        attributes: dict[str, AttributeValue] = {"gen_ai.tool.name": tool}
        spans.append(ExpectedSpan(f"{TOOL_SPAN} {tool}", place, status, attributes))
        if undefined:
            return spans, True
    return spans, False


def _differ(wanted: ExpectedAttempt, attempt: Attempt, spans: Sequence[Span]) -> list[str]:
    found: list[str] = []
    if attempt.status != wanted.status:
        found.append(f"status {attempt.status}, expected {wanted.status}")
    names = [span.name for span in spans]
    expected_names = [span.name for span in wanted.spans]
    if names != expected_names:
        return [*found, f"spans {names}, expected {expected_names}"]
    numbers = [span.sequence_id for span in spans]
    if len(set(numbers)) != len(numbers):
        found.append(f"repeated span numbers {numbers}")
    if len({span.trace_id for span in spans}) != 1:
        found.append("spans of more than one trace")
    for expected, span in zip(wanted.spans, spans, strict=True):
        found += _span_differs(expected, span, spans)
    return found


def _span_differs(expected: ExpectedSpan, span: Span, spans: Sequence[Span]) -> list[str]:
    found: list[str] = []
    parent = None if expected.parent is None else spans[expected.parent].span_id
    if span.parent_id != parent:
        found.append(f"{span.name}: parent {span.parent_id}, expected {parent}")
    if span.status.status_code != expected.status:
        found.append(f"{span.name}: {span.status.status_code}, expected {expected.status}")
    for name, value in expected.attributes.items():
        if span.attributes.get(name) != value:
            found.append(
                f"{span.name}: {name} is {span.attributes.get(name)!r}, expected {value!r}"
            )
    return found
