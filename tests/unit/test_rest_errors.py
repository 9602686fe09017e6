"""What goes wrong, and how it is answered."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any, get_args
from unittest.mock import ANY

import httpx
import pytest
from rest_support import SharedServer, http_for, shared_server, span_body  # noqa: F401 - a fixture

from agl.errors import (
    BackendError,
    BackendUnavailableError,
    ConflictError,
    DuplicatedPrimaryKeyError,
    SpansEvictedError,
    StoreError,
    TooLargeError,
)
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.body import MAX_BODY_BYTES, MAX_GZIP_MEMBERS, unpack_gzip
from agl.store.rest.errors import MAX_REPEATED_BODY, HttpError
from agl.store.rest.wire import error_from_answer, status_of
from agl.types import AttributeValue

API = "/v1/agl"
JSON = {"content-type": "application/json"}


class FaultyStore(InMemoryLightningStore):
    """Raises what a test wants, where a test wants it."""

    fault: Exception = KeyError("surprise")

    async def get_latest_resources(self) -> Any:
        raise self.fault


@pytest.fixture
async def http(shared: SharedServer) -> AsyncGenerator[httpx.AsyncClient]:
    shared.fresh()
    async with shared.http() as client:
        yield client


UNKNOWN = [
    ("GET", "/rollouts/ro-x", None, "RolloutNotFoundError"),
    ("POST", "/rollouts/ro-x", {}, "RolloutNotFoundError"),
    ("POST", "/rollouts/ro-x/attempts", {}, "RolloutNotFoundError"),
    ("POST", "/rollouts/ro-x/attempts/at-x", {"status": "failed"}, "RolloutNotFoundError"),
    ("POST", "/spans", span_body("ro-x", "at-x"), "RolloutNotFoundError"),
]


@pytest.mark.parametrize(("method", "path", "body", "kind"), UNKNOWN)
async def test_unknown_ids_are_404(
    http: httpx.AsyncClient, method: str, path: str, body: Any, kind: str
) -> None:
    answer = await http.request(method, API + path, json=body)
    assert answer.status_code == 404
    assert answer.json() == {"detail": ANY, "error_type": kind, "error_id": ANY}
    assert "ro-x" in answer.json()["detail"]


async def test_an_unknown_attempt_is_404(http: httpx.AsyncClient) -> None:
    queued = await http.post(f"{API}/queues/rollouts/enqueue", json={"rollouts": [{"input": 1}]})
    rollout_id = queued.json()[0]["rollout_id"]
    for attempt_id in ("latest", "at-x"):
        path = f"{API}/rollouts/{rollout_id}/attempts/{attempt_id}"
        answer = await http.post(path, json={"status": "failed"})
        assert (answer.status_code, answer.json()["error_type"]) == (404, "AttemptNotFoundError")


BAD_RULES = [
    ("/rollouts?limit=0", "Limit must be greater than 0 or -1 for no limit"),
    ("/rollouts?limit=-2", "Limit must be greater than 0 or -1 for no limit"),
    ("/workers?offset=-1", "Offset must be greater than or equal to 0"),
    (
        "/rollouts?sort_by=nope",
        "Invalid sort_by: nope, allowed fields are: rollout_id, input, start_time, end_time, "
        "mode, resources_id, status, config, metadata",
    ),
    (
        "/rollouts?sort_by=attempt",
        "Invalid sort_by: attempt, allowed fields are: rollout_id, input, start_time, end_time, "
        "mode, resources_id, status, config, metadata",
    ),
    (
        "/resources?sort_by=x",
        "Invalid sort_by: x, allowed fields are: resources_id, create_time, update_time, version, "
        "resources",
    ),
]


@pytest.mark.parametrize(("path", "text"), BAD_RULES)
async def test_paging_and_sorting_rules_are_400(
    http: httpx.AsyncClient, path: str, text: str
) -> None:
    answer = await http.get(API + path)
    assert (answer.status_code, answer.json()) == (400, {"detail": text})


NEVER_NULL = [
    ("/rollouts/{r}", "status"),
    ("/rollouts/{r}", "config"),
    ("/rollouts/{r}/attempts/latest", "status"),
    ("/rollouts/{r}/attempts/latest", "worker_id"),
    ("/rollouts/{r}/attempts/latest", "last_heartbeat_time"),
    ("/rollouts/{r}/attempts/latest", "metadata"),
    ("/workers/w", "heartbeat_stats"),
]


@pytest.mark.parametrize(("path", "name"), NEVER_NULL)
async def test_a_null_where_none_is_allowed_is_400(
    http: httpx.AsyncClient, path: str, name: str
) -> None:
    started = (await http.post(f"{API}/rollouts", json={"input": 1})).json()
    answer = await http.post(API + path.format(r=started["rollout_id"]), json={name: None})
    text = f"{name} is invalid; it cannot be a null value."
    assert (answer.status_code, answer.json()) == (400, {"detail": text})


INVALID_QUERIES = [
    ("/rollouts?limit=many", "int_parsing", ["query", "limit"]),
    ("/rollouts?sort_order=up", "literal_error", ["query", "sort_order"]),
    ("/workers?filter_logic=xor", "literal_error", ["query", "filter_logic"]),
    ("/rollouts?status_in=", "literal_error", ["query", "status_in", 0]),
    ("/rollouts?status_in=queuing&status_in=x", "literal_error", ["query", "status_in", 1]),
    ("/spans", "missing", ["query", "rollout_id"]),
]


@pytest.mark.parametrize(("path", "kind", "place"), INVALID_QUERIES)
async def test_invalid_queries_are_422(
    http: httpx.AsyncClient, path: str, kind: str, place: list[Any]
) -> None:
    answer = await http.get(API + path)
    assert answer.status_code == 422
    problem = answer.json()["detail"][0]
    assert (problem["type"], problem["loc"]) == (kind, place)
    assert {"type", "loc", "msg", "input"} <= problem.keys()


INVALID_BODIES = [
    ("/queues/rollouts/enqueue", b'{"rollouts":[{"mode":"train"}]}', "missing",
     ["body", "rollouts", 0, "input"]),
    ("/queues/rollouts/enqueue", b"", "missing", ["body"]),
    ("/queues/rollouts/enqueue", b"null", "missing", ["body"]),
    ("/rollouts/search", b"", "missing", ["body"]),
    ("/rollouts/ro-x", b"", "missing", ["body"]),
    ("/rollouts", b'{"input": 1,}', "json_invalid", ["body", ANY]),
    ("/rollouts", b'{"input"', "json_invalid", ["body", 7]),
    ("/rollouts", b"\xff\xfe", "json_invalid", ["body", ANY]),
    ("/rollouts", b"[" * 100_000, "json_invalid", ["body", ANY]),
    ("/rollouts", b"[1]", ANY, ["body"]),
    ("/rollouts", b'{"input":1,"config":{"max_attempts":0}}', "greater_than_equal",
     ["body", "config", "max_attempts"]),
    ("/rollouts", b'{"input":1,"mode":"x"}', "literal_error", ["body", "mode"]),
    ("/queues/rollouts/dequeue", b'{"limit":"x"}', "int_parsing", ["body", "limit"]),
    ("/workers/w", b'{"heartbeat_stats":[1]}', "dict_type", ["body", "heartbeat_stats"]),
    ("/resources", b'{"a":{"resource_type":"cake"}}', "union_tag_invalid", ["body", "a"]),
    ("/spans", json.dumps({k: v for k, v in span_body("r", "a").items() if k != "events"}).encode(),
     "missing", ["body", "events"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "kind", "place"), INVALID_BODIES)
async def test_invalid_bodies_are_422(
    http: httpx.AsyncClient, path: str, body: bytes, kind: str, place: list[Any]
) -> None:
    answer = await http.post(API + path, content=body, headers=JSON)
    assert answer.status_code == 422, answer.text
    problem = answer.json()["detail"][0]
    assert (problem["type"], problem["loc"]) == (kind, place)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_of_another_type_is_422(http: httpx.AsyncClient, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    answer = await http.post(f"{API}/rollouts", content=b'{"input": 1}', headers=headers)
    assert answer.status_code == 422
    problem = answer.json()["detail"][0]
    assert (problem["type"], problem["loc"]) == ("model_attributes_type", ["body"])
    assert problem["input"] == '{"input": 1}'


async def test_an_answer_to_an_invalid_body_stays_small(http: httpx.AsyncClient) -> None:
    body = {"rollouts": [{"mode": "x" * 1000, "metadata": {"a": "y" * 10_000}}] * 500}
    answer = await http.post(f"{API}/queues/rollouts/enqueue", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 20_000


MANY = 20_000
MANY_FAULTS = [
    ("/waits/rollouts", {"rollout_ids": [1] * MANY}, ["body", "rollout_ids", 0]),
    ("/rollouts/search", {"status_in": ["x"] * MANY}, ["body", "status_in", 0]),
    ("/rollouts/search", {"rollout_id_in": [1] * MANY}, ["body", "rollout_id_in", 0]),
    ("/workers/search", {"status_in": ["x"] * MANY}, ["body", "status_in", 0]),
    ("/queues/rollouts/enqueue", {"rollouts": [{}] * MANY}, ["body", "rollouts", 0, "input"]),
    ("/spans/batch", {"spans": [1] * MANY}, ["body", "spans", 0]),
    ("/resources", {str(key): {} for key in range(MANY)}, ["body", "0"]),
    ("/resources/rs-1", {str(key): {} for key in range(MANY)}, ["body", "0"]),
    (
        "/rollouts",
        {"input": 1, "config": {"retry_condition": ["x"] * MANY}},
        ["body", "config", "retry_condition", 0],
    ),
]
MANY_SPAN_FAULTS = [
    ("attributes", {str(key): None for key in range(MANY)}, ["body", "attributes", "0", ANY]),
    ("attributes", {"a": [None] * MANY}, ["body", "attributes", "a", ANY]),
    ("events", [1] * MANY, ["body", "events", 0]),
    ("links", [1] * MANY, ["body", "links", 0]),
    ("resource", {"attributes": {"a": [None] * MANY}, "schema_url": ""},
     ["body", "resource", "attributes", "a", ANY]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "place"),
    MANY_FAULTS
    + [
        ("/spans", span_body("r", "a") | {name: value}, place)
        for name, value, place in MANY_SPAN_FAULTS
    ],
)
async def test_of_many_wrong_items_only_the_first_is_described(
    http: httpx.AsyncClient, path: str, body: Any, place: list[Any]
) -> None:
    answer = await http.post(API + path, json=body)
    assert answer.status_code == 422
    problems = answer.json()["detail"]
    assert problems[0]["loc"][: len(place)] == place
    assert len(problems) <= len(get_args(AttributeValue))


async def test_a_large_body_is_not_repeated_for_each_missing_field(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.post(f"{API}/spans", json={"x": "y" * 2**20})
    assert answer.status_code == 422
    problems = answer.json()["detail"]
    assert ["body", "rollout_id"] in [problem["loc"] for problem in problems]
    assert {problem["input"] for problem in problems} == {"(the body is too large to be repeated)"}


async def test_a_large_body_that_lacks_fields_is_not_repeated(http: httpx.AsyncClient) -> None:
    """Each missing field would repeat all that was sent."""
    body = b'{"x": [' + b"1," * 1_000_000 + b"1]}"
    answer = await http.post(f"{API}/spans", content=body, headers=JSON)
    assert answer.status_code == 422
    problems = answer.json()["detail"]
    assert len(problems) > 10
    assert {problem["input"] for problem in problems} == {"(the body is too large to be repeated)"}


async def test_large_bodies_are_read_as_small_ones_are(http: httpx.AsyncClient) -> None:
    filler = b" " * MAX_REPEATED_BODY
    started = (await http.post(f"{API}/rollouts", json={"input": 1})).json()
    span = span_body(started["rollout_id"], started["attempt"]["attempt_id"], extra={"z": [1]})
    span["attributes"] = {"s": "x", "b": True, "i": 1, "f": 1.5, "l": ["a"], "n": [1, 2]}
    content = json.dumps(span).encode() + filler
    stored = await http.post(f"{API}/spans", content=content, headers=JSON)
    assert (stored.status_code, stored.json()) == (201, span)
    broken = await http.post(f"{API}/spans", content=b'{"x"' + filler, headers=JSON)
    assert broken.json()["detail"][0]["type"] == "json_invalid"


async def test_the_place_in_json_of_very_many_lines_is_not_counted(
    http: httpx.AsyncClient,
) -> None:
    for lines, place in ((3, 3), (1_000_000, 0)):
        answer = await http.post(f"{API}/rollouts", content=b"\n" * lines + b"]", headers=JSON)
        (problem,) = answer.json()["detail"]
        assert (problem["type"], problem["loc"]) == ("json_invalid", ["body", place])
        assert f"line {lines + 1} column 1" in problem["ctx"]["error"]


BAD_PACKING = [
    (b"no gzip at all", "gzip", 400),
    (gzip.compress(b'{"input": 1}', mtime=0)[:-9], "gzip", 400),
    (gzip.compress(b'{"input": 1}', mtime=0) + b"rubbish", "gzip", 400),
    (b'{"input": 1}', "br", 415),
]


def test_a_body_of_several_gzip_members_is_unpacked() -> None:
    members = gzip.compress(b"a" * 200_000, mtime=0) + gzip.compress(b"b", mtime=0)
    assert unpack_gzip(members) == b"a" * 200_000 + b"b"
    assert unpack_gzip(gzip.compress(b"", mtime=0) * MAX_GZIP_MEMBERS) == b""


def test_a_body_of_nothing_but_gzip_members_is_refused_soon() -> None:
    members = gzip.compress(b"", mtime=0) * 100_000
    with pytest.raises(HttpError, match="Content-Encoding: more than 1000 gzip members"):
        unpack_gzip(members)


@pytest.mark.parametrize(("body", "encoding", "status"), BAD_PACKING)
async def test_broken_packing_is_4xx_and_names_the_header(
    http: httpx.AsyncClient, body: bytes, encoding: str, status: int
) -> None:
    answer = await http.post(
        f"{API}/rollouts", content=body, headers=JSON | {"content-encoding": encoding}
    )
    assert answer.status_code == status
    assert answer.json()["detail"].startswith("Content-Encoding")


async def test_a_body_beyond_the_limit_is_413(http: httpx.AsyncClient) -> None:
    bomb = gzip.compress(b'{"input": "' + b"0" * MAX_BODY_BYTES + b'"}', compresslevel=1, mtime=0)
    packed = await http.post(
        f"{API}/rollouts", content=bomb, headers=JSON | {"content-encoding": "gzip"}
    )
    assert packed.status_code == 413
    declared = await raw_exchange(
        http,
        f"POST {API}/rollouts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode(),
    )
    assert b" 413 " in declared


async def test_a_chunked_body_beyond_the_limit_is_413(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    answer = await http.post(f"{API}/rollouts", content=chunks(), headers=JSON)
    assert answer.status_code == 413


async def raw_exchange(http: httpx.AsyncClient, request: bytes) -> bytes:
    """The head of the answer to bytes that no HTTP client would send."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    writer.close()
    await writer.wait_closed()
    return head


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("POST", "/nothing"),
        ("GET", "/v1/agl/nothing"),
        ("POST", "/v1/agl/nothing/at/all"),
        ("GET", "/v1/agl/rollouts/"),
        ("GET", "/"),
        ("GET", "/v1/prometheus/"),
    ],
)
async def test_unknown_paths_are_404(http: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("HEAD", "/v1/agl/health", "GET"),
        ("OPTIONS", "/v1/agl/health", "GET"),
        ("DELETE", "/v1/agl/rollouts", "GET, POST"),
        ("PUT", "/v1/agl/rollouts/ro-1", "GET, POST"),
        ("GET", "/v1/agl/rollouts/ro-1/attempts/at-1", "POST"),
        ("GET", "/v1/traces", "POST"),
    ],
)
async def test_other_methods_are_405_and_told_what_is_allowed(
    http: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    if method != "HEAD":
        assert answer.json() == {"detail": "Method Not Allowed"}


async def test_an_unexpected_error_is_500_with_the_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with http_for(FaultyStore()) as http:
        with caplog.at_level(logging.ERROR, logger="agl.store.server"):
            answer = await http.get(f"{API}/resources/latest")
    assert answer.status_code == 500
    assert answer.json() == {
        "detail": "Internal server error",
        "error_type": "KeyError",
        "error_id": ANY,
    }
    assert answer.json()["error_id"] in caplog.text
    assert "surprise" in caplog.text
    assert "Traceback" in caplog.text


async def test_tracebacks_are_answered_only_on_request() -> None:
    async with http_for(FaultyStore(), debug_errors=True) as http:
        answer = await http.get(f"{API}/resources/latest")
    assert "KeyError: 'surprise'" in answer.json()["traceback"]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ConflictError("taken"), 409),
        (DuplicatedPrimaryKeyError("taken"), 409),
        (SpansEvictedError("gone"), 410),
        (StoreError("odd"), 400),
        (TooLargeError("16 MiB"), 413),
        (BackendError("refused"), 503),
        (BackendUnavailableError("away"), 503),
    ],
)
async def test_store_errors_have_their_status_and_come_back_as_themselves(
    fault: StoreError, status: int
) -> None:
    store = FaultyStore()
    store.fault = fault
    async with http_for(store) as http:
        answer = await http.get(f"{API}/resources/latest")
    assert (answer.status_code, status_of(fault)) == (status, status)
    returned = error_from_answer(answer.status_code, answer.json())
    assert type(returned) is type(fault)
    assert str(returned) == str(fault)


@pytest.mark.parametrize(
    ("fault", "retry_after"), [(BackendUnavailableError("away"), "1"), (BackendError("no"), None)]
)
async def test_a_database_that_comes_back_is_worth_another_try(
    fault: StoreError, retry_after: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore()
    store.fault = fault
    async with http_for(store) as http:
        answer = await http.get(f"{API}/resources/latest")
    assert answer.headers.get("retry-after") == retry_after
    assert [r.levelname for r in caplog.records if str(fault) in r.getMessage()] == ["ERROR"]


async def test_the_text_of_a_validation_error_names_the_field() -> None:
    detail = [{"type": "missing", "loc": ["body", "input"], "msg": "Field required"}]
    error = error_from_answer(422, {"detail": detail})
    assert str(error) == "body.input: Field required"
    assert error_from_answer(404, {"detail": "Not Found"}) is None
    assert error_from_answer(404, {}) is None
