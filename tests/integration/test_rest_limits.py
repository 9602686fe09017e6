"""What a server refuses: too many wrong tokens, too much at once, too large, too slow."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from rest_support import http_for, launcher_args, serving, span_body

from agl.errors import WrongInstanceError
from agl.store.base import LightningStoreCapabilities
from agl.store.client_server import LightningStoreServer, ServerLimits
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.guard import Throttle
from agl.utils.metrics import PrometheusMetricsBackend

API = "/v1/agl"


class GatedStore(InMemoryLightningStore):
    """Answers nothing until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.inside = 0

    async def get_worker_by_id(self, worker_id: str) -> Any:
        self.inside += 1
        await self.gate.wait()
        return await super().get_worker_by_id(worker_id)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_wrong_tokens_run_out_and_come_back_with_time() -> None:
    now = 0.0
    throttle = Throttle(burst=3, per_second=0.5, addresses=2, clock=lambda: now)
    assert [throttle.strike("a") for _ in range(5)] == [0, 0, 0, 2, 2]
    assert throttle.strike("b") == 0
    now = 2.0
    assert [throttle.strike("a") for _ in range(2)] == [0, 2]
    throttle.strike("c")  # the third address: b is forgotten
    assert len(throttle) == 2
    now = 1000.0
    assert [throttle.strike("a") for _ in range(4)] == [0, 0, 0, 2]


async def test_who_guesses_is_held_off_and_who_knows_is_let_in() -> None:
    registry = CollectorRegistry()
    tracker = PrometheusMetricsBackend(registry=registry)

    def refused(reason: str) -> float | None:
        return registry.get_sample_value("agl_http_refused_total", {"reason": reason})

    async with http_for(api_token="right", tracker=tracker) as http:
        assert [refused(r) for r in ("missing", "wrong", "throttled")] == [0, 0, 0]
        wrong, right = {"authorization": "Bearer wrong"}, {"authorization": "Bearer right"}
        answers = [await http.get(f"{API}/statistics", headers=wrong) for _ in range(100)]
        while answers[-1].status_code != 429:  # one is forgiven now and then
            answers.append(await http.get(f"{API}/statistics", headers=wrong))
        assert {answer.status_code for answer in answers[:100]} == {401}
        last = answers[-1]
        assert last.status_code == 429
        assert int(last.headers["retry-after"]) >= 1
        assert (await http.get(f"{API}/statistics", headers=right)).status_code == 200
        assert (await http.get(f"{API}/statistics")).status_code == 401
        assert (await http.get(f"{API}/health", headers=wrong)).status_code == 200
    throttled = sum(answer.status_code == 429 for answer in answers)
    assert (refused("missing"), refused("wrong")) == (1, len(answers) - throttled)
    assert refused("throttled") == throttled


async def test_more_requests_than_there_is_room_for() -> None:
    store = GatedStore()
    async with http_for(store, limits=ServerLimits(max_requests=2)) as http:
        inside = [asyncio.create_task(http.get(f"{API}/workers/w")) for _ in range(2)]
        await until(lambda: store.inside == 2)
        refused = await http.get(f"{API}/statistics", headers={"origin": "http://a"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "--max-requests" in refused.json()["detail"]
        assert (await http.get(f"{API}/health")).status_code == 200
        wait = await http.post(f"{API}/waits/rollouts", json={"rollout_ids": [], "timeout": 0})
        assert wait.status_code == 200
        store.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*inside)] == [200, 200]
        assert (await http.get(f"{API}/statistics")).status_code == 200


class WaitedStore(InMemoryLightningStore):
    """Counts who waits; a question for a worker is answered when ``free`` is set."""

    waits = 0
    asked = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.free = threading.Event()

    async def get_worker_by_id(self, worker_id: str) -> Any:
        self.asked += 1
        while not self.free.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.01)
        return await super().get_worker_by_id(worker_id)

    async def wait_for_rollouts(self, **asked: Any) -> Any:
        self.waits += 1
        return await super().wait_for_rollouts(**asked)


