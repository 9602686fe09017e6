"""OTLP over HTTP: traces are stored, metrics, logs and profiles are not taken."""

from __future__ import annotations

import gzip
import logging

from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import Request
from starlette.responses import Response

from agl.errors import BackendError, StoreError
from agl.store.base import LightningStore
from agl.store.rest.body import read_body
from agl.store.rest.errors import Headers, HttpError
from agl.store.rest.route import WireRoute
from agl.store.rest.service import Service
from agl.store.rest.wire import API_V1_PREFIX, TRACES_PATH
from agl.types import Span
from agl.utils.otlp import UNNUMBERED, parse_export
from agl.utils.otlp_json import parse_json_export, to_json_message

logger = logging.getLogger("agl.store.server")

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_UNSUPPORTED = ("metrics", "logs", "development/profiles")
_MAX_REASONS = 5

_DOCUMENTED_BODY = {
    "requestBody": {
        "required": True,
        "description": "ExportTraceServiceRequest; gzip is accepted",
        "content": {
            PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
            JSON: {"schema": {"type": "object"}},
        },
    }
}


class OtlpRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        return [
            WireRoute(
                "POST",
                TRACES_PATH,
                self.export_traces,
                response_class=Response,
                openapi_extra=_DOCUMENTED_BODY,
            ),
            *(
                WireRoute(
                    "POST",
                    f"{API_V1_PREFIX}/{signal}",
                    self.export_other,
                    status=501,
                    response_class=Response,
                )
                for signal in _UNSUPPORTED
            ),
        ]

    async def export_traces(self, request: Request) -> Response:
        """Store the spans of an OTLP export; what cannot be placed is reported as rejected."""
        try:
            export = await _read_export(request)
            parsed = parse_export(export)
            self._service.limits.check_batch(parsed.spans, "spans")
        except HttpError as error:
            return _answer(request, error.status, Status(message=error.detail), error.headers)
        rejected = parsed.rejected + await self._add(parsed.spans)
        return _answer(request, 200, _response(rejected))

    async def export_other(self, request: Request) -> Response:
        """Not taken by this server."""
        return Response(status_code=501)

    async def _add(self, spans: list[Span]) -> list[str]:
        """Number and store the spans; why some were rejected, once for each of them."""
        if not spans:
            return []
        numbered = await self._number(spans)
        rejected: list[str] = []
        for group in _by_attempt(numbered):
            try:
                await self._store.add_many_spans(group)
            except BackendError:
                raise  # 503: the exporter sends them again, rejected ones it would drop
            except StoreError as error:
                logger.warning("Rejected %d OTLP spans: %s", len(group), error)
                rejected += [str(error)] * len(group)
        return rejected

    async def _number(self, spans: list[Span]) -> list[Span]:
        bare = [span for span in spans if span.sequence_id == UNNUMBERED]
        if bare:
            numbers = await self._store.get_many_span_sequence_ids(
                [(span.rollout_id, span.attempt_id) for span in bare]
            )
            for span, number in zip(bare, numbers, strict=True):
                span.sequence_id = number
        return spans


def _by_attempt(spans: list[Span]) -> list[list[Span]]:
    groups: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    return list(groups.values())


async def _read_export(request: Request) -> ExportTraceServiceRequest:
    kind = _content_type(request)
    if kind not in (PROTOBUF, JSON):
        given = request.headers.get("content-type", "")
        raise HttpError(
            400, f"Unsupported Content-Type '{given}', expected '{PROTOBUF}' or '{JSON}'"
        )
    raw = await read_body(request.scope, request.receive)
    try:
        if kind == JSON:
            return parse_json_export(raw)
        export = ExportTraceServiceRequest()
        export.ParseFromString(raw)
    except (DecodeError, ValueError) as error:
        raise HttpError(400, f"Unable to parse OTLP traces payload: {error}") from None
    return export


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _response(rejected: list[str]) -> ExportTraceServiceResponse:
    response = ExportTraceServiceResponse()
    if rejected:
        reasons = list(dict.fromkeys(rejected))
        more = f"; and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
        response.partial_success.rejected_spans = len(rejected)
        response.partial_success.error_message = "; ".join(reasons[:_MAX_REASONS]) + more
    return response


def _answer(
    request: Request, status: int, message: Message, more_headers: Headers = ()
) -> Response:
    """The message in the encoding of the request; protobuf for one that is in neither."""
    in_json = _content_type(request) == JSON
    body: bytes = to_json_message(message) if in_json else message.SerializeToString()
    headers = {name.decode(): value.decode() for name, value in more_headers}
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        body = gzip.compress(body, compresslevel=1)
        headers["content-encoding"] = "gzip"
    return Response(
        body, status_code=status, media_type=JSON if in_json else PROTOBUF, headers=headers
    )


def _accepts_gzip(accept_encoding: str) -> bool:
    tokens = (token.partition(";")[0].strip() for token in accept_encoding.split(","))
    return any(token.lower() == "gzip" for token in tokens)
