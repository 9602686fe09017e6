"""What the server counts and logs of its requests."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from rest_support import http_for, serving, span
from test_rest_errors import FaultyStore, raw_exchange

from agl.store.memory import InMemoryLightningStore
from agl.store.rest.wire import RETRY_HEADER
from agl.types import Span
from agl.utils.metrics import ConsoleMetricsBackend, PrometheusMetricsBackend

API = "/v1/agl"


class Counts:
    """A tracker of its own and what it has counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tracker = PrometheusMetricsBackend(registry=self.registry)

    def requests(self) -> dict[tuple[str, str, str], float]:
        found: dict[tuple[str, str, str], float] = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name == "agl_http_total":
                    labels = sample.labels
                    key = (labels["path"], labels["method"], labels["status"])
                    found[key] = sample.value
        return found

    def seen(self) -> dict[tuple[str, str, str], float]:
        return {key: value for key, value in self.requests().items() if value}

    def observed(self) -> float:
        return sum(
            sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "agl_http_latency_count"
        )


async def test_paths_are_templates_and_statuses_numbers() -> None:
    counts = Counts()
    async with http_for(FaultyStore(), tracker=counts.tracker, api_token="t") as http:
        token = {"authorization": "Bearer t"}
        started = (await http.post(f"{API}/rollouts", json={"input": 1}, headers=token)).json()
        rollout_id = started["rollout_id"]
        for path in (
            f"/rollouts/{rollout_id}",
            "/rollouts/ro-other",
            f"/rollouts/{rollout_id}/attempts/latest",
            "/resources/latest",
            "/resources/rs-1",
            "/workers/w",
            "/rollouts?limit=0",
            "/rollouts?limit=x",
        ):
            await http.get(API + path, headers=token)
        await http.delete(f"{API}/workers/w", headers=token)
        await http.get("/wp-login.php", headers=token)
        await http.get("/another/unknown", headers=token)
        await http.get(f"{API}/rollouts/ro-1")
        await http.post("/v1/traces", headers=token)
        await raw_exchange(http, b"PROPFIND /v1/agl/health HTTP/1.1\r\nHost: x\r\n\r\n")
    seen = counts.seen()
    assert seen.pop((f"{API}/health", "GET", "200")) >= 1  # the launcher's own probe
    assert seen == {
        (f"{API}/rollouts", "POST", "201"): 1,
        (f"{API}/rollouts/{{rollout_id}}", "GET", "200"): 1,
        (f"{API}/rollouts/{{rollout_id}}", "GET", "404"): 1,
        (f"{API}/rollouts/{{rollout_id}}", "GET", "401"): 1,
        (f"{API}/rollouts/{{rollout_id}}/attempts/latest", "GET", "200"): 1,
        (f"{API}/resources/latest", "GET", "500"): 1,
        (f"{API}/resources/{{resources_id}}", "GET", "200"): 1,
        (f"{API}/workers/{{worker_id}}", "GET", "200"): 1,
        (f"{API}/workers/{{worker_id}}", "DELETE", "405"): 1,
        (f"{API}/rollouts", "GET", "400"): 1,
        (f"{API}/rollouts", "GET", "422"): 1,
        ("unmatched", "GET", "404"): 2,
        ("/v1/traces", "POST", "400"): 1,
        (f"{API}/health", "OTHER", "405"): 1,
    }
    assert counts.observed() == sum(counts.seen().values())


