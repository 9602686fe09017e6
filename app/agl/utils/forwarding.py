"""Functions around a method, compiled with the parameters that the method itself has.

A wrapper that takes ``*args, **kwargs`` packs its arguments into a tuple and a dictionary and
unpacks them again. That costs more than what most wrappers are for, so those that run several times
in every request are made here.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

_BY_KEYWORD = Parameter.KEYWORD_ONLY
_PREFIXES = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def forwarding(method: Callable[..., Any], template: str, **names: Any) -> Callable[..., Any]:
    """The function ``run`` that a template defines, with the parameters of a method.

    Args:
        method: Whose parameters it has, with their defaults; its own parameter ``self`` as well,
            unless it is bound.
        template: Source of ``run``, where ``{parameters}`` stands for the parameters and
            ``{arguments}`` for the same in a call. Its own names begin with an underscore, so that
            none is that of a parameter.
        names: What the template uses.
    """
    parameters = signature(method).parameters.values()
    source = template.format(
        parameters=", ".join(_declared(list(parameters))),
        arguments=", ".join(map(_passed, parameters)),
    )
    exec(source, names)  # noqa: S102 - the source is ours, and the names of a method's parameters
    run = names["run"]
    given = [parameter for parameter in parameters if parameter.default is not Parameter.empty]
    run.__defaults__ = tuple(one.default for one in given if one.kind is not _BY_KEYWORD)
    run.__kwdefaults__ = {one.name: one.default for one in given if one.kind is _BY_KEYWORD}
    return run


def _declared(parameters: list[Parameter]) -> list[str]:
    declared: list[str] = []
    starred = False
    for parameter in parameters:
        if parameter.kind is _BY_KEYWORD and not starred:
            declared.append("*")
        starred = starred or parameter.kind in (_BY_KEYWORD, Parameter.VAR_POSITIONAL)
        default = "" if parameter.default is Parameter.empty else "=None"
        declared.append(_PREFIXES.get(parameter.kind, "") + parameter.name + default)
    return declared


def _passed(parameter: Parameter) -> str:
    if parameter.kind is _BY_KEYWORD:
        return f"{parameter.name}={parameter.name}"
    return _PREFIXES.get(parameter.kind, "") + parameter.name
