"""The client: retries, outages, refusals and what it remembers."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from ports import free_port
from rest_support import LOOPBACK, launcher_args, serving, span

from agl.errors import InvalidRequestError, RolloutNotFoundError
from agl.store.client_server import LightningStoreClient
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.transport import split_credentials
from agl.types import AttemptUpdate, EnqueueRolloutRequest, Rollout
from agl.utils.server_launcher import PythonServerLauncher

Answer = Callable[[str, str], tuple[int, Any]]
"""From method and path to status and JSON body."""


class Scripted:
    """A server that answers as told and notes what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix("/v1/agl")
        self.asked.append(path)
        status, body = self._answer(scope["method"], path)
        raw = json.dumps(body).encode()
        headers = [(b"content-length", str(len(raw)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": raw})


@asynccontextmanager
async def scripted(
    answer: Answer, **options: Any
) -> AsyncGenerator[tuple[LightningStoreClient, Scripted]]:
    server = Scripted(answer)
    launcher = PythonServerLauncher(server, launcher_args(healthcheck_url=None))
    await launcher.start()
    delays = {"retry_delays": (0.01, 0.02), "health_retry_delays": (0.01,)}
    client = LightningStoreClient(launcher.endpoint, **(delays | options))
    try:
        yield client, server
    finally:
        await client.close()
        await launcher.stop()


def statuses(*codes: int) -> Answer:
    """Answers health with 200, and everything else with one code after the other."""
    left = list(codes)

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/health":
            return 200, {}
        return left.pop(0), {"name": "x"}

    return answer


@pytest.mark.parametrize("code", [500, 502, 503, 408])
async def test_passing_failures_are_retried_after_a_health_probe(code: int) -> None:
    async with scripted(statuses(code, code, 200)) as (client, server):
        assert await client.statistics() == {"name": "x"}
    assert server.asked == ["/statistics", "/health", "/statistics", "/health", "/statistics"]


async def test_the_last_failure_is_raised() -> None:
    async with scripted(statuses(500, 503, 502)) as (client, server):
        with pytest.raises(aiohttp.ClientResponseError) as raised:
            await client.statistics()
    assert raised.value.status == 502
    assert server.asked.count("/statistics") == 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 413, 422, 429])
async def test_refusals_are_not_retried(code: int) -> None:
    async with scripted(statuses(code)) as (client, server):
        with pytest.raises((aiohttp.ClientResponseError, InvalidRequestError)):
            await client.statistics()
    assert server.asked == ["/statistics"]


@pytest.mark.parametrize("code", [404, 405, 501])
async def test_a_server_that_keeps_no_figures_is_told_apart(code: int) -> None:
    async with scripted(statuses(code)) as (client, server):
        with pytest.raises(NotImplementedError, match=f"answered {code} to GET /v1/agl/state"):
            await client.state()
    assert server.asked == ["/state"]


async def test_a_server_that_may_not_tell_its_state_is_no_old_one() -> None:
    async with scripted(statuses(401)) as (client, _):
        with pytest.raises(aiohttp.ClientResponseError):
            await client.state()


async def test_a_server_that_is_not_healthy_is_not_asked_again() -> None:
    async with scripted(lambda *_: (503, {})) as (client, server):
        with pytest.raises(aiohttp.ClientResponseError):
            await client.statistics()
    assert server.asked == ["/statistics", "/health", "/health"]


async def test_no_probes_and_no_retries_when_told_so() -> None:
    async with scripted(statuses(500, 200), health_retry_delays=()) as (client, server):
        assert await client.statistics() == {"name": "x"}
    assert server.asked == ["/statistics", "/statistics"]
    async with scripted(statuses(500), retry_delays=()) as (client, server):
        with pytest.raises(aiohttp.ClientResponseError):
            await client.statistics()
    assert server.asked == ["/statistics"]


async def test_a_server_that_dies_and_comes_back_is_found_again() -> None:
    port = free_port(LOOPBACK)
    client = LightningStoreClient(
        f"http://{LOOPBACK}:{port}", retry_delays=(0.1, 0.1), health_retry_delays=(0.3,) * 100
    )
    script = (
        "import asyncio; from agl.store.client_server import LightningStoreServer as S;"
        "from agl.store.memory import InMemoryLightningStore as M;"
        f"asyncio.run(S(M(), '127.0.0.1', {port}, launch_mode='asyncio').run_forever())"
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)

    first, second = start(), None
    try:
        assert (await client.statistics())["total_rollouts"] == 0
        await client.enqueue_rollout(1)
        first.kill()
        first.wait()
        second = start()
        assert (await client.statistics())["total_rollouts"] == 0
        assert (await client.enqueue_rollout(2)).status == "queuing"
    finally:
        await client.close()
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()


async def test_without_a_server() -> None:
    client = LightningStoreClient(
        f"http://{LOOPBACK}:{free_port(LOOPBACK)}", retry_delays=(), health_retry_delays=()
    )
    assert await client.get_rollout_by_id("ro-x") is None
    assert await client.get_latest_attempt("ro-x") is None
    assert await client.get_resources_by_id("rs-x") is None
    assert await client.get_latest_resources() is None
    assert await client.dequeue_rollout() is None
    assert await client.dequeue_many_rollouts(limit=3) == []
    for call in (client.statistics(), client.get_worker_by_id("w"), client.query_workers()):
        with pytest.raises(aiohttp.ClientConnectorError):
            await call
    await client.close()


async def test_a_request_that_takes_too_long_is_given_up() -> None:
    class Slow(InMemoryLightningStore):
        async def get_worker_by_id(self, worker_id: str) -> Any:
            await asyncio.sleep(30)

    async with serving(Slow()) as server:
        client = LightningStoreClient(server.endpoint, request_timeout=0.3, retry_delays=())
        with pytest.raises(TimeoutError):
            await client.get_worker_by_id("w")
        await client.close()


async def test_a_wait_may_be_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.store.rest.calls.rollouts.WAIT_SECONDS", 0.1)
    async with serving() as server:
        client = LightningStoreClient(server.endpoint, request_timeout=5, retry_delays=())
        first, second = await client.start_rollout(1), await client.start_rollout(2)
        ids = [first.rollout_id, second.rollout_id]

        async def finish(rollout_id: str) -> None:
            await server.update_attempt(rollout_id, "latest", status="succeeded")

        await finish(ids[0])
        found = await client.wait_for_rollouts(rollout_ids=ids, timeout=0.35)
        assert [rollout.rollout_id for rollout in found] == ids[:1]
        for timeout in (None, 30.0):
            await server.update_rollout(ids[1], status="running")
            waiting = asyncio.create_task(
                client.wait_for_rollouts(rollout_ids=[*ids, "ro-unknown"], timeout=timeout)
            )
            await asyncio.sleep(0.35)
            assert not waiting.done()
            await server.update_rollout(ids[1], status="cancelled")
            assert [r.rollout_id for r in await asyncio.wait_for(waiting, 5)] == ids
        await client.close()


async def test_a_dequeue_is_asked_once_of_an_old_server_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claimed = {"rollout_id": "r", "input": 1, "start_time": 1}
    attempt = {"rollout_id": "r", "attempt_id": "a", "sequence_id": 1, "start_time": 1}
    left: list[tuple[int, Any]] = [
        (503, {}),
        (200, [claimed | {"attempt": attempt}]),
        (503, {}),
        (503, {}),
    ]

    def answer(method: str, path: str) -> tuple[int, Any]:
        return (200, {"status": "ok"}) if path == "/health" else left.pop(0)

    async with scripted(answer) as (client, server):
        with caplog.at_level(logging.WARNING, logger="agl.store.client"):
            caplog.clear()
            assert await client.dequeue_rollout("w") is None
            assert not caplog.records
            assert (await client.dequeue_rollout("w")) is not None
            assert await client.dequeue_rollout("w") is None
            assert await client.dequeue_rollout("w") is None
            assert await client.dequeue_many_rollouts(limit=0) == []
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert server.asked == ["/health", *["/queues/rollouts/dequeue"] * 4]


async def test_a_wrong_token_is_raised_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Callable[[LightningStoreClient], Awaitable[Any]]] = [
        lambda client: client.statistics(),
        lambda client: client.dequeue_rollout(),
        lambda client: client.get_rollout_by_id("ro-x"),
        lambda client: client.add_span(span("r", "a")),
    ]
    async with serving(api_token="right") as server:
        address = server.endpoint.replace("://", "://agl:s3cret@")
        client = LightningStoreClient(address)
        for call in calls:
            with caplog.at_level(logging.DEBUG), pytest.raises(aiohttp.ClientResponseError) as got:
                await call(client)
            assert got.value.status == 401
            assert "Wrong API token" in str(got.value)
            for text in (repr(got.value), str(got.value), repr(client), caplog.text):
                assert "s3cret" not in text
                assert "YWdsOnMzY3JldA" not in text
        await client.close()


