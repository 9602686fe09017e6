"""A dashboard's variables: their options asked of Prometheus, and what is chosen of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl.ops.panels.interpolation import ALL, Scope, Value
from agl.ops.panels.prometheus import PrometheusError, PrometheusReader, Series
from agl.ops.panels.steps import rounded
from agl.ops.panels.timerange import TimeRange
from agl.ops.shapes import items, mapping, texts

MAX_OPTIONS = 2000
DATASOURCE = ("agl-prometheus", "Prometheus")
_CALL = re.compile(r"\s*(label_values|label_names|metrics|query_result)\((.*)\)\s*", re.DOTALL)
_REGEX = re.compile(r"/(.*)/([gims]*)", re.DOTALL)
_CUSTOM = re.compile(r"(?:\\.|[^,\\])+")


@dataclass(frozen=True)
class Option:
    """One thing to choose."""

    value: str
    text: str


@dataclass(frozen=True)
class Variable:
    """A variable with its options and its choice.

    Attributes:
        chosen: The values chosen, ``$__all`` for All.
        problem: Why its options could not be had; empty when they could.
    """

    name: str
    label: str
    kind: str
    hidden: bool
    multi: bool
    include_all: bool
    all_value: str
    options: tuple[Option, ...]
    chosen: tuple[str, ...]
    problem: str = ""

    @property
    def value(self) -> Value:
        """The choice, All written out."""
        many = self.multi or self.include_all
        if ALL in self.chosen:
            literal = self.all_value or None
            values = tuple(option.value for option in self.options)
            return Value(values, ("All",), many, literal)
        shown = {option.value: option.text for option in self.options}
        return Value(self.chosen, tuple(shown.get(item, item) for item in self.chosen), many)

    def each(self) -> list[Value]:
        """The choice one by one, for what is repeated."""
        value = self.value
        if ALL in self.chosen or not value.texts:
            return [Value((o.value,), (o.text,), value.many) for o in self.options]
        pairs = zip(value.values, value.texts, strict=True)
        return [Value((item,), (text,), value.many) for item, text in pairs]

    def as_json(self) -> dict[str, Any]:
        """What the page needs to show it."""
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "hidden": self.hidden,
            "multi": self.multi,
            "includeAll": self.include_all,
            "options": [{"value": o.value, "text": o.text} for o in self.options],
            "chosen": list(self.chosen),
            "problem": self.problem,
        }


async def resolve(
    definitions: Sequence[Any],
    chosen: Mapping[str, Sequence[str]],
    reader: PrometheusReader,
    span: TimeRange,
) -> list[Variable]:
    """Every variable in its order; one may use those before it.

    A variable that makes no sense, or whose query fails, is there with its problem and without
    options; nothing is raised for it.
    """
    found: list[Variable] = []
    for number, entry in enumerate(definitions, 1):
        definition = mapping(entry)
        name = definition.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
            label = f"variable {number}"
            problem = f"variable {number} has no name that could be used"
            found.append(Variable(label, label, "broken", False, False, False, "", (), (), problem))
            continue
        scope = Scope({variable.name: variable.value for variable in found})
        problem, options = "", ()
        try:
            options = await _options(definition, scope, reader, span)
        except (PrometheusError, ValueError, re.error) as exc:
            problem = str(exc)
        found.append(_variable(name, definition, options, chosen.get(name, ()), problem))
    return found


def _variable(
    name: str,
    definition: dict[str, Any],
    options: tuple[Option, ...],
    chosen: Sequence[str],
    problem: str,
) -> Variable:
    include_all = bool(definition.get("includeAll"))
    kind = str(definition.get("type"))
    return Variable(
        name=name,
        label=str(definition.get("label") or name),
        kind=kind,
        hidden=definition.get("hide") in {2, "hideVariable"} or kind in {"constant", "adhoc"},
        multi=bool(definition.get("multi")),
        include_all=include_all,
        all_value=str(definition.get("allValue") or ""),
        options=options[:MAX_OPTIONS],
        chosen=_choice(definition, options, chosen, include_all=include_all),
        problem=problem,
    )


def _choice(
    definition: dict[str, Any],
    options: tuple[Option, ...],
    chosen: Sequence[str],
    *,
    include_all: bool,
) -> tuple[str, ...]:
    """What the address says, else what the dashboard was saved with, else the first option."""
    known = {option.value for option in options}
    kind = definition.get("type")
    # Of a data source there is one here, whatever the address or the file names.
    if chosen and kind != "datasource":
        wanted = [item for item in chosen if item != "All" or "All" in known]
        if len(wanted) < len(chosen) or ALL in chosen:
            wanted = [ALL] if include_all else wanted
        return tuple(wanted) if definition.get("multi") else tuple(wanted[:1])
    saved = mapping(definition.get("current")).get("value")
    values = texts(saved) if isinstance(saved, list) else [saved] if saved is not None else []
    values = [str(item) for item in values]
    if ALL in values and include_all:
        return (ALL,)
    if kind in {"textbox", "constant"}:
        return tuple(values[:1]) or tuple(option.value for option in options[:1])
    kept = tuple(item for item in values if item in known)
    if kept:
        return kept
    if include_all:
        return (ALL,)
    # Without options (Prometheus is down) the saved choice is better than none.
    return (options[0].value,) if options else tuple(item for item in values if item != ALL)


async def _options(
    definition: dict[str, Any], scope: Scope, reader: PrometheusReader, span: TimeRange
) -> tuple[Option, ...]:
    kind = definition.get("type")
    text = _query_text(definition)
    if kind == "query":
        found = await _asked(scope.query(text), reader, span)
        return _sorted(_filtered(found, str(definition.get("regex") or "")), definition.get("sort"))
    if kind == "custom":
        return _custom(scope.title(text))
    if kind == "interval":
        return _intervals(definition, text, span)
    if kind == "datasource":
        return (Option(*DATASOURCE),)
    if kind in {"textbox", "constant"}:
        return (Option(text, text),)
    if kind == "adhoc":
        return ()
    raise ValueError(f"a variable of the type {kind!r} is not known here")


def _query_text(definition: dict[str, Any]) -> str:
    query = definition.get("query")
    found = mapping(query).get("query") if isinstance(query, dict) else query
    found = found or definition.get("definition") or ""
    if not isinstance(found, str):
        raise ValueError(f"its query is not a text but {type(found).__name__}")
    return found


async def _asked(query: str, reader: PrometheusReader, span: TimeRange) -> list[Option]:
    call = _CALL.fullmatch(query)
    if call is None:
        if not query.strip():
            raise ValueError("its query is empty")
        found = await reader.series(query, span)
        return [Option(text, text) for text in dict.fromkeys(map(_series_text, found))]
    function, inside = call[1], call[2].strip()
    if function == "query_result":
        answer = await reader.instant(inside, span.end)
        return [Option(text, text) for text in map(_result_text, answer.series)]
    if function == "label_names":
        names = await reader.label_names(span, inside)
    elif function == "metrics":
        pattern = re.compile(_js_regex(inside))
        names = [n for n in await reader.label_values("__name__", span) if pattern.search(n)]
    else:
        matcher, _, label = inside.rpartition(",")
        names = await reader.label_values(label.strip(), span, matcher.strip())
    return [Option(name, name) for name in names if name]


def _series_text(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{k}="{v}"' for k, v in labels.items() if k != "__name__")
    return f"{labels.get('__name__', '')}{{{inner}}}"


def _result_text(series: Series) -> str:
    return f"{_series_text(series.labels)} {series.values[0]}"


def _filtered(options: list[Option], regex: str) -> list[Option]:
    if not regex:
        return options
    slashed = _REGEX.fullmatch(regex)
    flags = re.IGNORECASE if slashed and "i" in slashed[2] else 0
    pattern = re.compile(_js_regex(slashed[1] if slashed else regex), flags)
    found: list[Option] = []
    for option in options:
        match = pattern.search(option.text)
        if match is None:
            continue
        named = match.groupdict()
        value = (
            named.get("value") or named.get("text") or (match[1] if match.groups() else match[0])
        )
        value = option.text if value is None else value
        found.append(Option(value, named.get("text") or value))
    return list(dict.fromkeys(found))


def _js_regex(pattern: str) -> str:
    """A regular expression of JavaScript in Python's writing, where that differs."""
    return re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", pattern)


