"""What 0.3 answers in the corners that its clients meet, one fact a row.

Recorded examples of whole endpoints are in ``tests/unit/test_rest_examples.py``; differences on
purpose are in ``docs/compatibility.md``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from rest_support import SharedServer, shared_server, span_body  # noqa: F401 - a fixture

API = "/v1/agl"
LISTS = ["/rollouts", "/workers", "/resources", "/rollouts/ro-x/attempts", "/spans?rollout_id=ro-x"]
BAD_LIMIT = "Limit must be greater than 0 or -1 for no limit"
BAD_OFFSET = "Offset must be greater than or equal to 0"
EMPTY = {"items": [], "limit": -1, "offset": 0, "total": 0}
ROLLOUT_FIELDS = (
    "rollout_id, input, start_time, end_time, mode, resources_id, status, config, metadata"
)
WORKER_FIELDS = [
    *("worker_id", "status", "heartbeat_stats", "last_heartbeat_time", "last_dequeue_time"),
    *("last_busy_time", "last_idle_time", "current_rollout_id", "current_attempt_id"),
]
STATISTICS = {
    *("name", "total_rollouts", "total_attempts", "total_spans", "total_resources"),
    *("total_workers", "uptime", "total_span_bytes", "eviction_threshold_bytes"),
    *("safe_threshold_bytes", "memory_capacity_bytes"),
}


@pytest.fixture
async def http(shared: SharedServer) -> AsyncGenerator[httpx.AsyncClient]:
    shared.fresh()
    async with shared.http() as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str, body: Any = ...) -> tuple[int, Any]:
    """Status and JSON of a GET, or of a POST when there is a body (``None`` sends none)."""
    if body is ...:
        answer = await http.get(API + path)
    else:
        answer = await http.post(API + path, **({} if body is None else {"json": body}))
    return answer.status_code, answer.json()


def with_query(path: str, query: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}{query}"


@pytest.mark.parametrize("path", LISTS)
async def test_pages(http: httpx.AsyncClient, path: str) -> None:
    for limit in ("0", "-2"):
        answer = await ask(http, with_query(path, f"limit={limit}"))
        assert answer == (400, {"detail": BAD_LIMIT})
    assert await ask(http, with_query(path, "offset=-1")) == (400, {"detail": BAD_OFFSET})
    for query, kind in (("limit=x", "int_parsing"), ("sort_order=up", "literal_error")):
        status, body = await ask(http, with_query(path, query))
        assert (status, body["detail"][0]["type"]) == (422, kind)
    status, body = await ask(http, with_query(path, "sort_by=nope"))
    assert status == 400
    assert body["detail"].startswith("Invalid sort_by: nope, allowed fields are: ")
    assert await ask(http, with_query(path, "offset=9")) == (200, {**EMPTY, "offset": 9})
    assert await ask(http, path) == (200, EMPTY)


@pytest.mark.parametrize("path", ["/rollouts", "/workers", "/spans?rollout_id=ro-x"])
async def test_filter_logic_is_and_or_or(http: httpx.AsyncClient, path: str) -> None:
    status, body = await ask(http, with_query(path, "filter_logic=xor"))
    assert (status, body["detail"][0]["type"]) == (422, "literal_error")


@pytest.mark.parametrize(
    "path",
    [
        *("/rollouts", "/rollouts/search", "/workers/search", "/spans/search", "/spans"),
        *("/rollouts/ro-x/attempts/search", "/rollouts/ro-x", "/rollouts/ro-x/attempts/at-x"),
        *("/resources", "/resources/rs-x", "/spans/next", "/waits/rollouts"),
        "/queues/rollouts/enqueue",
    ],
)
async def test_a_body_that_must_be_there(http: httpx.AsyncClient, path: str) -> None:
    status, body = await ask(http, path, None)
    assert status == 422
    assert body["detail"][0]["type"] == "missing"
    assert body["detail"][0]["loc"] == ["body"]


async def test_a_body_that_need_not_be_there(http: httpx.AsyncClient) -> None:
    for body in (None, {}, {"limit": 0}, {"limit": -5}):
        assert await ask(http, "/queues/rollouts/dequeue", body) == (200, [])
    null = await http.post(
        f"{API}/queues/rollouts/dequeue",
        content=b"null",
        headers={"content-type": "application/json"},
    )
    assert (null.status_code, null.json()) == (200, [])
    assert (await ask(http, "/workers/w", None))[1]["last_heartbeat_time"] is not None
    rollout = (await ask(http, "/rollouts", {"input": None}))[1]
    path = f"/rollouts/{rollout['rollout_id']}/attempts"
    assert (await ask(http, path, None))[1]["attempt"]["worker_id"] is None


async def test_lists_in_queries_are_repeated_keys(http: httpx.AsyncClient) -> None:
    await ask(http, "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]})
    await ask(http, "/rollouts", {"input": 2})
    found = await ask(http, "/rollouts?status_in=queuing&status_in=preparing")
    assert found[1]["total"] == 2
    for query in ("status_in=", "status_in=queuing,preparing"):
        status, body = await ask(http, f"/rollouts?{query}")
        assert (status, body["detail"][0]["type"]) == (422, "literal_error")
    assert await ask(http, "/rollouts/search", {"status_in": []}) == (200, EMPTY)
    assert (await ask(http, "/rollouts/search", {"status_in": None}))[1]["total"] == 2
    status, body = await ask(http, "/rollouts?sort_by=attempt")
    text = f"Invalid sort_by: attempt, allowed fields are: {ROLLOUT_FIELDS}"
    assert (status, body) == (400, {"detail": text})


@pytest.mark.parametrize(
    ("path", "stored", "refused"),
    [
        ("", ["input", "mode", "resources_id", "metadata"], ["status", "config"]),
        ("/attempts/latest", [], ["status", "worker_id", "last_heartbeat_time", "metadata"]),
    ],
)
async def test_null_and_not_given(
    http: httpx.AsyncClient, path: str, stored: list[str], refused: list[str]
) -> None:
    given = {"input": 1, "mode": "val", "resources_id": "rs-x", "metadata": {"a": 1}}
    rollout = (await ask(http, "/rollouts", given))[1]
    path = f"/rollouts/{rollout['rollout_id']}{path}"
    assert (await ask(http, path, {}))[0] == 200
    for name in refused:
        text = f"{name} is invalid; it cannot be a null value."
        assert await ask(http, path, {name: None}) == (400, {"detail": text})
    for name in stored:
        status, body = await ask(http, path, {name: None})
        assert (status, body[name]) == (200, None)
        assert "attempt" not in body
    text = "heartbeat_stats is invalid; it cannot be a null value."
    assert await ask(http, "/workers/w", {"heartbeat_stats": None}) == (400, {"detail": text})


async def test_workers_follow_what_they_do(http: httpx.AsyncClient) -> None:
    await ask(http, "/queues/rollouts/dequeue", {"worker_id": "polls"})
    await ask(http, "/queues/rollouts/dequeue", {"worker_id": "nothing", "limit": 0})
    await ask(http, "/rollouts", {"input": 1, "worker_id": "starts"})
    await ask(http, "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]})
    await ask(http, "/queues/rollouts/dequeue", {"worker_id": "takes"})
    found = {name: (await ask(http, f"/workers/{name}"))[1] for name in ("polls", "nothing")}
    for worker in found.values():
        assert list(worker) == WORKER_FIELDS
        assert worker["status"] == "idle"
        assert worker["last_dequeue_time"] == worker["last_idle_time"]
    for name, dequeued in (("starts", False), ("takes", True)):
        worker = (await ask(http, f"/workers/{name}"))[1]
        assert worker["status"] == "busy"
        assert worker["current_attempt_id"].startswith("at-")
        assert (worker["last_dequeue_time"] is not None) == dequeued
        assert worker["last_heartbeat_time"] is None


async def test_names_that_paths_take_for_themselves(http: httpx.AsyncClient) -> None:
    """There is no search of resources, so this updates some called ``search``."""
    assert (await ask(http, "/resources/search", {}))[1]["resources_id"] == "search"
    assert (await ask(http, "/resources/search"))[1]["version"] == 1
    assert await ask(http, "/rollouts/ro-x/attempts/latest") == (200, None)
    assert await ask(http, "/workers/latest") == (200, None)


@pytest.mark.parametrize("missing", [*span_body("r", "a")])
async def test_every_field_of_a_span_is_required(http: httpx.AsyncClient, missing: str) -> None:
    body = {name: value for name, value in span_body("r", "a").items() if name != missing}
    status, answer = await ask(http, "/spans", body)
    assert status == 422
    assert [item["type"] for item in answer["detail"]] == ["missing"]
    assert answer["detail"][0]["loc"] == ["body", missing]


@pytest.mark.parametrize(
    ("query", "total"),
    [
        *(("trace_id=" + "0" * 31 + "a", 1), ("trace_id_contains=0a", 1), ("span_id=1", 0)),
        *(("span_id_contains=01", 1), ("parent_id=x", 0), ("parent_id_contains=x", 0)),
        *(("name=demo", 1), ("name=dem", 0), ("name_contains=em", 1), ("name_contains=EM", 0)),
        *(("filter_logic=or", 1), ("filter_logic=or&name=x&span_id_contains=01", 1)),
        *(("attempt_id=latest", 1), ("attempt_id=at-x", 0)),
    ],
)
async def test_filters_of_spans(http: httpx.AsyncClient, query: str, total: int) -> None:
    rollout = (await ask(http, "/rollouts", {"input": 1}))[1]
    ids = rollout["rollout_id"], rollout["attempt"]["attempt_id"]
    body = span_body(*ids, custom_extra={"z": 1})
    assert await ask(http, "/spans", body) == (201, body)
    assert await ask(http, "/spans", body) == (201, None)
    found = (await ask(http, f"/spans?rollout_id={ids[0]}&{query}"))[1]
    assert found["total"] == total
    assert found["items"] == [body] * total


async def test_the_rest(http: httpx.AsyncClient) -> None:
    assert set((await ask(http, "/statistics"))[1]) >= STATISTICS
    assert await ask(http, "/nope") == (404, {"detail": "Not Found"})
    assert await ask(http, "/rollouts/") == (404, {"detail": "Not Found"})
    assert (await http.head(f"{API}/health")).status_code == 405
    assert (await http.options(f"{API}/rollouts")).status_code == 405
    text = await http.post(
        f"{API}/rollouts", content=b'{"input":1}', headers={"content-type": "text/plain"}
    )
    assert text.json()["detail"][0]["type"] == "model_attributes_type"
    unknown = {"rollout_ids": ["ro-x"], "timeout": None}
    assert await ask(http, "/waits/rollouts", unknown) == (200, [])
    counter = {"rollout_id": "ro-x", "attempt_id": "at-x"}
    assert await ask(http, "/spans/next", counter) == (200, {"sequence_id": 1})
    assert await ask(http, "/queues/rollouts/enqueue", {"rollouts": []}) == (201, [])
    status, body = await ask(http, "/resources", {"a": {"resource_type": "x"}})
    assert (status, body["detail"][0]["type"]) == (422, "union_tag_invalid")
    for signal in ("metrics", "logs", "development/profiles"):
        answer = await http.post(f"/v1/{signal}", content=b"x")
        assert (answer.status_code, answer.content) == (501, b"")