async def test_errors_are_those_of_a_local_store() -> None:
    async with serving() as server:
        client = LightningStoreClient(server.endpoint)
        with pytest.raises(RolloutNotFoundError, match="ro-x"):
            await client.start_attempt("ro-x")
        with pytest.raises(InvalidRequestError, match="Invalid sort_by: x"):
            await client.query_rollouts(sort_by="x")
        with pytest.raises(InvalidRequestError, match=r"body\.status: Input should be"):
            await client.update_rollout("ro-x", status="bogus")  # type: ignore[arg-type] # on purpose
        await client.close()


async def test_queries_pass_everything_on() -> None:
    async with serving() as server:
        client = LightningStoreClient(server.endpoint)
        for name in ("c", "a", "b"):
            await client.update_worker(name, {"n": name})
        found = await client.query_workers(limit=1, offset=1, sort_by="worker_id")
        assert ([worker.worker_id for worker in found], found.total) == (["b"], 3)
        unknown = await client.query_workers(
            status_in=["busy"], worker_id_contains="a", filter_logic="or"
        )
        assert [worker.worker_id for worker in unknown] == ["a"]
        many = [EnqueueRolloutRequest(input=number) for number in range(3)]
        queued = await client.enqueue_many_rollouts(many)
        assert await client.enqueue_many_rollouts([]) == []
        ids = [queued[2].rollout_id]
        with pytest.warns(DeprecationWarning, match="rollout_ids is deprecated"):
            by_old_name = await client.query_rollouts(rollout_ids=ids)
        assert [rollout.input for rollout in by_old_name] == [2]
        assert all(type(rollout) is Rollout for rollout in by_old_name)
        await client.close()


