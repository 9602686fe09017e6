"""Arithmetic tasks with known answers, drawn from a seed.

A task is built as a tree, so its answer and the order of its operations are known without parsing
the text the agent gets: the agent's own parser and planner are checked against them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["plain", "long", "undefined"]
"""``plain`` succeeds at once, ``long`` outgrows the first attempt's tool budget and succeeds at the
second, ``undefined`` divides by zero whenever it is tried."""

TOOL_BUDGET = 4
"""Tool calls an agent may make in a rollout's first attempt; attempt n may make n times as many."""

MAX_ATTEMPTS: Mapping[Kind, int] = {"plain": 1, "long": 2, "undefined": 2}

_LONG_EVERY = 10
_UNDEFINED_EVERY = 20
_OPERATE: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
_TOOL = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Task:
    """One question for the agent and what must come of it."""

    index: int
    kind: Kind
    text: str
    answer: str
    """The exact value, as an integer or ``p/q``; "" when it is undefined."""

    tools: tuple[str, ...]
    """The tools its operations call, in order; the last one fails when the task is undefined."""

    @property
    def max_attempts(self) -> int:
        """How often it may be tried."""
        return MAX_ATTEMPTS[self.kind]


@dataclass(frozen=True)
class _Node:
    operator: str
    left: _Node | int
    right: _Node | int


def draw_task(seed: int, index: int) -> Task:
    """Return task number ``index`` of the endless, reproducible list that ``seed`` names."""
    rng = random.Random(f"{seed}:{index}")  # noqa: S311 - reproducible test input, no secret
    kind = _kind_of(index)
    tree, answer = _draw_defined(rng, kind)
    if kind != "undefined":
        return Task(index, kind, _text(tree), str(answer), _tools(tree))
    same = rng.randint(1, 50)
    undefined = _Node("/", tree, _Node("-", same, same))
    return Task(index, kind, _text(undefined), "", _tools(undefined))


def _kind_of(index: int) -> Kind:
    if index % _UNDEFINED_EVERY == _UNDEFINED_EVERY // 2:
        return "undefined"
    if index % _LONG_EVERY == _LONG_EVERY // 2:
        return "long"
    return "plain"


def _draw_defined(rng: random.Random, kind: Kind) -> tuple[_Node, Fraction]:
    while True:
        tree = _draw_tree(rng, kind)
        value = _value(tree)
        if value is not None:
            return tree, value


def _draw_tree(rng: random.Random, kind: Kind) -> _Node:
    if kind == "long":
        return _random_tree(rng, rng.randint(TOOL_BUDGET + 1, 2 * TOOL_BUDGET))
    if kind == "plain":
        return _random_tree(rng, rng.randint(1, TOOL_BUDGET))
    return _random_tree(rng, rng.randint(1, TOOL_BUDGET - 2))


def _random_tree(rng: random.Random, operations: int) -> _Node:
    left = rng.randint(0, operations - 1)
    return _Node(rng.choice("+-*/"), _branch(rng, left), _branch(rng, operations - 1 - left))


def _branch(rng: random.Random, operations: int) -> _Node | int:
    return _random_tree(rng, operations) if operations else rng.randint(1, 50)


def _value(node: _Node | int) -> Fraction | None:
    if isinstance(node, int):
        return Fraction(node)
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None or (node.operator == "/" and not right):
        return None
    return _OPERATE[node.operator](left, right)


def _tools(node: _Node | int) -> tuple[str, ...]:
    if isinstance(node, int):
        return ()
    return (*_tools(node.left), *_tools(node.right), _TOOL[node.operator])


def _text(node: _Node | int) -> str:
    if isinstance(node, int):
        return str(node)
    binds = _BINDS[node.operator]
    return f"{_operand(node.left, binds)} {node.operator} {_operand(node.right, binds + 1)}"


def _operand(node: _Node | int, needed: int) -> str:
    text = _text(node)
    if isinstance(node, int) or _BINDS[node.operator] >= needed:
        return text
    return f"({text})"