async def test_every_reachable_status_is_there_from_the_start_at_zero() -> None:
    counts = Counts()
    async with http_for(tracker=counts.tracker):
        found = counts.requests()
    assert found[f"{API}/spans", "POST", "201"] == 0
    assert found[f"{API}/waits/rollouts", "POST", "200"] == 0
    assert found["/v1/traces", "POST", "200"] == 0
    assert found["/v1/metrics", "POST", "501"] == 0
    assert found[f"{API}/rollouts/{{rollout_id}}", "GET", "404"] == 0
    successes = [key for key in found if key[2][0] == "2" or key[2] == "501"]
    assert len(successes) == 42  # 38 documented routes, /v1/prometheus and the manual, both twice
    assert set(counts.seen()) <= {(f"{API}/health", "GET", "200")}  # asked by whoever starts it


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_is_499_and_its_wait_ends() -> None:
    ended = asyncio.Event()

    class EndlessStore(InMemoryLightningStore):
        async def wait_for_rollouts(self, **_: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    counts = Counts()
    async with http_for(EndlessStore(), tracker=counts.tracker) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{API}/waits/rollouts", json={"rollout_ids": []}, timeout=0.2)
        await asyncio.wait_for(ended.wait(), 5)
        await eventually(lambda: (f"{API}/waits/rollouts", "POST", "499") in counts.seen())

        _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        head = f"POST {API}/rollouts HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf"
        writer.write(head.encode())
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await eventually(lambda: (f"{API}/rollouts", "POST", "499") in counts.seen())


async def test_a_stopping_server_answers_its_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.utils.server_launcher.GRACE_SECONDS", 1)
    async with serving() as server, httpx.AsyncClient(base_url=server.endpoint) as http:
        started = await server.start_rollout(1)
        body = {"rollout_ids": [started.rollout_id], "timeout": 60}
        waiter = asyncio.create_task(http.post(f"{API}/waits/rollouts", json=body, timeout=30))
        await asyncio.sleep(0.2)
        assert not waiter.done()
        await server.stop()
        answer = await asyncio.wait_for(waiter, 5)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_prometheus_is_served_with_and_without_the_slash() -> None:
    async with http_for(tracker=PrometheusMetricsBackend()) as http:
        for path in ("/v1/prometheus/", "/v1/prometheus"):
            answer = await http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/plain")
            assert "agl_http_total{" in answer.text
        metrics = {"accept": "application/openmetrics-text"}
        openmetrics = await http.get("/v1/prometheus/", headers=metrics)
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")


async def test_no_prometheus_without_its_tracker() -> None:
    async with http_for(tracker=ConsoleMetricsBackend()) as http:
        assert (await http.get("/v1/prometheus/")).status_code == 404


async def test_requests_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async with http_for() as http:
        with caplog.at_level(logging.DEBUG, logger="agl.store.server"):
            await http.get(f"{API}/rollouts?limit=0")
            await http.get("/openapi.json")
    lines = [record.message for record in caplog.records if record.name == "agl.store.server"]
    timed = [line for line in lines if " ms" in line]
    assert len(timed) == 1
    assert '- "GET /v1/agl/rollouts HTTP/1.1" 400 in' in timed[0]


async def test_spans_sent_again_are_no_duplicates() -> None:
    counts = Counts()
    again = {RETRY_HEADER: "1"}

    def duplicates() -> float | None:
        return counts.registry.get_sample_value("agl_spans_duplicates_total")

    async with http_for(
        InMemoryLightningStore(tracker=counts.tracker), tracker=counts.tracker
    ) as http:
        started = (await http.post(f"{API}/rollouts", json={"input": 1})).json()
        ids = started["rollout_id"], started["attempt"]["attempt_id"]

        async def send(*spans: Span, headers: dict[str, str] | None = None) -> float | None:
            body = f'{{"spans": [{",".join(one.model_dump_json() for one in spans)}]}}'
            sent = {"content-type": "application/json", **(headers or {})}
            answer = await http.post(f"{API}/spans/batch", content=body, headers=sent)
            assert answer.status_code == 201
            return duplicates()

        one, other = span(*ids, span_id="1"), span(*ids, span_id="2")
        odd = span(*ids, span_id="3", attributes={"nan": math.nan})
        assert await send(one, odd) == 0
        assert await send(one, odd, headers=again) == 0
        assert await send(one) == 1
        assert await send(span(*ids, span_id="1", name="another"), headers=again) == 2
        assert await send(one, other, other, headers=again) == 3  # the first never came
        answer = await http.post(f"{API}/spans", json=one.model_dump(mode="json"), headers=again)
        assert (answer.json()["span_id"], duplicates()) == (one.span_id, 3)
