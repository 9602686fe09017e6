"""Filters and sorting for the server, with the meaning that ``collection.query`` gives them.

Fields that hold text or a number are asked for on the server. What a condition on any other field
means (a list, an object, anything) is decided here, by the one definition, on the documents that
the other conditions leave.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

from agl.store.collection.query import Condition, Order, Predicate, Query, predicate

Filter: TypeAlias = dict[str, Any]
SortKeys: TypeAlias = list[tuple[str, int]]

INSERTION_ORDER: SortKeys = [("_id", 1)]
INT64 = range(-(2**63), 2**63)
"""Integers that BSON holds."""


Holds = Literal["text", "number", "other"]


class FieldKind(NamedTuple):
    """What a field holds, and whether it may be null."""

    holds: Holds
    nullable: bool


class Translation(NamedTuple):
    """What to ask the server for, and what is left to decide here."""

    filter: Filter | None
    """``None``: nothing can match."""

    rest: Predicate | None


@cache
def field_kind(item_type: type[BaseModel], name: str) -> FieldKind:
    """What the field of a model holds; an undeclared one may hold anything."""
    field = item_type.model_fields.get(name)
    if field is None:
        return FieldKind("other", True)
    members = _members(field.annotation)
    kinds: set[Holds] = {_kind(member) for member in members if member is not type(None)}
    holds = kinds.pop() if len(kinds) == 1 else "other"
    return FieldKind(holds, type(None) in members)


def _members(annotation: Any) -> Sequence[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _kind(annotation: Any) -> Holds:
    if get_origin(annotation) is Literal:
        return "text" if all(type(value) is str for value in get_args(annotation)) else "other"
    if annotation is str:
        return "text"
    return "number" if annotation in (int, float) else "other"


def translate(query: Query, item_type: type[BaseModel], partition_id: str) -> Translation:
    """The filter for the documents of a partition that match."""
    parts: list[Filter] = []
    here: list[Condition] = []
    for condition in query.required:
        if field_kind(item_type, condition.field).holds == "other":
            here.append(condition)
            continue
        part = _condition(condition, item_type)
        if part is None:
            return Translation(None, None)
        parts.append(part)
    optional = query.optional
    if all(field_kind(item_type, c.field).holds != "other" for c in optional):
        if optional:
            some = [part for c in optional if (part := _condition(c, item_type)) is not None]
            if not some:
                return Translation(None, None)
            parts.append({"$or": some})
        optional = ()
    return Translation(_joined([{"partition_id": partition_id}, *parts]), predicate(here, optional))


def _joined(parts: Sequence[Filter]) -> Filter:
    joined: Filter = {}
    clashing: list[Filter] = []
    for part in parts:
        if joined.keys().isdisjoint(part):
            joined.update(part)
        else:
            clashing.append(part)
    if clashing:
        joined["$and"] = clashing
    return joined


def _condition(condition: Condition, item_type: type[BaseModel]) -> Filter | None:
    """A condition on a field with text or a number; ``None`` if no value fulfils it."""
    field, operator, operand = condition
    holds = field_kind(item_type, field).holds
    if operator == "exact":
        values = list(_comparable([operand], holds))
        return {field: values[0]} if values else None
    if operator == "within":
        values = list(_comparable(operand, holds))
        return {field: {"$in": values}} if values else None
    return _containing(field, operand) if holds == "text" else None


def _comparable(operands: Iterable[Any], holds: Holds) -> Iterable[Any]:
    """The operands that a stored value can equal."""
    for operand in operands:
        if operand is None:
            yield None
        elif holds == "text":
            if isinstance(operand, str) and _is_text(operand):
                yield str.__str__(operand)
        elif isinstance(operand, int | float) and operand == operand:  # NaN equals nothing
            yield from _number(operand)


def _number(operand: int | float) -> Iterable[int | float]:
    """A truth value equals the number 0 or 1, as in Python."""
    if isinstance(operand, float):
        yield float(operand)
    elif operand in INT64:
        yield int(operand)
    else:
        try:
            near = float(operand)
        except OverflowError:
            return
        if near == operand:
            yield near


def _containing(field: str, operand: Any) -> Filter | None:
    if not isinstance(operand, str) or not _is_text(operand):
        return None
    if not operand:
        return {field: {"$ne": None}}
    return {field: {"$regex": re.escape(operand).replace("\0", r"\x00")}}


def _is_text(operand: str) -> bool:
    """Whether the server can hold the text: it cannot hold lone surrogates."""
    try:
        operand.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_condition(filter: Filter, field: str, condition: Any) -> Filter:
    """The filter and one more condition, which may be on a field that it names already."""
    if field not in filter:
        return {**filter, field: condition}
    return {**filter, "$and": [*filter.get("$and", ()), {field: condition}]}


def sort_keys(name: str, order: Order) -> SortKeys:
    """Equal values keep insertion order in both directions."""
    return [(name, 1 if order == "asc" else -1), ("_id", 1)]


def number_of_keys(query: Query, primary_keys: Sequence[str]) -> int | None:
    """How many primary keys the conditions name at most; ``None`` if they name no whole keys."""
    product = 1
    for key in primary_keys:
        count = _number_of_values(query.required, key)
        if count is None:
            return None
        product *= count
    return product


def _number_of_values(conditions: Iterable[Condition], field: str) -> int | None:
    counts = [
        1 if condition.operator == "exact" else len(condition.operand)
        for condition in conditions
        if condition.field == field and condition.operator != "contains"
    ]
    return min(counts, default=None)