def _sorted(options: list[Option], order: Any) -> tuple[Option, ...]:
    """Sorted as Grafana numbers it: odd numbers ascend, the even one after each descends."""
    number = order if isinstance(order, int) else 0
    if number not in range(1, 9):
        return tuple(options)
    key = _SORT_KEYS[(number - 1) // 2]
    return tuple(sorted(options, key=lambda option: key(option.text), reverse=number % 2 == 0))


def _leading_number(text: str) -> float:
    match = re.search(r"-?\d+(\.\d+)?", text)
    return float(match[0]) if match else float("-inf")


def _natural(text: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p.casefold()) for p in parts]


_SORT_KEYS: tuple[Callable[[str], Any], ...] = (
    str,
    lambda text: (_leading_number(text), text),
    str.casefold,
    _natural,
)


def _custom(text: str) -> tuple[Option, ...]:
    found: list[Option] = []
    for raw in _CUSTOM.findall(text):
        part = raw.replace("\\,", ",").strip()
        shown, colon, value = part.partition(" : ")
        found.append(Option(value.strip(), shown.strip()) if colon else Option(part, part))
    return tuple(found)


def _intervals(definition: dict[str, Any], text: str, span: TimeRange) -> tuple[Option, ...]:
    found = [Option(part.strip(), part.strip()) for part in text.split(",") if part.strip()]
    if definition.get("auto"):
        count = definition.get("auto_count")
        seconds = rounded(span.seconds / (count if isinstance(count, int) and count > 0 else 30))
        found.insert(0, Option(f"{max(1, round(seconds))}s", "auto"))
    if not found:
        known = [str(item.get("value")) for item in items(definition.get("options"))]
        found = [Option(value, value) for value in known]
    return tuple(found)
