"""OTLP in its JSON encoding, which is protobuf's with two exceptions: ids are hex, not base64."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, cast

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic_core import from_json

_MAX_DEPTH = 100
_ID_KEYS = ("traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id")


def parse_json_export(raw: bytes) -> ExportTraceServiceRequest:
    """The export that JSON stands for; fields nobody knows are ignored.

    Raises:
        ValueError: it is no JSON, or no export.
    """
    document: object = from_json(raw or b"{}")
    if not isinstance(document, dict):
        raise ValueError("an export is a JSON object")
    export = cast("dict[str, Any]", document)
    for holder in _holders_of_ids(export):
        for key in _ID_KEYS:
            if key in holder:
                holder[key] = _base64_of_hex(key, holder[key])
    request = ExportTraceServiceRequest()
    try:
        ParseDict(export, request, ignore_unknown_fields=True, max_recursion_depth=_MAX_DEPTH)
    except (ParseError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return request


def to_json_message(message: Message) -> bytes:
    """A message in JSON, as OTLP wants it."""
    return MessageToJson(message, indent=None).encode()


def _holders_of_ids(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The spans and their links."""
    for group in _children(export, "resourceSpans", "resource_spans"):
        for scope in _children(group, "scopeSpans", "scope_spans"):
            for span in _children(scope, "spans"):
                yield span
                yield from _children(span, "links")


def _children(parent: dict[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        found: object = parent.get(name)
        if isinstance(found, list):
            for child in cast("list[object]", found):
                if isinstance(child, dict):
                    yield cast("dict[str, Any]", child)


def _base64_of_hex(key: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise ValueError(value)
        raw = bytes.fromhex(value)
    except ValueError:
        raise ValueError(f"{key} {value!r} is not a hexadecimal string") from None
    return base64.b64encode(raw).decode()
