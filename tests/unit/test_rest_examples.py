"""The recorded examples of the REST interface, one test for each group of endpoints."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from rest_support import SharedServer, http_for, shared_server, span_body  # noqa: F401 - a fixture

API = "/v1/agl"
NO_CONFIG = {
    "timeout_seconds": None,
    "unresponsive_seconds": None,
    "max_attempts": 1,
    "retry_condition": [],
}


@pytest.fixture
async def http(shared: SharedServer) -> AsyncGenerator[httpx.AsyncClient]:
    shared.fresh()
    async with shared.http() as client:
        yield client


async def post(http: httpx.AsyncClient, path: str, body: Any, status: int = 200) -> Any:
    answer = await http.post(API + path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def get(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(API + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rollout(**changes: Any) -> dict[str, Any]:
    return {
        "rollout_id": ANY,
        "input": None,
        "start_time": ANY,
        "end_time": None,
        "mode": None,
        "resources_id": None,
        "status": "queuing",
        "config": NO_CONFIG,
        "metadata": {},
    } | changes


def attempt(rollout_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "attempt_id": ANY,
        "sequence_id": 1,
        "start_time": ANY,
        "end_time": None,
        "status": "preparing",
        "worker_id": None,
        "last_heartbeat_time": None,
        "metadata": None,
    } | changes


def page(items: list[Any], limit: int = -1, offset: int = 0, total: int | None = None) -> Any:
    return {
        "items": items,
        "limit": limit,
        "offset": offset,
        "total": len(items) if total is None else total,
    }


async def test_health_tells_which_server_it_is(http: httpx.AsyncClient) -> None:
    first, second = await get(http, "/health"), await get(http, "/health")
    assert first == {
        "status": "ok",
        "instance_id": ANY,
        "version": "0.1.0",
        "features": [
            "spans-batch",
            "sequence-ids-batch",
            "attempts-batch",
            "idempotency",
            "long-waits",
        ],
    }
    assert first == second
    async with http_for() as other:
        assert (await get(other, "/health"))["instance_id"] != first["instance_id"]


async def test_statistics(http: httpx.AsyncClient) -> None:
    await post(http, "/rollouts", {"input": 1}, 201)
    found = await get(http, "/statistics")
    assert found["name"] == "InMemoryLightningStore"
    assert (found["total_rollouts"], found["total_attempts"], found["total_spans"]) == (1, 1, 0)
    assert {"total_span_bytes", "eviction_threshold_bytes", "uptime"} <= found.keys()


async def test_enqueue_and_dequeue(http: httpx.AsyncClient) -> None:
    first = {
        "input": "b",
        "mode": "val",
        "resources_id": "does-not-exist",
        "config": {
            "timeout_seconds": 60,
            "max_attempts": 2,
            "retry_condition": ["failed", "timeout"],
        },
        "metadata": {"k": [1]},
    }
    config = NO_CONFIG | first["config"] | {"timeout_seconds": 60.0}
    stored = await post(http, "/queues/rollouts/enqueue", {"rollouts": [first, {"input": 0}]}, 201)
    assert stored == [rollout(**(first | {"config": config})), rollout(input=0)]
    assert [item["rollout_id"][:3] for item in stored] == ["ro-", "ro-"]
    assert await post(http, "/queues/rollouts/enqueue", {"rollouts": []}, 201) == []

    rollout_id = stored[0]["rollout_id"]
    claimed = await post(http, "/queues/rollouts/dequeue", {"worker_id": "Worker-0"})
    assert claimed == [
        stored[0] | {"status": "preparing", "attempt": attempt(rollout_id, worker_id="Worker-0")}
    ]
    assert len(await post(http, "/queues/rollouts/dequeue", None)) == 1
    without_body = await http.post(f"{API}/queues/rollouts/dequeue")
    assert (without_body.status_code, without_body.json()) == (200, [])
    assert await post(http, "/queues/rollouts/dequeue", {"limit": 0}) == []
    assert await post(http, "/queues/rollouts/dequeue", {"limit": 3}) == []


async def test_start_query_get_and_update_a_rollout(http: httpx.AsyncClient) -> None:
    asked = {
        "input": {"task": "t"},
        "mode": "train",
        "worker_id": "Worker-1",
        "config": {"unresponsive_seconds": 30},
    }
    started = await post(http, "/rollouts", asked, 201)
    rollout_id = started["rollout_id"]
    expected = rollout(
        input={"task": "t"},
        mode="train",
        status="preparing",
        config=NO_CONFIG | {"unresponsive_seconds": 30.0},
        attempt=attempt(rollout_id, worker_id="Worker-1"),
    )
    assert started == expected
    assert started["start_time"] == started["attempt"]["start_time"]

    assert await get(http, f"/rollouts/{rollout_id}") == started
    newest_first = "/rollouts?limit=1&sort_by=start_time&sort_order=desc"
    assert await get(http, newest_first) == page([started], limit=1)
    search = {"status_in": ["preparing"], "rollout_id_in": [rollout_id], "limit": 1}
    assert await post(http, "/rollouts/search", search) == page([started], limit=1)
    assert await post(http, "/rollouts/search", {"status_in": []}) == page([])
    repeated = f"/rollouts?status_in=queuing&status_in=preparing&rollout_id_contains={rollout_id}"
    assert await get(http, repeated) == page([started])
    assert await get(http, "/rollouts?rollout_id_in=a,b") == page([])

    plain = {key: value for key, value in started.items() if key != "attempt"}
    changed = plain | {"metadata": {"a": 1}, "mode": None}
    changes = {"metadata": {"a": 1}, "mode": None}
    assert await post(http, f"/rollouts/{rollout_id}", changes) == changed
    assert await post(http, f"/rollouts/{rollout_id}", {}) == changed
    assert await post(http, f"/rollouts/{rollout_id}", {"input": None}) == changed | {"input": None}


async def test_attempts(http: httpx.AsyncClient) -> None:
    started = await post(http, "/rollouts", {"input": 1}, 201)
    rollout_id, first = started["rollout_id"], started["attempt"]["attempt_id"]
    root = f"/rollouts/{rollout_id}/attempts"
    second = await post(http, root, {"worker_id": "Worker-2"}, 201)
    assert second["attempt"] == attempt(rollout_id, sequence_id=2, worker_id="Worker-2")
    without_body = await http.post(API + root)
    assert without_body.status_code == 201
    third = without_body.json()["attempt"]

    by_worker = await get(http, f"{root}?sort_by=worker_id&sort_order=desc&limit=1")
    assert by_worker == page([second["attempt"]], limit=1, total=3)
    searched = await post(http, f"{root}/search", {"limit": 1, "offset": 1})
    assert searched == page([second["attempt"]], limit=1, offset=1, total=3)
    assert await get(http, f"{root}/latest") == third
    assert await get(http, "/rollouts/ro-unknown/attempts/latest") is None
    assert await get(http, "/rollouts/ro-unknown/attempts") == page([])

    changes = {
        "status": "running",
        "worker_id": "Worker-1",
        "last_heartbeat_time": 123.5,
        "metadata": {"x": 1},
    }
    updated = await post(http, f"{root}/{first}", changes)
    assert updated == attempt(rollout_id, attempt_id=first, **changes)
    finished = await post(http, f"{root}/latest", {"status": "succeeded"})
    assert finished["end_time"] is not None
    owner = await get(http, f"/rollouts/{rollout_id}")
    assert owner["status"] == "succeeded"
    assert owner["end_time"] >= finished["end_time"]


async def test_workers(http: httpx.AsyncClient) -> None:
    new = await post(http, "/workers/W-new", {"heartbeat_stats": {"cpu": 1}})
    empty = {
        "worker_id": "W-new",
        "status": "unknown",
        "heartbeat_stats": {"cpu": 1},
        "last_heartbeat_time": ANY,
        "last_dequeue_time": None,
        "last_busy_time": None,
        "last_idle_time": None,
        "current_rollout_id": None,
        "current_attempt_id": None,
    }
    assert new == empty
    again = await http.post(f"{API}/workers/W-new")
    assert again.json()["heartbeat_stats"] == {"cpu": 1}
    assert again.json()["last_heartbeat_time"] >= new["last_heartbeat_time"]

    await post(http, "/queues/rollouts/dequeue", {"worker_id": "W-idle"})
    started = await post(http, "/rollouts", {"input": 1, "worker_id": "W-busy"}, 201)
    busy = await get(http, "/workers/W-busy")
    assert busy["current_attempt_id"] == started["attempt"]["attempt_id"]
    listed = "/workers?status_in=idle&status_in=busy&worker_id_contains=W-&sort_by=worker_id"
    assert await get(http, f"{listed}&limit=1&offset=0") == page([busy], limit=1, total=2)
    idle = await post(http, "/workers/search", {"status_in": ["idle"]})
    assert [item["worker_id"] for item in idle["items"]] == ["W-idle"]
    either = {"status_in": ["idle"], "worker_id_contains": "new", "filter_logic": "or"}
    assert (await post(http, "/workers/search", either))["total"] == 2
    assert await get(http, "/workers/none") is None


async def test_resources(http: httpx.AsyncClient) -> None:
    assert await get(http, "/resources/latest") is None
    named = {
        "main_llm": {
            "resource_type": "llm",
            "endpoint": "http://127.0.0.1:9000/v1",
            "model": "m-1",
            "sampling_parameters": {"temperature": 0.2},
        },
        "prompt": {"resource_type": "prompt_template", "template": "Hi {n}", "engine": "f-string"},
        "px": {
            "resource_type": "proxy_llm",
            "endpoint": "http://h/v1",
            "model": "m",
            "api_key": "k",
        },
    }
    completed = {
        "main_llm": named["main_llm"] | {"api_key": None},
        "prompt": named["prompt"],
        "px": named["px"] | {"sampling_parameters": {}},
    }
    added = await post(http, "/resources", named, 201)
    assert added == {
        "resources_id": ANY,
        "create_time": ANY,
        "update_time": added["create_time"],
        "version": 1,
        "resources": completed,
    }
    first = await post(http, "/resources/rs-custom1", named)
    second = await post(http, "/resources/rs-custom1", {"prompt": named["prompt"]})
    assert (first["version"], second["version"]) == (1, 2)
    assert second["create_time"] == first["create_time"]
    newest = "/resources?limit=1&sort_by=update_time&sort_order=desc&resources_id_contains=rs-"
    assert await get(http, newest) == page([second], limit=1, total=2)
    assert await get(http, "/resources?resources_id=rs-custom1") == page([second])
    assert await get(http, "/resources/latest") == second
    assert await get(http, "/resources/rs-custom1") == second
    assert await get(http, "/resources/missing") is None
    queued = await post(http, "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]}, 201)
    assert queued[0]["resources_id"] == "rs-custom1"


async def test_spans(http: httpx.AsyncClient) -> None:
    started = await post(http, "/rollouts", {"input": 1}, 201)
    rollout_id, attempt_id = started["rollout_id"], started["attempt"]["attempt_id"]
    body = span_body(rollout_id, attempt_id, custom_extra={"z": 1})
    assert await post(http, "/spans", body, 201) == body
    assert await post(http, "/spans", body, 201) is None
    owner = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    assert await post(http, "/spans/next", owner) == {"sequence_id": 6}
    other = span_body(rollout_id, attempt_id, span_id="2", name="other")
    assert await post(http, "/spans/batch", {"spans": [body, other, other]}, 201) == [other]
    assert await post(http, "/spans/search", owner | {"name": "other"}) == page([other])
    assert await post(http, "/spans/next", {"rollout_id": "x", "attempt_id": "y"}) == {
        "sequence_id": 1
    }
    assert await post(http, "/spans/search", owner | {"name_contains": "dem"}) == page([body])
    assert await post(http, "/spans/search", owner | {"name": "none"}) == page([])
    latest = f"/spans?rollout_id={rollout_id}&attempt_id=latest"
    assert await get(http, latest) == page([body, other])
    assert await get(http, f"{latest}&filter_logic=or") == page([body, other])
    assert await get(http, "/spans?rollout_id=ro-unknown") == page([])


async def test_waits_answer_with_the_finished_only(http: httpx.AsyncClient) -> None:
    done = await post(http, "/rollouts", {"input": 1}, 201)
    open_ = await post(http, "/rollouts", {"input": 2}, 201)
    finish = f"/rollouts/{done['rollout_id']}/attempts/latest"
    await post(http, finish, {"status": "succeeded"})
    asked = {"rollout_ids": [done["rollout_id"], "ro-missing", open_["rollout_id"]], "timeout": 0.0}
    found = await post(http, "/waits/rollouts", asked)
    assert [(item["rollout_id"], item["status"]) for item in found] == [
        (done["rollout_id"], "succeeded")
    ]
    assert "attempt" not in found[0]
    assert await post(http, "/waits/rollouts", {"rollout_ids": ["ro-missing"]}) == []
    slow = await http.post(
        f"{API}/waits/rollouts", json={"rollout_ids": [open_["rollout_id"]], "timeout": 0.3}
    )
    assert slow.json() == []
    assert 0.25 < slow.elapsed.total_seconds() < 2


async def test_ids_may_hold_any_character(http: httpx.AsyncClient) -> None:
    worker = await http.post(f"{API}/workers/a%2Fb%20c%C3%A9")
    assert worker.json()["worker_id"] == "a/b cé"
    assert (await http.get(f"{API}/workers/a%2Fb%20c%C3%A9")).json()["worker_id"] == "a/b cé"


async def test_json_bodies_may_be_packed(http: httpx.AsyncClient) -> None:
    import gzip

    packed = gzip.compress(b'{"input": "one"') + gzip.compress(b', "mode": "test"}')
    answer = await http.post(
        f"{API}/rollouts",
        content=packed,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )
    assert (answer.status_code, answer.json()["input"]) == (201, "one")


async def test_every_route_is_documented(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    operations = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert ("POST", "/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}") in operations
    assert ("POST", "/v1/traces") in operations
    assert len(operations) == 38
    update = document["paths"]["/v1/agl/rollouts/{rollout_id}"]["post"]
    assert update["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/UpdateRolloutRequest"
    )
    assert {"200", "404", "422"} <= update["responses"].keys()
    listed = document["paths"]["/v1/agl/spans"]["get"]["parameters"]
    assert {item["name"] for item in listed} >= {"rollout_id", "name_contains", "sort_by"}


async def test_the_manual_needs_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    for path in ("/docs", "/redoc"):
        page = await http.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<script" not in page.text
        assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
        for known, methods in document["paths"].items():
            for method in methods:
                assert f"<code>{method.upper()} {known}</code></h2>" in page.text
        assert "Request, for example" in page.text
