"""Conversion of OTLP messages."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from agl.utils.otlp import UNNUMBERED, any_value, convert_attributes, parse_export

IDS = {"agentlightning.rollout_id": "ro-1", "agentlightning.attempt_id": "at-1"}


def value_of(value: Any) -> AnyValue:
    """OTLP's form of a Python value."""
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[value_of(item) for item in value]))
        case _:
            return AnyValue(kvlist_value=KeyValueList(values=pairs_of(value)))


def pairs_of(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value_of(value)) for key, value in attributes.items()]


def otlp_span(name: str = "s", number: int = 1, **attributes: Any) -> OtlpSpan:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return OtlpSpan(
        trace_id=b"\x0a" * 16,
        span_id=number.to_bytes(8, "big"),
        name=name,
        start_time_unix_nano=1_795_970_356_000_000_000,
        end_time_unix_nano=1_795_970_357_500_000_000,
        attributes=pairs_of(named),
    )


def export(*spans: OtlpSpan, resource: dict[str, Any] | None = None) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url="http://schema")
    group.resource.attributes.extend(pairs_of(IDS if resource is None else resource))
    group.scope_spans.add().spans.extend(spans)
    return request


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", "text"),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        (b"\x01\xff", "01ff"),
        (None, None),
        (["a", 1, None], ["a", 1, None]),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
    ],
)
def test_value_kinds(given: Any, expected: Any) -> None:
    converted = any_value(value_of(given))
    assert converted == expected
    assert type(converted) is type(expected)


def test_attributes_are_made_to_fit() -> None:
    converted = convert_attributes(
        pairs_of(
            {
                "plain": [1, 2],
                "empty": [],
                "nothing": None,
                "map": {"a": {"b": 1, "c": None}, "d": "x"},
                "no_map": {},
                "mixed": [1, "a"],
                "holes": ["a", None],
                "nested": [[1], {"k": "ü"}],
                "flags": [True, 1],
            }
        )
    )
    assert converted == {
        "plain": [1, 2],
        "empty": [],
        "map.a.b": 1,
        "map.d": "x",
        "mixed": '[1, "a"]',
        "holes": '["a", null]',
        "nested": '[[1], {"k": "ü"}]',
        "flags": "[true, 1]",
    }


def test_a_span_is_mapped_whole() -> None:
    given = otlp_span("tool", number=0xBEEF, x=1)
    given.parent_span_id = b"\x01"
    given.status.code = 2
    given.status.message = "broken"
    given.events.add(name="e", time_unix_nano=1_795_970_356_000_000_000).attributes.extend(
        pairs_of({"k": {"v": 1}})
    )
    given.links.add(trace_id=b"\x0b" * 16, span_id=b"\x0c" * 8)
    (span,) = parse_export(export(given)).spans
    assert span.model_dump() == {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": UNNUMBERED,
        "trace_id": "0a" * 16,
        "span_id": "000000000000beef",
        "parent_id": "0000000000000001",
        "name": "tool",
        "status": {"status_code": "ERROR", "description": "broken"},
        "attributes": {"x": 1},
        "events": [{"name": "e", "attributes": {"k.v": 1}, "timestamp": 1_795_970_356.0}],
        "links": [
            {
                "context": {
                    "trace_id": "0b" * 16,
                    "span_id": "0c" * 8,
                    "is_remote": False,
                    "trace_state": {},
                },
                "attributes": None,
            }
        ],
        "start_time": 1_795_970_356.0,
        "end_time": 1_795_970_357.5,
        "context": {
            "trace_id": "0a" * 16,
            "span_id": "000000000000beef",
            "is_remote": False,
            "trace_state": {},
        },
        "parent": None,
        "resource": {"attributes": IDS, "schema_url": "http://schema"},
    }


def test_an_empty_span_is_mapped_too() -> None:
    (span,) = parse_export(export(OtlpSpan())).spans
    assert (span.trace_id, span.span_id, span.parent_id) == ("0" * 32, "0" * 16, None)
    assert (span.start_time, span.end_time, span.name) == (None, None, "")
    assert span.status.model_dump() == {"status_code": "UNSET", "description": None}


def test_an_unknown_status_code_is_unset() -> None:
    raw = bytes(export(otlp_span()).SerializeToString())
    request = ExportTraceServiceRequest.FromString(raw)
    request.resource_spans[0].scope_spans[0].spans[0].status.code = 7
    assert parse_export(request).spans[0].status.status_code == "UNSET"


def test_the_span_wins_over_its_resource() -> None:
    own = {"agentlightning__rollout_id": 17, "agentlightning__span_sequence_id": 4}
    resource = IDS | {"agentlightning.span_sequence_id": 9}
    first, second = parse_export(export(otlp_span(**own), otlp_span(), resource=resource)).spans
    assert (first.rollout_id, first.attempt_id, first.sequence_id) == ("17", "at-1", 4)
    assert (second.rollout_id, second.sequence_id) == ("ro-1", 9)


@pytest.mark.parametrize(
    ("given", "expected", "level"),
    [
        (40, 40, None),
        ("40", 40, None),
        (0, 0, None),
        (-3, UNNUMBERED, logging.ERROR),
        ("-3", UNNUMBERED, logging.ERROR),
        ("x", UNNUMBERED, logging.WARNING),
        (1.5, UNNUMBERED, logging.WARNING),
        (True, UNNUMBERED, logging.WARNING),
        ([1], UNNUMBERED, logging.WARNING),
    ],
)
def test_sequence_ids(
    given: Any, expected: int, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    spans = parse_export(export(otlp_span(agentlightning__span_sequence_id=given))).spans
    assert spans[0].sequence_id == expected
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


def test_spans_without_a_home_are_rejected_with_the_reason() -> None:
    parsed = parse_export(
        export(otlp_span("a"), otlp_span("b", agentlightning__attempt_id="at-2"), resource={})
    )
    assert parsed.spans == []
    assert parsed.rejected == [
        "span 'a' has no agentlightning.rollout_id and no agentlightning.attempt_id",
        "span 'b' has no agentlightning.rollout_id",
    ]
