"""Filters, sorting and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar, overload

from pydantic import BaseModel

T_co = TypeVar("T_co", covariant=True)


class FilterField(TypedDict, total=False):
    """Conditions on one field; a ``None`` operand is no condition."""

    exact: Any
    within: Sequence[Any]
    contains: str


FilterOptions = Mapping[str, Any]
"""Field name to :class:`FilterField`, plus ``_aggregate`` ("and" or "or": how all conditions
combine) and ``_must`` (a mapping, or a list of mappings, always ANDed)."""


class SortOptions(TypedDict):
    """One sort key."""

    name: str
    order: Literal["asc", "desc"]


class PaginatedResult(BaseModel, Generic[T_co]):
    """One page of a query; behaves as a sequence of its items."""

    items: Sequence[T_co]
    limit: int
    """As asked; -1 for no limit."""

    offset: int
    total: int
    """Matches before paging."""

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self.items[index]

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override] # a sequence of items, not of fields
        return iter(self.items)

    def __repr__(self) -> str:
        end = "" if self.limit == -1 else str(self.offset + self.limit)
        if not self.items:
            shown = "empty"
        elif len(self.items) == 1:
            shown = repr(self.items[0])
        else:
            shown = f"[{self.items[0]!r}, ...]"
        return f"<PaginatedResult ({self.offset}:{end} of {self.total}) {shown}>"
