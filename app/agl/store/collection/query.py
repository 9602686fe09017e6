"""Filters, sorting and paging: their one definition, whatever the backend.

* A filter without conditions matches everything, for ``and`` and ``or`` alike.
* ``exact`` is equality, ``within`` membership, ``contains`` a case-sensitive substring (or an
  element of a list). A ``None`` operand is no condition. A missing field counts as ``None``.
* Nulls sort last in both directions; equal keys and unsorted items keep insertion order.
* ``limit`` -1 is no limit, 0 only the total.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, cast

from agl.errors import InvalidRequestError
from agl.types import FilterOptions, PaginatedResult, SortOptions
from agl.utils.ownership import assemble

T = TypeVar("T")

FilterMap = Mapping[str, Mapping[str, Any]]
"""Field name to its operators and operands."""

Aggregate = Literal["and", "or"]
Order = Literal["asc", "desc"]
Predicate = Callable[[Any], bool]

OPERATORS = ("exact", "within", "contains")


class Condition(NamedTuple):
    """One operator on one field."""

    field: str
    operator: str
    operand: Any


class Query(NamedTuple):
    """A parsed filter: all of ``must`` and, if there are any, all or one of ``others``."""

    must: tuple[Condition, ...] = ()
    others: tuple[Condition, ...] = ()
    aggregate: Aggregate = "and"

    @property
    def required(self) -> tuple[Condition, ...]:
        """Conditions that every match fulfils."""
        if self.aggregate == "and" or len(self.others) == 1:
            return self.must + self.others
        return self.must

    @property
    def optional(self) -> tuple[Condition, ...]:
        """Conditions of which a match fulfils at least one (if there are any)."""
        if self.aggregate == "or" and len(self.others) > 1:
            return self.others
        return ()


EVERYTHING = Query()


def merge_must_filters(must: Any) -> FilterMap:
    """Join the ``_must`` of a filter, a mapping or a list of them, into one mapping.

    Raises:
        TypeError: it is neither.
        InvalidRequestError: one operator occurs twice for a field.
    """
    if must is None:
        return {}
    if isinstance(must, Mapping):
        return cast("FilterMap", must)
    if not isinstance(must, list | tuple):
        raise TypeError(f"_must needs a mapping or a list of mappings, not {type(must).__name__}")
    merged: dict[str, dict[str, Any]] = {}
    for part in cast("Sequence[Any]", must):
        if not isinstance(part, Mapping):
            raise TypeError(f"_must needs mappings, not {type(part).__name__}")
        for field, operators in cast("FilterMap", part).items():
            known = merged.setdefault(field, {})
            for operator, operand in operators.items():
                if operator in known:
                    raise InvalidRequestError(
                        f"Duplicate operator {operator!r} for field {field!r} in _must"
                    )
                known[operator] = operand
    return merged


def normalize_filter_options(
    filter_options: FilterOptions | None,
) -> tuple[FilterMap, FilterMap, Aggregate]:
    """Split a filter into its plain conditions, its ``_must`` conditions and the aggregate.

    Raises:
        InvalidRequestError: an unknown aggregate, or a duplicate operator in ``_must``.
        TypeError: ``_must`` has the wrong type.
    """
    if not filter_options:
        return {}, {}, "and"
    aggregate = filter_options.get("_aggregate", "and")
    if aggregate not in ("and", "or"):
        raise InvalidRequestError(f"Unsupported filter aggregate {aggregate!r}; use 'and' or 'or'")
    plain = {
        field: operators
        for field, operators in filter_options.items()
        if field not in ("_aggregate", "_must")
    }
    return plain, merge_must_filters(filter_options.get("_must")), aggregate


def parse_filter(filter_options: FilterOptions | None) -> Query:
    """Check a filter and bring it into a form that is easy to work with.

    Raises:
        InvalidRequestError: an unknown operator or aggregate, or an operand that does not fit.
        TypeError: ``_must`` has the wrong type.
    """
    if not filter_options:
        return EVERYTHING
    plain, must, aggregate = normalize_filter_options(filter_options)
    return Query(_conditions(must), _conditions(plain), aggregate)


def _conditions(fields: FilterMap) -> tuple[Condition, ...]:
    return tuple(
        Condition(field, operator, _operand(field, operator, operand))
        for field, operators in fields.items()
        for operator, operand in operators.items()
        if operand is not None
    )


def _operand(field: str, operator: str, operand: Any) -> Any:
    if operator not in OPERATORS:
        raise InvalidRequestError(f"Unsupported filter operator {operator!r} for field {field!r}")
    if operator != "within":
        return operand
    if isinstance(operand, str | bytes) or not isinstance(operand, Iterable):
        raise InvalidRequestError(f"Filter operator 'within' for field {field!r} needs a list")
    values = list(cast("Iterable[Any]", operand))
    try:
        return dict.fromkeys(values)  # a set that keeps the order asked
    except TypeError:
        return values


def predicate(required: Iterable[Condition], optional: Iterable[Condition]) -> Predicate | None:
    """A function that tells whether an item matches; ``None`` if every item does."""
    every = [_test(condition) for condition in required]
    some = [_test(condition) for condition in optional]
    if not some:
        if len(every) <= 1:
            return every[0] if every else None
        return lambda item: all(test(item) for test in every)
    return lambda item: all(test(item) for test in every) and any(test(item) for test in some)


def _test(condition: Condition) -> Predicate:
    field, operator, operand = condition
    if operator == "exact":
        return lambda item: getattr(item, field, None) == operand
    if operator == "within":
        return lambda item: _is_within(getattr(item, field, None), operand)
    return lambda item: _contains(getattr(item, field, None), operand)


def _is_within(value: Any, operand: Any) -> bool:
    try:
        return value in operand
    except TypeError:
        return False


def _contains(value: Any, operand: Any) -> bool:
    if value is None:
        return False
    try:
        return operand in value
    except TypeError:
        return False


def resolve_sort_options(
    sort: SortOptions | None, item_type: type[Any]
) -> tuple[str, Order] | None:
    """Check a sort specification against the fields of ``item_type``; ``None`` if there is none.

    Raises:
        InvalidRequestError: no or an unknown field name, or an unknown order.
    """
    if not sort:
        return None
    name = sort.get("name")
    if not name:
        raise InvalidRequestError("Sort options need the name of a field")
    order: Any = sort.get("order", "asc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"Unsupported sort order {order!r}; use 'asc' or 'desc'")
    fields: Mapping[str, Any] = getattr(item_type, "model_fields", {})
    if name not in fields:
        raise InvalidRequestError(
            f"Failed to sort items by {name!r}: field does not exist on {item_type.__name__}"
        )
    return name, order


def sort_items(items: Iterable[T], name: str, order: Order, head: int | None = None) -> list[T]:
    """Items by a field, nulls last, equal keys in the order given; only the first ``head``.

    Raises:
        InvalidRequestError: the values cannot be compared.
    """
    present: list[T] = []
    nulls: list[T] = []
    for item in items:
        (nulls if getattr(item, name) is None else present).append(item)

    def key(item: T) -> Any:
        return getattr(item, name)

    try:
        if head is not None and head * 8 < len(present):
            pick = heapq.nsmallest if order == "asc" else heapq.nlargest
            return pick(head, present, key=key)
        present.sort(key=key, reverse=order == "desc")
    except TypeError as error:
        raise InvalidRequestError(f"Failed to sort items by {name!r}: {error}") from None
    return present + nulls


def check_window(limit: int, offset: int) -> None:
    """Refuse a page that makes no sense.

    Raises:
        InvalidRequestError: ``limit`` below -1 or ``offset`` below 0.
    """
    if limit < -1:
        raise InvalidRequestError(f"limit must be -1 (no limit) or more, not {limit}")
    if offset < 0:
        raise InvalidRequestError(f"offset must be 0 or more, not {offset}")


def window(items: Iterable[T], limit: int, offset: int) -> list[T]:
    """The items of one page."""
    end = None if limit == -1 else min(offset + limit, sys.maxsize)
    return list(islice(items, min(offset, sys.maxsize), end))


def page(items: Sequence[T], limit: int, offset: int, total: int) -> PaginatedResult[T]:
    """A page, without validating its items again."""
    values = {"items": items, "limit": limit, "offset": offset, "total": total}
    return cast("PaginatedResult[T]", assemble(PaginatedResult, values))
