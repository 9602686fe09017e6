"""Variables in texts: ``$name``, ``${name:format}``, ``[[name]]``, as Grafana replaces them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

ALL = "$__all"
_REFERENCE = re.compile(
    r"\$\{(?P<braced>\w+)(?:\.(?P<path>[^:}]+))?(?::(?P<format>[^}]+))?\}"
    r"|\[\[(?P<old>\w+?)(?::(?P<old_format>\w+))?\]\]"
    r"|\$(?P<plain>\w+)"
)
_REGEX_SPECIAL = re.compile(r"[\\^$*+?.()|[\]{}]")


@dataclass(frozen=True)
class Value:
    """What a variable is set to.

    Attributes:
        values: The values chosen; what All stands for is written out.
        texts: How they are shown; as many as values.
        many: The variable can hold several values, so it is written as a regular expression.
        literal: ``allValue`` when All is chosen: written as it is, without escaping.
    """

    values: tuple[str, ...]
    texts: tuple[str, ...] = ()
    many: bool = False
    literal: str | None = None

    @property
    def shown(self) -> str:
        return " + ".join(self.texts or self.values)


@dataclass(frozen=True)
class Scope:
    """The variables that a text is read with."""

    values: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def with_values(self, values: Mapping[str, Value]) -> Scope:
        """These variables and some more, which win."""
        return Scope({**self.values, **values})

    def query(self, text: str) -> str:
        """``text`` as a query: several values become an alternative ``(a|b)``."""
        return self._replace(text, _in_query)

    def title(self, text: str) -> str:
        """``text`` for people: several values are joined with a plus."""
        return self._replace(text, lambda value: value.shown)

    def link(self, text: str) -> str:
        """``text`` as a URL. References to fields and values stay, for whoever has them."""
        return self._replace(text, lambda value: quote(",".join(_plain(value)), safe=""))

    def _replace(self, text: str, default: Callable[[Value], str]) -> str:
        def put(match: re.Match[str]) -> str:
            name = match["braced"] or match["old"] or match["plain"]
            value = self.values.get(name)
            if value is None or (match["path"] and match["path"] not in {"text", "value"}):
                return match[0]
            how = match["format"] or match["old_format"] or ""
            if match["path"] == "text":
                how = "text"
            return _FORMATS[how](name, value) if how in _FORMATS else default(value)

        return _REFERENCE.sub(put, text)


def references(text: str) -> set[str]:
    """Names of the variables that ``text`` refers to."""
    return {m["braced"] or m["old"] or m["plain"] for m in _REFERENCE.finditer(text)}


def fixed(text: str) -> Value:
    """A value that is written as it is, such as an interval."""
    return Value((text,), literal=text)


def _plain(value: Value) -> tuple[str, ...]:
    return value.values if value.literal is None else (value.literal,)


def _in_query(value: Value) -> str:
    if value.literal is not None:
        return value.literal
    if not value.many:
        return _quotable(value.values[0]) if value.values else ""
    return _alternative([_quotable(_regex(item)) for item in value.values])


def _regex(text: str) -> str:
    return _REGEX_SPECIAL.sub(lambda match: "\\" + match[0], text)


def _quotable(text: str) -> str:
    """As it is written between double quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _alternative(parts: list[str]) -> str:
    if not parts:
        return ".*"
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"


def _glob(value: Value) -> str:
    plain = _plain(value)
    return plain[0] if len(plain) == 1 else "{" + ",".join(plain) + "}"


def _quoted(value: Value, mark: str) -> str:
    return ",".join(mark + item.replace(mark, "\\" + mark) + mark for item in _plain(value))


def _parameters(name: str, value: Value) -> str:
    chosen = (ALL,) if value.texts == ("All",) else value.values
    return "&".join(f"var-{quote(name, safe='')}={quote(item, safe='')}" for item in chosen)


_FORMATS: dict[str, Callable[[str, Value], str]] = {
    "regex": lambda _, value: (
        value.literal
        if value.literal is not None
        else _alternative([_regex(item) for item in value.values])
    ),
    "pipe": lambda _, value: "|".join(_plain(value)),
    "csv": lambda _, value: ",".join(_plain(value)),
    "raw": lambda _, value: ",".join(_plain(value)),
    "json": lambda _, value: json.dumps(list(_plain(value))),
    "text": lambda _, value: value.shown,
    "glob": lambda _, value: _glob(value),
    "queryparam": _parameters,
    "percentencode": lambda _, value: quote(",".join(_plain(value)), safe=""),
    "singlequote": lambda _, value: _quoted(value, "'"),
    "doublequote": lambda _, value: _quoted(value, '"'),
}
