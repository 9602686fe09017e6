"""Spans and their sequence numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from agl.store.base import FilterLogic, SortOrder
from agl.store.rest.wire import ManySequenceIdsResponse, NextSequenceIdResponse
from agl.types import PaginatedResult, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
from agl.store.rest.calls.requests import ClientCore, NoSuchEndpointError, paging, parts

_NEXT = TypeAdapter(NextSequenceIdResponse)
_NEXT_MANY = TypeAdapter(ManySequenceIdsResponse)
_SPAN_OR_NONE = TypeAdapter(Span | None)
_SPAN_LIST = TypeAdapter(list[Span])
_SPAN_PAGE = TypeAdapter(PaginatedResult[Span])


class SpanCalls(ClientCore):
    """Draw numbers, add, query."""

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        body = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        return (await self._post("/spans/next", _NEXT, body)).sequence_id

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Draw numbers in one request; in one for each of them where the server is of 0.3."""
        numbers: list[int] = []
        for lot in parts(rollout_attempt_ids):
            numbers += await self._numbers(lot)
        return numbers

    async def _numbers(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        if len(pairs) > 1 and await self._server_has("sequence-ids-batch"):
            asked = [{"rollout_id": pair[0], "attempt_id": pair[1]} for pair in pairs]
            with suppress(NoSuchEndpointError):
                answer = await self._post_new("/spans/next/batch", _NEXT_MANY, {"requests": asked})
                return answer.sequence_ids
        return [await self.get_next_span_sequence_id(*pair) for pair in pairs]

    async def add_span(self, span: Span) -> Span | None:
        return await self._post("/spans", _SPAN_OR_NONE, span)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans in one request; one request for each span where the server is of 0.3."""
        added: list[Span] = []
        for lot in parts(spans):
            added += await self._add(lot)
        return added

    async def _add(self, spans: Sequence[Span]) -> list[Span]:
        if len(spans) > 1 and await self._server_has("spans-batch"):
            with suppress(NoSuchEndpointError):
                return await self._post_new("/spans/batch", _SPAN_LIST, {"spans": spans})
        stored = [await self.add_span(span) for span in spans]
        return [span for span in stored if span is not None]

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(
            Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id)
        )

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        body = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
            "filter_logic": filter_logic,
            **paging(sort_by, sort_order, limit, offset),
        }
        return await self._post("/spans/search", _SPAN_PAGE, body)
