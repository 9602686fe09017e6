"""What every backend can keep, and what is refused before it gets there.

Numbers of 64 bits, keys without NUL, text that UTF-8 can hold, times that are numbers, ids of a
length that an index can take. The models of this package use these types, so the same value is
refused wherever it comes in: over HTTP (422, the field named) and from a caller in the process
(``pydantic.ValidationError``).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
MAX_SEQUENCE_ID = 2**62
"""Room for time in nanoseconds, and above it for as many numbers as anybody can draw."""

MAX_ID_CHARACTERS = 1024

_PLAIN = frozenset((float, bool, type(None)))
_LEAVES = _PLAIN | {int, str}


def storable(value: Any) -> Any:
    """The value itself, if it and all that it holds can be kept.

    Raises:
        ValueError: where in the value the fault is, and what it is.
    """
    pending: list[Any] = [value]
    while pending:
        kinds = set(map(type, pending))  # most values hold millions of one kind, or a handful
        if int in kinds:
            numbers = [one for one in pending if type(one) is int]
            if min(numbers) < MIN_INTEGER or max(numbers) > MAX_INTEGER:
                raise ValueError(_where(value))
        if str in kinds and any(map(_text_fault, filter(_is_text, pending))):
            raise ValueError(_where(value))
        if kinds <= _LEAVES:
            return value
        pending = _held(value, pending)
    return value


def _held(value: Any, several: list[Any]) -> list[Any]:
    """What the containers among ``several`` hold, one level down."""
    below: list[Any] = []
    for one in several:
        if isinstance(one, dict):
            held = cast("dict[Any, Any]", one)
            if any(_text_fault(key, is_key=True) for key in filter(_is_text, held)):
                raise ValueError(_where(value))
            below.extend(held.values())
        elif isinstance(one, list | tuple):
            below.extend(cast("list[Any]", one))
        elif isinstance(one, int | str) and _fault(one):  # of a class of its own
            raise ValueError(_where(value))
    return below


def _is_text(value: Any) -> bool:
    return type(value) is str


def storable_attributes(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same for the flat values of span attributes."""
    for key, one in value.items():
        plain = one.isascii() if isinstance(one, str) else type(one) in _PLAIN
        if not plain or "\0" in key or not key.isascii():
            return storable(value)
    return value


def _fault(value: Any) -> str | None:
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        return "is an integer of more than 64 bits; send it as a string"
    return _text_fault(value) if isinstance(value, str) else None


def _text_fault(text: str, *, is_key: bool = False) -> str | None:
    if is_key and "\0" in text:
        return "has a NUL character in a key"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a surrogate pair, which is no text"
    return None


def _where(value: Any) -> str:
    """The place of the first fault, in words."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        place, one = pending.pop()
        if isinstance(one, dict):
            for key, inner in cast("dict[Any, Any]", one).items():
                if isinstance(key, str) and (fault := _text_fault(key, is_key=True)):
                    return f"the value{place} {fault}"
                pending.append((f"{place}[{key!r:.40}]", inner))
        elif isinstance(one, list | tuple):
            items = enumerate(cast("list[Any]", one))
            pending.extend((f"{place}[{number}]", inner) for number, inner in items)
        elif fault := _fault(one):
            return f"the value{place} {fault}"
    raise AssertionError("no fault found")


def _is_number(value: float) -> float:
    if isnan(value):
        raise ValueError("it must be a number, not NaN; null means no limit")
    return value


Storable = Annotated[Any, AfterValidator(storable)]
"""Any value, as deep as it likes."""

StorableDict = Annotated[dict[str, Any], AfterValidator(storable)]

Identifier = Annotated[str, Field(max_length=MAX_ID_CHARACTERS)]
SequenceId = Annotated[int, Field(ge=-MAX_SEQUENCE_ID, le=MAX_SEQUENCE_ID)]
Count = Annotated[int, Field(ge=MIN_INTEGER, le=MAX_INTEGER)]
Timestamp = Annotated[float, Field(allow_inf_nan=False)]
"""Seconds since the epoch."""

TimeLimit = Annotated[float, AfterValidator(_is_number)]
"""Seconds; infinity is no limit."""
