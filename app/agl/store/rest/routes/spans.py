"""Spans as JSON, one by one or in batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from agl.errors import GoneError
from agl.store.base import LightningStore
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.common import check_page, page_of
from agl.store.rest.service import Service
from agl.store.rest.wire import (
    API_V1_AGL_PREFIX,
    AddManySpansRequest,
    ManySequenceIdsRequest,
    ManySequenceIdsResponse,
    NextSequenceIdRequest,
    NextSequenceIdResponse,
    QuerySpansRequest,
    dump,
)
from agl.types import PaginatedResult, Span
from agl.utils.request_ids import sending_again


class SpanRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        root = f"{API_V1_AGL_PREFIX}/spans"
        return [
            WireRoute(
                "POST", root, self.add_span, status=201, errors=(404,), again=self.add_span_again
            ),
            WireRoute("GET", root, self.query_spans, errors=(410,)),
            WireRoute("POST", f"{root}/search", self.search_spans, errors=(410,)),
            WireRoute(
                "POST",
                f"{root}/batch",
                self.add_many_spans,
                status=201,
                errors=(404, 413),
                again=self.add_many_spans_again,
            ),
            WireRoute("POST", f"{root}/next", self.get_next_span_sequence_id),
            WireRoute("POST", f"{root}/next/batch", self.get_many_span_sequence_ids, errors=(413,)),
        ]

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; null when the attempt already has one with this id."""
        return await self._store.add_span(span)

    async def add_many_spans(self, request: AddManySpansRequest) -> list[Span]:
        """Store spans; answers the newly stored ones in the order given."""
        self._service.limits.check_batch(request.spans, "spans")
        return list(await self._store.add_many_spans(request.spans))

    async def add_span_again(self, span: Span) -> Span | None:
        """Store a span whose first answer may have been lost."""
        stored = await self.add_many_spans_again(AddManySpansRequest.model_construct(spans=[span]))
        return stored[0] if stored else None

    async def add_many_spans_again(self, request: AddManySpansRequest) -> list[Span]:
        """Store spans whose first answer may have been lost.

        Those that are there already, exactly as they are sent, count as newly stored: it was this
        request that stored them.
        """
        with sending_again():
            new = {_key(span) for span in await self.add_many_spans(request)}
        first = {_key(span): span for span in reversed(request.spans)}
        return [
            span
            for span in request.spans
            if span is first[_key(span)] and (_key(span) in new or await self._is_stored(span))
        ]

    async def _is_stored(self, span: Span) -> bool:
        """Whether the store has this span, and not just one of the same ids."""
        try:
            found = await self._store.query_spans(
                span.rollout_id, span.attempt_id, span_id=span.span_id
            )
        except GoneError:
            return False
        return [dump(one) for one in found] == [dump(span)]

    async def query_spans(
        self, query: Annotated[QuerySpansRequest, Query()]
    ) -> PaginatedResult[Span]:
        """A page of the rollout's spans."""
        return await self.search_spans(query)

    async def search_spans(self, request: QuerySpansRequest) -> PaginatedResult[Span]:
        """A page of the rollout's spans; the same as the GET form."""
        check_page(request, Span)
        return page_of(await self._store.query_spans(**dict(request)))

    async def get_next_span_sequence_id(
        self, request: NextSequenceIdRequest
    ) -> NextSequenceIdResponse:
        """The next number of the rollout's span counter."""
        number = await self._store.get_next_span_sequence_id(request.rollout_id, request.attempt_id)
        return NextSequenceIdResponse(sequence_id=number)

    async def get_many_span_sequence_ids(
        self, request: ManySequenceIdsRequest
    ) -> ManySequenceIdsResponse:
        """One number for each request, in the order given."""
        asked = request.requests
        self._service.limits.check_batch(asked, "sequence ids")
        numbers = await self._store.get_many_span_sequence_ids(
            [(one.rollout_id, one.attempt_id) for one in asked]
        )
        return ManySequenceIdsResponse(sequence_ids=list(numbers))


def _key(span: Span) -> tuple[str, str, str]:
    return span.rollout_id, span.attempt_id, span.span_id
