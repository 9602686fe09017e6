"""What no backend could keep is refused before it gets there, over HTTP and in the process."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError
from rest_support import SharedServer, shared_server, span_body  # noqa: F401 - a fixture

from agl.store.memory import InMemoryLightningStore
from agl.types import RolloutConfig, Span
from agl.types.bounds import MAX_SEQUENCE_ID, storable

API = "/v1/agl"
LONG = "x" * 1025
NAN, INFINITE = float("nan"), float("inf")

ROLLOUT_FAULTS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"input": 2**63}, ["input"], "the value is an integer of more than 64 bits"),
    ({"input": {"a": [1, {"b": -(2**63) - 1}]}}, ["input"], "the value['a'][1]['b'] is an integer"),
    ({"input": {"a": [{"b\0": 1}]}}, ["input"], "the value['a'][0] has a NUL character in a key"),
    ({"metadata": {"n": 2**64}}, ["metadata"], "the value['n'] is an integer"),
    ({"config": {"max_attempts": 2**63}}, ["config", "max_attempts"], "less than or equal"),
    ({"config": {"timeout_seconds": NAN}}, ["config", "timeout_seconds"], "not NaN"),
    ({"config": {"unresponsive_seconds": NAN}}, ["config", "unresponsive_seconds"], "not NaN"),
    ({"worker_id": LONG}, ["worker_id"], "at most 1024 characters"),
    ({"resources_id": LONG}, ["resources_id"], "at most 1024 characters"),
]
SPAN_FAULTS: list[tuple[dict[str, Any], list[Any], str]] = [
    ({"sequence_id": 2**62 + 1}, ["sequence_id"], f"equal to {MAX_SEQUENCE_ID}"),
    ({"sequence_id": 10**30}, ["sequence_id"], f"equal to {MAX_SEQUENCE_ID}"),
    ({"sequence_id": -(2**62) - 1}, ["sequence_id"], f"equal to -{MAX_SEQUENCE_ID}"),
    ({"attributes": {"n": 2**63}}, ["attributes"], "the value['n'] is an integer"),
    ({"attributes": {"n": [1, 2**63]}}, ["attributes"], "the value['n'][1] is an integer"),
    ({"attributes": {"n\0": 1}}, ["attributes"], "NUL character in a key"),
    ({"extra": {"deep": [2**63]}}, ["extra"], "the value['deep'][0] is an integer"),
    ({"start_time": NAN}, ["start_time"], "finite number"),
    ({"end_time": INFINITE}, ["end_time"], "finite number"),
    ({"events": [{"name": "e", "attributes": {}, "timestamp": INFINITE}]}, [], "finite number"),
    ({"span_id": LONG}, ["span_id"], "at most 1024 characters"),
    ({"trace_id": LONG}, ["trace_id"], "at most 1024 characters"),
    ({"parent_id": LONG}, ["parent_id"], "at most 1024 characters"),
]
PAGE_FAULTS = ["limit=9223372036854775808", "offset=1000000000000000000000000000000"]
TEXTS_THAT_ARE_NONE = ["\ud800", ["a", "\udfff"], {"k": {"\ud800": 1}}]


@pytest.fixture
async def http(shared: SharedServer) -> AsyncGenerator[httpx.AsyncClient]:
    shared.fresh()
    async with shared.http() as client:
        yield client


async def post(http: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
    """Send what ``json.dumps`` makes of it, NaN included."""
    headers = {"content-type": "application/json"}
    return await http.post(API + path, content=json.dumps(body), headers=headers)


def fault(answer: httpx.Response, place: list[Any]) -> str:
    """The message of the only fault, whose place is checked."""
    assert answer.status_code == 422, answer.text
    (found,) = answer.json()["detail"]
    assert found["loc"][: len(place)] == place
    return found["msg"]


@pytest.mark.parametrize(("values", "place", "message"), ROLLOUT_FAULTS)
async def test_rollouts(
    http: httpx.AsyncClient, values: dict[str, Any], place: list[str], message: str
) -> None:
    body = {"input": 1, **values}
    assert message in fault(await post(http, "/rollouts", body), ["body", *place])
    if "worker_id" not in values:
        enqueued = await post(http, "/queues/rollouts/enqueue", {"rollouts": [body]})
        assert message in fault(enqueued, ["body", "rollouts", 0, *place])
    assert (await http.get(f"{API}/statistics")).json()["total_rollouts"] == 0


@pytest.mark.parametrize(("values", "place", "message"), SPAN_FAULTS)
async def test_spans(
    http: httpx.AsyncClient, values: dict[str, Any], place: list[Any], message: str
) -> None:
    rollout = (await post(http, "/rollouts", {"input": 1})).json()
    ids = rollout["rollout_id"], rollout["attempt"]["attempt_id"]
    good, bad = span_body(*ids, span_id="other"), span_body(*ids, **values)
    assert message in fault(await post(http, "/spans", bad), ["body", *place])
    batch = await post(http, "/spans/batch", {"spans": [good, bad]})
    assert message in fault(batch, ["body", "spans", 1, *place])
    number = await post(http, "/spans/next", dict(zip(("rollout_id", "attempt_id"), ids, strict=1)))
    assert number.json() == {"sequence_id": 1}
    with pytest.raises(ValidationError, match=r"\S"):
        Span(**bad)


async def test_the_largest_sequence_id_leaves_room_for_more(http: httpx.AsyncClient) -> None:
    rollout = (await post(http, "/rollouts", {"input": 1})).json()
    ids = {"rollout_id": rollout["rollout_id"], "attempt_id": rollout["attempt"]["attempt_id"]}
    stored = await post(http, "/spans", span_body(**ids, sequence_id=MAX_SEQUENCE_ID))
    assert stored.status_code == 201
    number = (await post(http, "/spans/next", ids)).json()["sequence_id"]
    assert MAX_SEQUENCE_ID < number < 2**63


@pytest.mark.parametrize("query", PAGE_FAULTS)
@pytest.mark.parametrize("path", ["/rollouts", "/workers", "/resources", "/spans?rollout_id=r"])
async def test_pages(http: httpx.AsyncClient, path: str, query: str) -> None:
    answer = await http.get(f"{API}{path}{'&' if '?' in path else '?'}{query}")
    assert "less than or equal" in fault(answer, ["query", query.partition("=")[0]])


async def test_a_dequeue_takes_at_most_what_there_is(http: httpx.AsyncClient) -> None:
    await post(http, "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]})
    answer = await post(http, "/queues/rollouts/dequeue", {"limit": 2**63})
    assert "less than or equal" in fault(answer, ["body", "limit"])
    for found in (1, 0):
        answer = await post(http, "/queues/rollouts/dequeue", {"limit": 2**63 - 1})
        assert len(answer.json()) == found
    assert await InMemoryLightningStore().dequeue_many_rollouts(limit=10**30) == []


@pytest.mark.parametrize("time", [NAN, INFINITE, -INFINITE])
async def test_heartbeats(http: httpx.AsyncClient, time: float) -> None:
    rollout = (await post(http, "/rollouts", {"input": 1})).json()
    path = f"/rollouts/{rollout['rollout_id']}/attempts/latest"
    answer = await post(http, path, {"last_heartbeat_time": time})
    assert "finite number" in fault(answer, ["body", "last_heartbeat_time"])
    answer = await post(http, "/workers/w", {"heartbeat_stats": {"n": 2**63}})
    assert "64 bits" in fault(answer, ["body", "heartbeat_stats"])


async def test_new_ids_in_paths(http: httpx.AsyncClient) -> None:
    assert "1024" in fault(await http.post(f"{API}/workers/{LONG}"), ["path", "worker_id"])
    answer = await post(http, f"/resources/{LONG}", {})
    assert "1024" in fault(answer, ["path", "resources_id"])
    assert (await http.get(f"{API}/workers/{LONG}")).json() is None
    counter = {"rollout_id": LONG, "attempt_id": "a"}
    assert "1024" in fault(await post(http, "/spans/next", counter), ["body", "rollout_id"])


async def test_an_otlp_span_that_cannot_be_kept_is_rejected_alone(
    http: httpx.AsyncClient, shared: SharedServer
) -> None:
    rollout = await shared.switch.start_rollout(1)
    export = ExportTraceServiceRequest()
    spans = export.resource_spans.add().scope_spans.add().spans
    for name, span_id, key in (("good", b"1", "k"), ("long", b"2" * 600, "k"), ("nul", b"3", "\0")):
        span = spans.add(name=name, span_id=span_id, trace_id=b"1")
        for attribute, value in (
            ("agentlightning.rollout_id", rollout.rollout_id),
            ("agentlightning.attempt_id", rollout.attempt.attempt_id),
            ("agentlightning.span_sequence_id", str(10**30)),
            (key, "v"),
        ):
            span.attributes.add(key=attribute).value.string_value = value
    answer = await http.post(
        "/v1/traces",
        content=export.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
    )
    assert answer.status_code == 200
    assert b"'long': span_id: String should have at most 1024" in answer.content
    assert b"'nul': attributes" in answer.content
    (stored,) = await shared.switch.query_spans(rollout.rollout_id)
    assert (stored.name, stored.sequence_id) == ("good", 1)


@pytest.mark.parametrize("value", TEXTS_THAT_ARE_NONE)
async def test_half_a_surrogate_pair(value: Any) -> None:
    store = InMemoryLightningStore()
    with pytest.raises(ValidationError, match="half a surrogate pair"):
        await store.start_rollout(value)
    with pytest.raises(ValidationError, match="half a surrogate pair"):
        await store.enqueue_rollout(1, metadata={"v": value})
    queued = await store.enqueue_rollout(1)
    with pytest.raises(ValidationError, match="half a surrogate pair"):
        await store.update_rollout(queued.rollout_id, input=value)
    assert (await store.statistics()).get("total_rollouts") == 1


def test_what_can_be_kept_is_left_as_it_is() -> None:
    values: list[Any] = [
        {"": 1, "$set": 2, "a.b": "\0", "ü": ["ß", None, True, 1.5, (2**63 - 1, -(2**63))]},
        object,
        {1: {2: b"bytes"}},
    ]
    for value in values:
        assert storable(value) is value
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert storable(deep) is deep
    assert RolloutConfig(timeout_seconds=INFINITE).timeout_seconds == INFINITE
