"""OTLP over HTTP against a real server."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from rest_support import SharedServer, http_for, shared_server  # noqa: F401 - a fixture
from test_otlp import IDS, export, otlp_span, pairs_of

from agl.errors import BackendUnavailableError
from agl.store.client_server import ServerLimits
from agl.store.memory import InMemoryLightningStore
from agl.types import AttemptedRollout

PROTOBUF = {"content-type": "application/x-protobuf", "accept-encoding": "identity"}


@pytest.fixture
def store(shared: SharedServer) -> InMemoryLightningStore:
    return shared.fresh()


@pytest.fixture
async def http(
    shared: SharedServer, store: InMemoryLightningStore
) -> AsyncGenerator[httpx.AsyncClient]:
    async with shared.http() as client:
        yield client


def home(started: AttemptedRollout, **more: Any) -> dict[str, Any]:
    return {
        "agentlightning.rollout_id": started.rollout_id,
        "agentlightning.attempt_id": started.attempt.attempt_id,
    } | more


async def send(
    http: httpx.AsyncClient, body: ExportTraceServiceRequest | bytes, **headers: str
) -> httpx.Response:
    raw = body if isinstance(body, bytes) else body.SerializeToString()
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return await http.post("/v1/traces", content=raw, headers=PROTOBUF | named)


def partial_success(answer: httpx.Response) -> tuple[int, str]:
    assert answer.status_code == 200
    outcome = ExportTraceServiceResponse.FromString(answer.content).partial_success
    return outcome.rejected_spans, outcome.error_message


async def test_numbers_are_given_in_request_order(
    http: httpx.AsyncClient, store: InMemoryLightningStore
) -> None:
    started = await store.start_rollout(1)
    key = "agentlightning__span_sequence_id"
    spans = [
        otlp_span("a", 1),
        otlp_span("b", 2, **{key: "40"}),
        otlp_span("c", 3, **{key: -3}),
        otlp_span("d", 4, **{key: "x"}),
    ]
    answer = await send(http, export(*spans, resource=home(started, **{"service.name": "t"})))
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/x-protobuf"
    stored = await store.query_spans(started.rollout_id)
    assert {span.name: span.sequence_id for span in stored} == {"a": 1, "c": 2, "d": 3, "b": 40}
    again = await send(http, export(*spans, resource=home(started)))
    assert (again.status_code, again.content) == (200, b"")
    assert (await store.query_spans(started.rollout_id)).total == 4


async def test_good_spans_are_stored_and_bad_ones_reported(
    http: httpx.AsyncClient, store: InMemoryLightningStore
) -> None:
    started = await store.start_rollout(1)
    known = export(otlp_span("good", 1), resource=home(started))
    known.MergeFrom(export(otlp_span("stray", 2), otlp_span("stray", 3), resource=IDS))
    known.MergeFrom(export(otlp_span("homeless", 4), resource={}))
    known.MergeFrom(export(otlp_span("late", 5), resource=home(started)))
    rejected, reason = partial_success(await send(http, known))
    assert rejected == 3
    assert "'homeless' has no agentlightning.rollout_id" in reason
    assert "ro-1" in reason
    stored = await store.query_spans(started.rollout_id)
    assert sorted(span.name for span in stored) == ["good", "late"]


async def test_reasons_are_told_only_so_far(http: httpx.AsyncClient) -> None:
    spans = [otlp_span(f"n{number}", number) for number in range(50)]
    rejected, reason = partial_success(await send(http, export(*spans, resource={})))
    assert rejected == 50
    assert reason.endswith("; and 45 more")


async def test_values_a_span_cannot_hold_do_not_fail_the_request(
    http: httpx.AsyncClient, store: InMemoryLightningStore
) -> None:
    started = await store.start_rollout(1)
    odd = otlp_span("odd", 1, nothing=None, map={"a": {"b": 1}}, mixed=[1, "a"], raw=b"\x00")
    odd.events.add(name="e").attributes.extend(pairs_of({"map": {"x": None, "y": [[]]}}))
    answer = await send(http, export(odd, resource=home(started, deep={"r": {}})))
    assert answer.content == b""
    (span,) = await store.query_spans(started.rollout_id)
    assert span.attributes == {"map.a.b": 1, "mixed": '[1, "a"]', "raw": "00"}
    assert span.events[0].attributes == {"map.y": "[[]]"}


async def test_packed_requests_and_answers(
    http: httpx.AsyncClient, store: InMemoryLightningStore
) -> None:
    started = await store.start_rollout(1)
    raw = export(otlp_span(), resource=home(started)).SerializeToString()
    packed = gzip.compress(raw, mtime=0)
    answer = await send(http, packed, content_encoding="gzip", accept_encoding="br, gzip;q=0")
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == b""
    assert (await store.query_spans(started.rollout_id)).total == 1
    refused = await send(http, b"\xff", accept_encoding="gzip")
    assert refused.headers["content-encoding"] == "gzip"
    assert "Unable to parse" in Status.FromString(refused.content).message


TRUNCATED_GZIP = gzip.compress(b"", mtime=0)[:-4]
GZIP_BOMB = gzip.compress(bytes(64 * 2**20 + 1), 1, mtime=0)
REFUSED = [
    ({"content-type": "text/json"}, b"{}", 400,
     "Unsupported Content-Type 'text/json', expected 'application/x-protobuf' or"),
    ({"content-type": ""}, b"", 400,
     "Unsupported Content-Type '', expected 'application/x-protobuf'"),
    ({}, b"\xff\xff\xff", 400, "Unable to parse OTLP traces payload: "),
    ({"content-encoding": "gzip"}, b"junk", 400, "Content-Encoding: body is not valid gzip"),
    ({"content-encoding": "gzip"}, TRUNCATED_GZIP, 400, "Content-Encoding: the gzip"),
    ({"content-encoding": "zstd"}, b"junk", 415, "Content-Encoding: 'zstd' is not supported"),
    ({"content-encoding": "gzip"}, GZIP_BOMB, 413, "Body is larger"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "body", "status", "text"), REFUSED)
async def test_refusals_are_protobuf(
    http: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, text: str
) -> None:
    answer = await http.post("/v1/traces", content=body, headers=PROTOBUF | headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert Status.FromString(answer.content).message.startswith(text)


async def test_parameters_of_the_content_type_are_ignored(http: httpx.AsyncClient) -> None:
    answer = await send(http, b"", content_type="application/x-protobuf; charset=x")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("signal", ["metrics", "logs", "development/profiles"])
async def test_other_signals_are_501(http: httpx.AsyncClient, signal: str) -> None:
    answer = await http.post(f"/v1/{signal}", content=b"x", headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (501, b"")


async def test_spans_that_the_database_cannot_take_now_are_to_be_sent_again() -> None:
    class Away(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Any:
            raise BackendUnavailableError("away")

    async with http_for(Away()) as http:
        answer = await send(http, export(otlp_span()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_failing_store_is_500(store: InMemoryLightningStore) -> None:
    class Failing(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Any:
            raise OSError("disk")

    async with http_for(Failing()) as http:
        answer = await send(http, export(otlp_span()))
    assert answer.status_code == 500


JSON = {"content-type": "application/json", "accept-encoding": "identity"}


async def test_json_is_taken_as_well(
    http: httpx.AsyncClient, store: InMemoryLightningStore
) -> None:
    started = await store.start_rollout(1)
    attributes = [
        {"key": key, "value": {"stringValue": value}} for key, value in home(started).items()
    ]
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "EEE19B7EC3C1B174",
        "parentSpanId": "eee19b7ec3c1b173",
        "name": "json",
        "kind": 2,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": [
            {"key": "n", "value": {"intValue": "7"}},
            {"key": "raw", "value": {"bytesValue": "AAE="}},
        ],
        "links": [{"traceId": "5b8efff798038103d269b633813fc60d", "spanId": "eee19b7ec3c1b172"}],
        "status": {"code": 2, "message": "boom"},
        "unknownField": {"x": 1},
    }
    stray = span | {"spanId": "0000000000000001", "attributes": []}
    groups = [
        {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": [span]}]},
        {"scopeSpans": [{"spans": [stray]}]},
    ]
    body = {"resourceSpans": groups}
    answer = await http.post("/v1/traces", json=body, headers=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "'json' has no agentlightning.rollout_id" in partial["errorMessage"]
    (stored,) = await store.query_spans(started.rollout_id)
    assert stored.trace_id == "5b8efff798038103d269b633813fc60c"
    assert (stored.span_id, stored.parent_id) == ("eee19b7ec3c1b174", "eee19b7ec3c1b173")
    assert (stored.start_time, stored.end_time) == (1544712660, 1544712661)
    assert stored.attributes == {"n": 7, "raw": "0001"}
    assert stored.links[0].context.span_id == "eee19b7ec3c1b172"
    assert (stored.status.status_code, stored.status.description) == ("ERROR", "boom")
    whole = await http.post("/v1/traces", json={"resourceSpans": groups[:1]}, headers=JSON)
    assert (whole.status_code, whole.json()) == (200, {})


def _one_span(**fields: Any) -> bytes:
    span = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]})
    return span.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"resourceSpans": 1}',
        b'{"resourceSpans": [1]}',
        _one_span(traceId="xyz"),
        _one_span(spanId=7),
        _one_span(startTimeUnixNano="soon"),
        _one_span(attributes=[{"key": 1}]),
        _one_span(status=5),
    ],
    ids=lambda body: body[:60].decode(),
)
async def test_broken_json_is_refused_in_json(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.post("/v1/traces", content=body, headers=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json()["message"].startswith("Unable to parse OTLP traces payload: ")


async def test_too_many_spans_are_refused() -> None:
    async with http_for(limits=ServerLimits(max_batch_items=2)) as http:
        three = export(*(otlp_span("s", number) for number in (1, 2, 3)))
        answer = await send(http, three)
    assert answer.status_code == 413
    assert "the limit is 2" in Status.FromString(answer.content).message


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(data=st.data())
async def test_no_bytes_make_it_fail(http: httpx.AsyncClient, data: st.DataObject) -> None:
    good = export(otlp_span(x={"a": [1]}), otlp_span(number=2)).SerializeToString()
    body = bytearray(good)
    for _ in range(data.draw(st.integers(0, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    answer = await send(http, data.draw(st.sampled_from([cut, bytes(body)]) | st.binary()))
    assert answer.status_code in (200, 400)


async def test_the_exporter_of_the_sdk_is_understood(
    shared: SharedServer, store: InMemoryLightningStore
) -> None:
    server = shared.server
    started = await server.start_rollout({"q": 1})
    provider = TracerProvider(resource=Resource(home(started)), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(server.otlp_traces_endpoint(), compression=Compression.Gzip)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("outer") as outer:
        outer.set_attribute("list", [1.5, 2.5])
        with tracer.start_as_current_span("inner") as inner:
            inner.add_event("said", {"what": "hi"})
    provider.shutdown()
    spans = await store.query_spans(started.rollout_id)
    by_name = {span.name: span for span in spans}
    assert sorted(span.sequence_id for span in spans) == [1, 2]
    assert by_name["inner"].parent_id == by_name["outer"].span_id
    assert by_name["outer"].attributes == {"list": [1.5, 2.5]}
    assert by_name["inner"].events[0].attributes == {"what": "hi"}
