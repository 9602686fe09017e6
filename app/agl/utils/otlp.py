"""OTLP trace exports: from protobuf messages to spans of the store.

Which attempt a span belongs to stands in the attributes ``agentlightning.rollout_id`` and
``agentlightning.attempt_id``, on the span itself or on its resource (the span wins). Attribute
values that a :class:`~agl.types.Span` cannot hold are made to fit: an empty value is dropped, a map
is flattened (``{"a": {"b": 1}}`` becomes ``a.b = 1``), and an array of mixed, nested or empty
values becomes its JSON text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from pydantic import ValidationError

from agl.types import (
    Attributes,
    AttributeValue,
    Event,
    Link,
    OtelResource,
    Span,
    SpanContext,
    StatusCode,
    TraceStatus,
    convert_timestamp,
)
from agl.types.bounds import MAX_SEQUENCE_ID

logger = logging.getLogger(__name__)

ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"
SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"

UNNUMBERED = -1
"""Sequence id of a parsed span that brought none; the receiver draws one."""

_STATUS_CODES: tuple[StatusCode, ...] = ("UNSET", "OK", "ERROR")
_SCALARS = (str, bool, int, float)


@dataclass(frozen=True, slots=True)
class ParsedExport:
    """Spans in request order, and why others could not be placed."""

    spans: list[Span]
    rejected: list[str]


def parse_export(request: ExportTraceServiceRequest) -> ParsedExport:
    """Convert an export; a span without a sequence id carries :data:`UNNUMBERED`."""
    parsed = ParsedExport([], [])
    for group in request.resource_spans:
        try:
            resource = OtelResource(
                attributes=convert_attributes(group.resource.attributes),
                schema_url=group.schema_url,
            )
        except ValidationError as error:
            reason = f"resource: {_first_fault(error)}"
            parsed.rejected.extend(reason for _ in _spans_of(group))
            continue
        for otlp_span in _spans_of(group):
            _place(otlp_span, resource, parsed)
    return parsed


def _spans_of(group: ResourceSpans) -> Iterator[OtlpSpan]:
    for scope in group.scope_spans:
        yield from scope.spans


def _place(otlp_span: OtlpSpan, resource: OtelResource, parsed: ParsedExport) -> None:
    attributes = convert_attributes(otlp_span.attributes)
    owner = {**resource.attributes, **attributes}
    missing = [key for key in (ROLLOUT_ID, ATTEMPT_ID) if not str(owner.get(key, ""))]
    if missing:
        reason = f"span {otlp_span.name!r} has no {' and no '.join(missing)}"
        logger.warning("Skipped: %s", reason)
        parsed.rejected.append(reason)
        return
    try:
        span = convert_span(
            otlp_span,
            attributes,
            resource,
            rollout_id=str(owner[ROLLOUT_ID]),
            attempt_id=str(owner[ATTEMPT_ID]),
            sequence_id=_sequence_id(owner.get(SPAN_SEQUENCE_ID)),
        )
    except ValidationError as error:
        parsed.rejected.append(f"span {otlp_span.name!r:.60}: {_first_fault(error)}")
    else:
        parsed.spans.append(span)


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def _sequence_id(value: AttributeValue | None) -> int:
    if value is None:
        return UNNUMBERED
    try:
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(value)
        number = int(value)
    except ValueError:
        logger.warning("%s %r is no number; a new one is drawn", SPAN_SEQUENCE_ID, value)
        return UNNUMBERED
    if not 0 <= number <= MAX_SEQUENCE_ID:
        logger.error("%s %d is out of range; a new one is drawn", SPAN_SEQUENCE_ID, number)
        return UNNUMBERED
    return number


def convert_span(
    otlp_span: OtlpSpan,
    attributes: Attributes,
    resource: OtelResource,
    *,
    rollout_id: str,
    attempt_id: str,
    sequence_id: int,
) -> Span:
    """One span; scope, kind, trace state, flags and dropped counts are left behind."""
    context = _context(otlp_span.trace_id, otlp_span.span_id)
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_id=_hex(otlp_span.parent_span_id, 16) if otlp_span.parent_span_id else None,
        name=otlp_span.name,
        status=_status(otlp_span),
        attributes=attributes,
        events=[_event(event) for event in otlp_span.events],
        links=[_link(link) for link in otlp_span.links],
        start_time=convert_timestamp(otlp_span.start_time_unix_nano),
        end_time=convert_timestamp(otlp_span.end_time_unix_nano),
        context=context,
        parent=None,
        resource=resource,
    )


def _status(otlp_span: OtlpSpan) -> TraceStatus:
    code = int(otlp_span.status.code)
    return TraceStatus(
        status_code=_STATUS_CODES[code] if 0 <= code < len(_STATUS_CODES) else "UNSET",
        description=otlp_span.status.message or None,
    )


def _event(event: OtlpSpan.Event) -> Event:
    return Event(
        name=event.name,
        attributes=convert_attributes(event.attributes),
        timestamp=convert_timestamp(event.time_unix_nano),
    )


def _link(link: OtlpSpan.Link) -> Link:
    return Link(
        context=_context(link.trace_id, link.span_id),
        attributes=convert_attributes(link.attributes) or None,
    )


def _context(trace_id: bytes, span_id: bytes) -> SpanContext:
    return SpanContext(
        trace_id=_hex(trace_id, 32), span_id=_hex(span_id, 16), is_remote=False, trace_state={}
    )


def _hex(value: bytes, digits: int) -> str:
    return value.hex().rjust(digits, "0")


def convert_attributes(pairs: Iterable[KeyValue]) -> Attributes:
    """Attributes as a span can hold them; see the module's docstring for what is bent."""
    attributes: Attributes = {}
    for pair in pairs:
        _store(attributes, pair.key, any_value(pair.value))
    return attributes


def _store(attributes: Attributes, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, dict):
        for inner, inner_value in cast("dict[str, Any]", value).items():
            _store(attributes, f"{key}.{inner}", inner_value)
    elif isinstance(value, list) and not _is_plain(cast("list[object]", value)):
        attributes[key] = json.dumps(value, ensure_ascii=False)
    else:
        attributes[key] = value


def _is_plain(values: list[object]) -> bool:
    kinds = {type(value) for value in values}
    return len(kinds) <= 1 and kinds <= set(_SCALARS)


def any_value(value: AnyValue) -> Any:
    """The Python value: bytes become hex, an empty value ``None``."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [any_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: any_value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind)