async def test_more_waits_than_there_is_room_for() -> None:
    store = WaitedStore()
    started = await store.start_rollout(1)
    body = {"rollout_ids": [started.rollout_id], "timeout": 30}
    async with http_for(store, limits=ServerLimits(max_waits=1)) as http:
        waiting = asyncio.create_task(http.post(f"{API}/waits/rollouts", json=body))
        await until(lambda: store.waits == 1)
        refused = await http.post(f"{API}/waits/rollouts", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        await store.update_rollout(started.rollout_id, status="cancelled")
        assert (await waiting).json()[0]["status"] == "cancelled"
        assert (await http.post(f"{API}/waits/rollouts", json=body)).status_code == 200


async def test_a_wait_ends_after_a_minute_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.store.rest.routes.rollouts.LONGEST_WAIT_SECONDS", 0.05)
    store = InMemoryLightningStore()
    started = await store.start_rollout(1)
    async with http_for(store) as http:
        for timeout in (None, 1e9):
            body = {"rollout_ids": [started.rollout_id], "timeout": timeout}
            answer = await asyncio.wait_for(http.post(f"{API}/waits/rollouts", json=body), 10)
            assert (answer.status_code, answer.json()) == (200, [])


async def test_waiters_are_answered_at_once_when_the_server_stops() -> None:
    store = WaitedStore()
    async with (
        serving(store) as server,
        httpx.AsyncClient(base_url=server.endpoint, timeout=60) as http,
    ):
        started = await server.start_rollout(1)
        body = {"rollout_ids": [started.rollout_id], "timeout": 60}
        waiters = [
            asyncio.create_task(http.post(f"{API}/waits/rollouts", json=body, timeout=30))
            for _ in range(5)
        ]
        asking = asyncio.create_task(http.get(f"{API}/workers/w"))
        await until(lambda: store.waits == len(waiters) and store.asked == 1)
        stopping = asyncio.create_task(server.stop())
        # The server cannot end before the question is answered.
        assert [(await waiter).status_code for waiter in waiters] == [503] * 5
        store.free.set()
        await asyncio.wait_for(asking, 30)
        await stopping


async def test_waits_are_timed_apart() -> None:
    registry = CollectorRegistry()
    tracker = PrometheusMetricsBackend(registry=registry)
    labels = {"path": f"{API}/waits/rollouts", "method": "POST", "status": "200"}
    async with http_for(tracker=tracker) as http:
        assert registry.get_sample_value("agl_http_waits_count", labels) == 0
        await http.post(f"{API}/waits/rollouts", json={"rollout_ids": []})
    assert registry.get_sample_value("agl_http_waits_count", labels) == 1
    assert registry.get_sample_value("agl_http_latency_count", labels) is None
    assert registry.get_sample_value("agl_http_total", labels) == 1


BATCHES: list[tuple[str, dict[str, Any]]] = [
    ("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}] * 3}),
    ("/spans/batch", {"spans": [span_body("r", "a")] * 3}),
    ("/spans/next/batch", {"requests": [{"rollout_id": "r", "attempt_id": "a"}] * 3}),
    ("/attempts/batch", {"updates": [{"rollout_id": "r", "attempt_id": "a"}] * 3}),
    ("/waits/rollouts", {"rollout_ids": ["r"] * 3}),
]


async def test_batches_that_are_too_large() -> None:
    store = InMemoryLightningStore()
    async with http_for(store, limits=ServerLimits(max_batch_items=2)) as http:
        for path, body in BATCHES:
            answer = await http.post(API + path, json=body)
            assert answer.status_code == 413, path
            assert "the limit is 2" in answer.json()["detail"]
        two = {"rollouts": [{"input": 1}] * 2}
        assert (await http.post(f"{API}/queues/rollouts/enqueue", json=two)).status_code == 201
    assert (await store.statistics()).get("total_rollouts") == 2


async def test_another_instance_is_refused_before_anything_is_done() -> None:
    store = InMemoryLightningStore()
    async with http_for(store) as http:
        mine = (await http.get(f"{API}/health")).json()["instance_id"]
        for pinned, status in ((mine, 201), ("other", 409)):
            answer = await http.post(
                f"{API}/rollouts", json={"input": 1}, headers={"agl-instance-id": pinned}
            )
            assert answer.status_code == status
            if status == 201:
                assert answer.headers["agl-instance-id"] == mine
            else:
                assert answer.json()["error_type"] == WrongInstanceError.__name__
    assert (await store.statistics()).get("total_rollouts") == 1


# What the connection itself refuses


async def exchange(http: httpx.AsyncClient, *parts: bytes, pause: float = 0.0) -> bytes:
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def status_and_body(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "endless"])
@pytest.mark.parametrize("size", [70_000, 200_000])
async def test_heads_that_are_too_large(size: int, end: bytes) -> None:
    async with http_for() as http:
        head = f"GET {API}/health HTTP/1.1\r\nHost: x\r\nX-Long: ".encode()
        status, body = status_and_body(await exchange(http, head + b"x" * size + end))
        assert status == 431
        assert "65536 bytes" in body["detail"]
        large = await http.get(f"{API}/health", headers={"x-long": "x" * 40_000})
        assert large.status_code == 200
        body_of_its_own = {"input": "x" * 300_000}
        assert (await http.post(f"{API}/rollouts", json=body_of_its_own)).status_code == 201


async def test_clients_that_are_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.utils.http_protocol.SLOW_SECONDS", 0.3)
    store = InMemoryLightningStore()
    async with http_for(store) as http:
        head = f"POST {API}/rollouts HTTP/1.1\r\nHost: x\r\n".encode()
        for begun in (b"", b"POST", head):
            status, _ = status_and_body(await exchange(http, begun))
            assert status == 408
        body = b'{"input": 1}'
        whole = head + b"Content-Type: application/json\r\nContent-Length: 12\r\n\r\n"
        for sent in (b"", body[:5]):
            answer = await exchange(http, whole + sent)
            assert status_and_body(answer)[0] == 408
            assert b"connection: close" in answer
        assert (await store.statistics()).get("total_rollouts") == 0
        closing = whole.replace(b"Host: x", b"Host: x\r\nConnection: close")
        monkeypatch.setattr("agl.utils.http_protocol.SLOW_SECONDS", 2.0)
        # Slow, but on its way all the time.
        pieces = [bytes([one]) for one in body]
        answer = await exchange(http, closing, *pieces, pause=0.3)
        assert status_and_body(answer)[0] == 201


async def test_an_idle_connection_may_rest_between_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agl.utils.http_protocol.SLOW_SECONDS", 0.2)
    async with http_for() as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        for _ in range(3):
            writer.write(f"GET {API}/health HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert head.startswith(b"HTTP/1.1 200")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(0.5)
        writer.close()


class EndlessStore(InMemoryLightningStore):
    """Waits for ever, and leaves a file for each wait; claims that processes may share it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(thread_safe=True)
        self._folder = folder

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True)

    async def wait_for_rollouts(self, **_: Any) -> Any:
        (self._folder / uuid.uuid4().hex).touch()
        await asyncio.Event().wait()


@pytest.mark.parametrize(("mode", "processes"), [("thread", 1), ("mp", 1), ("mp", 2)])
async def test_waiters_are_answered_in_every_mode(
    mode: Any, processes: int, tmp_path: Path
) -> None:
    args = launcher_args(launch_mode=mode, n_workers=processes)
    server = LightningStoreServer(EndlessStore(tmp_path), launcher_args=args)
    await server.start()
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        waiters = [
            asyncio.create_task(
                http.post(f"{API}/waits/rollouts", json={"rollout_ids": []}, timeout=100)
            )
            for _ in range(4)
        ]
        await until(lambda: len(list(tmp_path.iterdir())) == len(waiters))
        assert not any(waiter.done() for waiter in waiters)
        await server.stop()
        answers = [await waiter for waiter in waiters]
    assert [(a.status_code, a.headers["retry-after"]) for a in answers] == [(503, "1")] * 4
