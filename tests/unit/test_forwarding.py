"""Functions compiled with the parameters of the method they are around."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agl.utils.forwarding import forwarding

TEMPLATE = """
def run({parameters}):
    _seen.append("called")
    return _method({arguments})
"""


class Example:
    unset = object()

    def positional(self, a: Any, b: Any = unset) -> Any:
        return a, b

    def keywords(self, a: Any, *, b: Any, c: Any = unset) -> Any:
        return a, b, c

    def anything(self, *keys: Any, **named: Any) -> Any:
        return keys, named

    def mixed(self, a: Any, *rest: Any, b: Any = unset) -> Any:
        return a, rest, b


def around(method: Any) -> tuple[Any, list[str]]:
    seen: list[str] = []
    return forwarding(method, TEMPLATE, _method=method, _seen=seen), seen


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("positional", (1,), {}),
        ("positional", (1, 2), {}),
        ("positional", (), {"b": 2, "a": 1}),
        ("keywords", (1,), {"b": 2}),
        ("keywords", (), {"a": 1, "b": 2, "c": 3}),
        ("anything", (1, 2), {"x": 3}),
        ("anything", (), {}),
        ("mixed", (1, 2, 3), {"b": 4}),
        ("mixed", (1,), {}),
    ],
)
def test_passes_on_what_the_method_takes(name: str, args: Any, kwargs: Any) -> None:
    method = getattr(Example(), name)
    run, seen = around(method)
    assert run(*args, **kwargs) == method(*args, **kwargs)
    assert seen == ["called"]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"d": 1})])
def test_refuses_what_the_method_refuses(args: Any, kwargs: Any) -> None:
    method = Example().positional
    run, seen = around(method)
    with pytest.raises(TypeError):
        method(*args, **kwargs)
    with pytest.raises(TypeError):
        run(*args, **kwargs)
    assert not seen


def test_parameters_of_an_unbound_method_include_self() -> None:
    run, _ = around(Example.keywords)
    assert run(Example(), 1, b=2) == (1, 2, Example.unset)
    given = {
        name: (one.kind, one.default) for name, one in inspect.signature(run).parameters.items()
    }
    method = inspect.signature(Example.keywords).parameters
    assert given == {name: (one.kind, one.default) for name, one in method.items()}


def test_two_of_them_share_nothing() -> None:
    example = Example()
    one, seen_by_one = around(example.positional)
    other, seen_by_other = around(example.anything)
    one(1)
    assert (seen_by_one, seen_by_other) == (["called"], [])
    other(1)
    assert seen_by_other == ["called"]
