"""A small agent that works out arithmetic with tools, step by step, traced with OpenTelemetry.

It reads the task, plans (shunting-yard: operators by precedence, parentheses first), then calls one
tool a step. It is deterministic: the same task, prompt and budget give the same spans and reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from opentelemetry.trace import Status, StatusCode, Tracer

from agl.types import Span

ROOT_SPAN = "invoke_agent arithmetic"
PLAN_SPAN = "plan"
STEP_SPAN = "step"
TOOL_SPAN = "execute_tool"
REWARD_SPAN = "agentlightning.annotation"

REWARD_NAME = "agentlightning.reward.0.name"
REWARD_VALUE = "agentlightning.reward.0.value"

_ITEM = re.compile(r"\s*(\d+|[-+*/()])")
_WORD = re.compile(r"\w+|[^\w\s]")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


class AgentError(Exception):
    """The agent could not finish the task."""


class TaskSyntaxError(AgentError):
    """The task is not an arithmetic expression."""


class ToolBudgetExceededError(AgentError):
    """The plan needs more tool calls than this attempt may make."""


class ToolError(AgentError):
    """A tool refused its arguments."""


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if not right:
        raise ToolError(f"cannot divide {left} by zero")
    return left / right


TOOLS: Mapping[str, tuple[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": ("add", lambda left, right: left + right),
    "-": ("sub", lambda left, right: left - right),
    "*": ("mul", lambda left, right: left * right),
    "/": ("div", _divide),
}


@dataclass(frozen=True)
class AgentSettings:
    """What one attempt works with; ``max_tool_calls`` is the number of tool calls allowed."""

    model: str
    prompt: str
    max_tool_calls: int
    resources_id: str
    attempt: int


def plan(task: str) -> list[Fraction | str]:
    """Turn an infix expression into the order of work: operands, and operators after theirs.

    Raises:
        TaskSyntaxError: a character, an operand or a parenthesis is out of place.
    """
    planner = _Planner(task)
    for item in _items(task):
        planner.take(item)
    return planner.finish()


class _Planner:
    """Shunting-yard: operators wait until everything that binds tighter has been put out."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._order: list[Fraction | str] = []
        self._waiting: list[str] = []
        self._operand_next = True

    def take(self, item: str) -> None:
        opens = item == "(" or item.isdigit()
        if opens != self._operand_next:
            raise self._out_of_place(item)
        if item == "(":
            self._waiting.append(item)
        elif item == ")":
            self._unstack(0)
            if not self._waiting:
                raise self._out_of_place(item)
            self._waiting.pop()
        elif item.isdigit():
            self._order.append(Fraction(item))
            self._operand_next = False
        else:
            self._unstack(_PRECEDENCE[item])
            self._waiting.append(item)
            self._operand_next = True

    def finish(self) -> list[Fraction | str]:
        self._unstack(0)
        if self._waiting or self._operand_next:
            raise self._out_of_place("end of task")
        return self._order

    def _unstack(self, binds: int) -> None:
        while self._waiting and self._waiting[-1] != "(":
            if _PRECEDENCE[self._waiting[-1]] < binds:
                return
            self._order.append(self._waiting.pop())

    def _out_of_place(self, item: str) -> TaskSyntaxError:
        return TaskSyntaxError(f"{item} is out of place in {self._task!r}")


class ArithmeticAgent:
    """Answers tasks such as ``(17 + 5) * 3 - 8``; every span goes to ``tracer``."""

    def __init__(self, tracer: Tracer, settings: AgentSettings) -> None:
        self._tracer = tracer
        self._settings = settings

    def run(self, task: str, expected: str) -> float:
        """Work out ``task``, compare with the ``expected`` answer and return the reward.

        A right answer earns 1 plus 1 divided by the number of tool calls; a wrong one 0.

        Raises:
            AgentError: the task has no answer, or not within the budget; the spans say where.
        """
        settings = self._settings
        attributes: dict[str, str | int] = {
            "task": task,
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "arithmetic",
            "gen_ai.request.model": settings.model,
            "agl.resources_id": settings.resources_id,
            "agl.attempt": settings.attempt,
        }
        with self._tracer.start_as_current_span(ROOT_SPAN, attributes=attributes) as root:
            order = self._plan(task)
            answer, calls = self._work(order)
            root.set_attribute("answer", str(answer))
            reward = self._reward(str(answer) == expected, calls)
            root.set_status(Status(StatusCode.OK))
        return reward

    def _plan(self, task: str) -> list[Fraction | str]:
        prompt = self._settings.prompt.format(task=task)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._settings.model,
            "gen_ai.prompt.0.content": prompt,
        }
        with self._tracer.start_as_current_span(PLAN_SPAN, attributes=attributes) as span:
            order = plan(task)
            completion = " ".join(str(item) for item in order)
            span.set_attribute("gen_ai.completion.0.content", completion)
            span.set_attribute("gen_ai.usage.input_tokens", len(_WORD.findall(prompt)))
            span.set_attribute("gen_ai.usage.output_tokens", len(order))
        return order

    def _work(self, order: Sequence[Fraction | str]) -> tuple[Fraction, int]:
        values: list[Fraction] = []
        calls = 0
        for item in order:
            if isinstance(item, Fraction):
                values.append(item)
                continue
            right, left = values.pop(), values.pop()
            calls += 1
            values.append(self._step(calls, item, left, right))
        return values[0], calls

    def _step(self, number: int, operator: str, left: Fraction, right: Fraction) -> Fraction:
        name = f"{STEP_SPAN} {number}"
        expression = f"{left} {operator} {right}"
        attributes: dict[str, str | int] = {"step.number": number, "step.expression": expression}
        with self._tracer.start_as_current_span(name, attributes=attributes):
            budget = self._settings.max_tool_calls
            if number > budget:
                raise ToolBudgetExceededError(f"step {number} exceeds {budget} tool calls")
            return self._call(operator, left, right)

    def _call(self, operator: str, left: Fraction, right: Fraction) -> Fraction:
        name, tool = TOOLS[operator]
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": json.dumps({"left": str(left), "right": str(right)}),
        }
        with self._tracer.start_as_current_span(
            f"{TOOL_SPAN} {name}", attributes=attributes
        ) as span:
            result = tool(left, right)
            span.set_attribute("gen_ai.tool.call.result", str(result))
        return result

    def _reward(self, right: bool, calls: int) -> float:
        reward = 1 + 1 / max(calls, 1) if right else 0.0
        emit_reward(self._tracer, reward)
        return reward


def emit_reward(tracer: Tracer, reward: float) -> None:
    """Write the span that carries a reward."""
    attributes: dict[str, str | float] = {REWARD_NAME: "primary", REWARD_VALUE: reward}
    tracer.start_span(REWARD_SPAN, attributes=attributes).end()


def final_reward(spans: Sequence[Span]) -> float | None:
    """Return the last reward among the spans of an attempt; ``None`` when there is none."""
    rewards = [span.attributes.get(REWARD_VALUE) for span in spans if span.name == REWARD_SPAN]
    last = rewards[-1] if rewards else None
    return last if isinstance(last, float | int) else None


def _items(task: str) -> list[str]:
    text = task.rstrip()
    items: list[str] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise TaskSyntaxError(f"unexpected {text[position:].lstrip()[0]!r} in {task!r}")
        items.append(match.group(1))
        position = match.end()
    return items
