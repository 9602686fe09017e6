"""Spans in the memory of the process, kept as JSON.

A span as Python objects takes four times the memory of its JSON and a dozen objects that the
garbage collector has to look at; as bytes it takes its length and none. What is kept can be sent
on as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError, from_json

from agl.errors import DuplicatedPrimaryKeyError, NotFoundError
from agl.store.collection.base import Collection
from agl.store.collection.instrumented import COLLECTION_OPERATIONS, CollectionsRecorder
from agl.store.collection.query import (
    Condition,
    Order,
    Query,
    check_window,
    page,
    parse_filter,
    predicate,
    resolve_sort_options,
    sort_items,
    window,
)
from agl.types import FilterOptions, PaginatedResult, SortOptions, Span
from agl.utils.encoded import EncodedItems, remember_json
from agl.utils.locks import Guarded
from agl.utils.metrics import MetricsBackend
from agl.utils.ownership import copy_model, replace, sharing

T = TypeVar("T")

PRIMARY_KEYS = ("rollout_id", "attempt_id", "span_id")

_PREFIX = struct.Struct("<qq")
_STATUS = b',"status":'
_HEAD = frozenset((*PRIMARY_KEYS, "trace_id", "parent_id", "name"))
"""Fields that come before the status in the JSON of a span; reading them needs no more than that
first part."""

_N, _I = b"NI"

_ROW_OVERHEAD = 380
"""Bytes a span takes beside its JSON: object headers, its id, its share of the dictionaries
(measured on CPython 3.11 with four spans an attempt)."""

_OBJECT_FACTOR = 4
"""How much more a span takes that could not be kept as JSON."""

Row = bytes | tuple[int, Span]
"""A stored span: ordinal and sequence number packed in front of its JSON; or its ordinal and the
span itself, if it holds what JSON cannot give back."""

Spans = dict[str, Row]
"""Rows of an attempt by span id."""


def decode_span(data: bytes) -> Span:
    """The span of JSON that :func:`encode_span` made."""
    return Span.__pydantic_validator__.validate_json(data)


def encode_span(span: Span) -> bytes | None:
    """The JSON of a span; ``None`` if the same span could not be read back from it.

    Trusts a caller who shares objects, since his spans were parsed from bytes, but for NaN and
    infinity, which JSON names with strings.
    """
    try:
        data = Span.__pydantic_serializer__.to_json(span, warnings=False)
        if sharing() and type(span) is Span and not _may_hold_nan(data):
            remember_json(span, data)
            return data
        return data if decode_span(data) == span else None
    except (PydanticSerializationError, ValueError):
        return None


def _may_hold_nan(data: bytes) -> bool:
    """Whether NaN or infinity may be in it. One byte, as a number, is found much faster."""
    return (_N in data and b'NaN"' in data) or (_I in data and b'Infinity"' in data)


def _row(span: Span, ordinal: int) -> Row:
    data = encode_span(span)
    if data is not None:
        try:
            return _PREFIX.pack(ordinal, span.sequence_id) + data
        except struct.error:  # a number beyond 64 bits
            pass
    return ordinal, span if sharing() else copy_model(span)


def _ordinal(row: Row) -> int:
    return _PREFIX.unpack_from(row)[0] if isinstance(row, bytes) else row[0]


def _number(row: Any) -> int:
    return _PREFIX.unpack_from(row)[1]


def _content(row: Row) -> bytes | Span:
    return row[_PREFIX.size :] if isinstance(row, bytes) else row[1]


def _span(row: Row) -> Span:
    return decode_span(row[_PREFIX.size :]) if isinstance(row, bytes) else copy_model(row[1])


def _encoded(rows: Sequence[Row]) -> EncodedItems[Span]:
    return EncodedItems([_content(row) for row in rows], decode_span, copy_model)


class _View:
    """A row that answers for the fields of its span and decodes no more than it has to."""

    __slots__ = ("_head", "_whole", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self._head: dict[str, Any] | None = None
        self._whole: Span | None = None if isinstance(row, bytes) else row[1]

    def __getattr__(self, name: str) -> Any:
        row = self.row
        if self._whole is None and isinstance(row, bytes):
            if name == "sequence_id":
                return _number(row)
            if self._head is None:
                self._head = _head_of(row)
            if name in self._head:
                return self._head[name]
            self._whole = _span(row)
        return getattr(self._whole, name)


def _head_of(row: bytes) -> dict[str, Any]:
    """The first fields of a span. A quote inside a string is escaped, so the mark is no text."""
    try:
        head = from_json(row[_PREFIX.size : row.index(_STATUS, _PREFIX.size)] + b"}")
    except ValueError:
        return {}
    return head if head.keys() >= _HEAD else {}


def _sorted(rows: list[Row], name: str, order: Order, head: int | None) -> list[Row]:
    if len(rows) < 2:
        return rows
    if name == "sequence_id" and all(isinstance(row, bytes) for row in rows):
        return sorted(rows, key=_number, reverse=order == "desc")
    return [view.row for view in sort_items(map(_View, rows), name, order, head)]


class SpanCollection(Guarded, Collection[Span]):
    """Spans by rollout, attempt and span id. It keeps no object it is given and returns new ones.

    Args:
        id: Name under which calls are tracked.
        tracker: Where calls are counted and timed.
    """

    def __init__(self, id: str = "spans", tracker: MetricsBackend | None = None) -> None:
        super().__init__()
        self._rollouts: dict[str, dict[str, Spans]] = {}
        self._count = 0
        self._next_ordinal = 0
        if tracker is not None:
            operations = {k: v for k, v in COLLECTION_OPERATIONS.items() if k != "find_newest"}
            CollectionsRecorder(tracker).instrument(self, id, operations)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} ({self._count})>"

    def primary_keys(self) -> Sequence[str]:
        return PRIMARY_KEYS

    def item_type(self) -> type[Span]:
        return Span

    async def size(self) -> int:
        return self._count

    def bytes_of(self, span: Span) -> int:
        """About how many bytes of memory a stored span takes; 0 if it is not stored."""
        row = self._attempt(span).get(span.span_id)
        if row is None:
            return 0
        if isinstance(row, bytes):
            return len(row) + _ROW_OVERHEAD
        return _OBJECT_FACTOR * (_ROW_OVERHEAD + len(repr(row[1])))

    # Questions

    async def query(
        self,
        filter: FilterOptions | None = None,
        sort: SortOptions | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Span]:
        """As promised by :class:`Collection`; ``items`` are decoded when they are looked at."""
        check_window(limit, offset)
        order = resolve_sort_options(sort, Span)
        rows = self._matching(parse_filter(filter))
        total = len(rows)
        if order is not None and limit != 0:
            rows = _sorted(rows, *order, head=None if limit == -1 else offset + limit)
        return page(_encoded(window(rows, limit, offset)), limit, offset, total)

    async def get(
        self, filter: FilterOptions | None = None, sort: SortOptions | None = None
    ) -> Span | None:
        order = resolve_sort_options(sort, Span)
        rows = self._matching(parse_filter(filter))
        if order is not None:
            rows = _sorted(rows, *order, head=1)
        return _span(rows[0]) if rows else None

    async def find(self, *key: str) -> Span | None:
        rollout_id, attempt_id, span_id = key
        row = self._rollouts.get(rollout_id, {}).get(attempt_id, {}).get(span_id)
        return None if row is None else _span(row)

    def _matching(self, query: Query) -> list[Row]:
        """The rows that match, in insertion order."""
        required = query.required
        exact = {c.field: c for c in required if c.operator == "exact"}
        used = [exact[field] for field in PRIMARY_KEYS[:2] if field in exact]
        with self._mutex:
            rows = self._rows_of(*self._attempts_of(exact))
        matches = predicate([c for c in required if c not in used], query.optional)
        return rows if matches is None else [row for row in rows if matches(_View(row))]

    def _attempts_of(self, exact: Mapping[str, Condition]) -> list[Spans]:
        """The attempts that can hold a match."""
        try:
            rollouts: Iterable[dict[str, Spans]] = self._rollouts.values()
            if "rollout_id" in exact:
                rollouts = _looked_up(self._rollouts, exact["rollout_id"].operand)
            if "attempt_id" not in exact:
                return list(chain.from_iterable(attempts.values() for attempts in rollouts))
            attempt_id = exact["attempt_id"].operand
            return [spans for found in rollouts for spans in _looked_up(found, attempt_id)]
        except TypeError:  # an operand that cannot be hashed equals no string
            return []

    def _rows_of(self, *attempts: Spans) -> list[Row]:
        rows = list(chain.from_iterable(spans.values() for spans in attempts))
        if len(attempts) > 1:
            rows.sort(key=_ordinal)
        return rows

    def _attempt(self, span: Span) -> Spans:
        return self._rollouts.get(span.rollout_id, {}).get(span.attempt_id, {})

    # Changes

    async def insert(self, items: Sequence[Span]) -> None:
        with self._mutex:
            _check_types(items)
            keys = {(span.rollout_id, span.attempt_id, span.span_id) for span in items}
            stored = [span for span in items if span.span_id in self._attempt(span)]
            if stored or len(keys) < len(items):
                described = _describe(stored[0]) if stored else "given"
                raise DuplicatedPrimaryKeyError(
                    f"Item with primary key(s) {described} already exists"
                )
            for span in items:
                self._add(span)

    async def insert_missing(self, items: Sequence[Span]) -> Sequence[Span]:
        """Store the spans whose key is free; returns those of ``items``, not what is kept."""
        return self.insert_missing_now(items)

    def insert_missing_now(self, items: Sequence[Span]) -> Sequence[Span]:
        with self._mutex:
            _check_types(items)
            return [span for span in items if self._add(span)]

    async def update(
        self, items: Sequence[Span], update_fields: Sequence[str] | None = None
    ) -> Sequence[Span]:
        with self._mutex:
            self._require_all(items)
            return [self._put(span, update_fields) for span in items]

    async def upsert(
        self, items: Sequence[Span], update_fields: Sequence[str] | None = None
    ) -> Sequence[Span]:
        with self._mutex:
            _check_types(items)
            return [span if self._add(span) else self._put(span, update_fields) for span in items]

    async def delete(self, items: Sequence[Span]) -> None:
        with self._mutex:
            self._require_all(items)
            for span in items:
                attempts = self._rollouts[span.rollout_id]
                spans = attempts[span.attempt_id]
                del spans[span.span_id]
                self._count -= 1
                if not spans:
                    del attempts[span.attempt_id]
                if not attempts:
                    del self._rollouts[span.rollout_id]

    def remove_rollout(self, rollout_id: str) -> Mapping[str, int]:
        """Remove all spans of a rollout; returns how many by attempt id."""
        with self._mutex:
            attempts = self._rollouts.pop(rollout_id, {})
            counts = {attempt_id: len(spans) for attempt_id, spans in attempts.items()}
            self._count -= sum(counts.values())
        return counts

    def _add(self, span: Span) -> bool:
        """Store a span if its key is free."""
        attempts = self._rollouts.get(span.rollout_id)
        if attempts is None:
            attempts = self._rollouts[span.rollout_id] = {}
        spans = attempts.get(span.attempt_id)
        if spans is None:
            spans = attempts[span.attempt_id] = {}
        elif span.span_id in spans:
            return False
        spans[span.span_id] = _row(span, self._next_ordinal)
        self._next_ordinal += 1
        self._count += 1
        return True

    def _put(self, span: Span, fields: Sequence[str] | None) -> Span:
        spans = self._attempt(span)
        stored = spans[span.span_id]
        if fields is not None:
            span = replace(_span(stored), **{field: getattr(span, field) for field in fields})
        spans[span.span_id] = _row(span, _ordinal(stored))
        return span

    def _require_all(self, items: Sequence[Span]) -> None:
        _check_types(items)
        for span in items:
            if span.span_id not in self._attempt(span):
                raise NotFoundError(f"Item with primary key(s) {_describe(span)} does not exist")


def _check_types(items: Sequence[object]) -> None:
    for item in items:
        if not isinstance(item, Span):
            raise TypeError(f"Collection of Span cannot take {type(item).__name__}")


def _describe(span: Span) -> str:
    return str({field: getattr(span, field) for field in PRIMARY_KEYS})


def _looked_up(values: Mapping[str, T], key: Any) -> tuple[T, ...]:
    found = values.get(key)
    return () if found is None else (found,)