async def test_spans_go_one_by_one_where_the_server_has_no_batches() -> None:
    bodies: dict[str, Any] = {
        "/health": {"status": "ok"},
        "/spans": span("r", "a").model_dump(),
        "/spans/next": {"sequence_id": 7},
        "/rollouts/r/attempts/a": {
            "rollout_id": "r", "attempt_id": "a", "sequence_id": 1, "start_time": 1
        },
    }  # fmt: skip
    async with scripted(lambda _, path: (200, bodies[path])) as (client, server):
        for _ in range(2):
            assert len(await client.add_many_spans([span("r", "a"), span("r", "a")])) == 2
        assert await client.get_many_span_sequence_ids([("r", "a"), ("r", "b")]) == [7, 7]
        update = AttemptUpdate(rollout_id="r", attempt_id="a", status="running")
        assert len(await client.update_many_attempts([update, update])) == 2
        with pytest.raises(RuntimeError, match="no instance id"):
            await client.pin()
    assert server.asked == [
        "/health",
        *["/spans"] * 4,
        *["/spans/next"] * 2,
        *["/rollouts/r/attempts/a"] * 2,
        "/health",
    ]


async def test_a_server_that_has_become_an_old_one_is_noticed() -> None:
    bulk = {"features": ["spans-batch", "sequence-ids-batch", "attempts-batch"]}
    healths: list[Any] = [bulk, {}, bulk, {}, bulk, {}]
    bodies: dict[str, Any] = {
        "/spans": span("r", "a").model_dump(),
        "/spans/next": {"sequence_id": 7},
        "/rollouts/r/attempts/a": {
            "rollout_id": "r", "attempt_id": "a", "sequence_id": 1, "start_time": 1
        },
    }  # fmt: skip
    missing = {"/spans/batch": 405, "/spans/next/batch": 404, "/attempts/batch": 405}

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/health":
            return 200, {"status": "ok", **healths.pop(0)}
        return (missing[path], {"detail": "No"}) if path in missing else (200, bodies[path])

    update = AttemptUpdate(rollout_id="r", attempt_id="a", status="running")
    calls: list[Callable[[LightningStoreClient], Awaitable[Any]]] = [
        lambda client: client.add_many_spans([span("r", "a"), span("r", "a")]),
        lambda client: client.get_many_span_sequence_ids([("r", "a"), ("r", "a")]),
        lambda client: client.update_many_attempts([update, update]),
    ]
    for call, new in zip(calls, missing, strict=True):
        old = new.replace("/attempts", "/rollouts/r/attempts/a").removesuffix("/batch")
        async with scripted(answer) as (client, server):
            assert len(await call(client)) == 2
            assert len(await call(client)) == 2
        assert server.asked == ["/health", new, old, old, "/health", old, old]


