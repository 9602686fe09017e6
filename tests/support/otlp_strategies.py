"""OTLP exports of any shape, and what becomes of them on a bad line."""

from __future__ import annotations

import gzip
from typing import Any

from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

_RESERVED = (
    "agentlightning.rollout_id",
    "agentlightning.attempt_id",
    "agentlightning.span_sequence_id",
)
_int64 = st.integers(-(2**63), 2**63 - 1)
_uint64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 10**18, 2**64 - 1])
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

_scalars = st.one_of(
    st.just(AnyValue()),
    _text.map(lambda value: AnyValue(string_value=value)),
    st.booleans().map(lambda value: AnyValue(bool_value=value)),
    _int64.map(lambda value: AnyValue(int_value=value)),
    st.floats().map(lambda value: AnyValue(double_value=value)),
    st.binary(max_size=4).map(lambda value: AnyValue(bytes_value=value)),
)


def _pair(key: str, value: AnyValue) -> KeyValue:
    return KeyValue(key=key, value=value)


_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: AnyValue(array_value=ArrayValue(values=v))),
        st.lists(st.builds(_pair, _text, inner), max_size=2).map(
            lambda v: AnyValue(kvlist_value=KeyValueList(values=v))
        ),
    ),
    max_leaves=6,
)
_pairs = st.lists(st.builds(_pair, _text | st.sampled_from(_RESERVED), _values), max_size=4)


def _ids(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size) | st.binary(max_size=20)


_spans = st.builds(
    Span,
    trace_id=_ids(16),
    span_id=_ids(8),
    parent_span_id=_ids(8),
    trace_state=_text | st.sampled_from(["a=b,c=d", "=", ",,="]),
    name=_text,
    kind=st.integers(0, 5),
    start_time_unix_nano=_uint64,
    end_time_unix_nano=_uint64,
    attributes=_pairs,
    events=st.lists(
        st.builds(Span.Event, time_unix_nano=_uint64, name=_text, attributes=_pairs), max_size=2
    ),
    links=st.lists(
        st.builds(Span.Link, trace_id=_ids(16), span_id=_ids(8), attributes=_pairs), max_size=2
    ),
    status=st.builds(Status, message=_text, code=st.integers(0, 9)),
)


@st.composite
def exports(draw: Any, rollout_id: str, attempt_id: str) -> ExportTraceServiceRequest:
    """Valid exports, most of them to this attempt."""
    home = [
        _pair(_RESERVED[0], AnyValue(string_value=rollout_id)),
        _pair(_RESERVED[1], AnyValue(string_value=attempt_id)),
    ]
    groups = []
    for spans in draw(st.lists(st.lists(_spans, max_size=3), max_size=2)):
        known = home if draw(st.integers(0, 3)) else []
        group = ResourceSpans(
            resource=Resource(attributes=[*known, *draw(_pairs)]),
            scope_spans=[ScopeSpans(spans=spans, schema_url=draw(_text))],
            schema_url=draw(_text),
        )
        groups.append(group)
    return ExportTraceServiceRequest(resource_spans=groups)


@st.composite
def mutated(
    draw: Any, valid: st.SearchStrategy[ExportTraceServiceRequest], *, packed: bool
) -> bytes:
    """Bytes of an export with some changed, cut or added, or no export at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=200))
    plain = draw(valid).SerializeToString()
    body = bytearray(gzip.compress(plain, 1) if packed and draw(st.booleans()) else plain)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(body) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip" if body:
                body[place] ^= draw(st.integers(1, 255))
            case "cut":
                del body[place : place + draw(st.integers(1, 9))]
            case "repeat":
                body[place:place] = body[place : place + 20]
            case _:
                body[place:place] = draw(st.binary(max_size=9))
    if packed and draw(st.booleans()):
        return gzip.compress(bytes(body), 1)
    return bytes(body)