async def test_a_session_ends_with_its_event_loop() -> None:
    """Every loop that dies used to leave a connection behind."""
    async with serving(InMemoryLightningStore(thread_safe=True)) as server:
        client = LightningStoreClient(server.endpoint)
        sessions: list[aiohttp.ClientSession] = []

        async def ask() -> None:
            await client.statistics()
            sessions.append(await client._transport.session())

        for _ in range(3):
            await asyncio.to_thread(asyncio.run, ask())
        await ask()
        assert [session.closed for session in sessions] == [True, True, True, False]
        assert len(client._transport._sessions) == 1
        await client.close()
        assert sessions[-1].closed


async def test_each_event_loop_has_its_session_and_copies_start_afresh() -> None:
    async with serving(InMemoryLightningStore(thread_safe=True)) as server:
        client = LightningStoreClient(server.endpoint, retry_delays=(0.5,))
        found: list[Any] = []

        async def ask() -> None:
            found.append(await client.statistics())

        async def ask_and_leave() -> None:
            await ask()
            await (await client._transport.session()).close()

        threads = [threading.Thread(target=asyncio.run, args=(ask_and_leave(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(ask() for _ in range(20)))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(found) == 24

        copy: LightningStoreClient = pickle.loads(pickle.dumps(client))
        assert copy.server_address == f"{server.endpoint}/v1/agl"
        assert (await copy.statistics())["name"] == "InMemoryLightningStore"
        await copy.close()
        await client.close()
        assert (await client.statistics())["name"] == "InMemoryLightningStore"
        await client.close()


@pytest.mark.parametrize(
    ("address", "root", "authorized"),
    [
        ("http://h:1", "http://h:1", False),
        ("http://agl:t@h:1/base", "http://h:1/base", True),
        ("https://u@h", "https://h", True),
    ],
)
def test_addresses(address: str, root: str, authorized: bool) -> None:
    found, authorization = split_credentials(address)
    assert found == root
    assert (authorization is not None) == authorized


@pytest.mark.parametrize("address", ["h:1", "ftp://h", "http://", "localhost"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must look like http://host:port"):
        LightningStoreClient(address)


async def test_a_trailing_slash_does_not_matter() -> None:
    client = LightningStoreClient("http://agl:t@h:1/")
    assert client.server_address_root == "http://h:1"
    assert client.otlp_traces_endpoint() == "http://agl:t@h:1/v1/traces"
