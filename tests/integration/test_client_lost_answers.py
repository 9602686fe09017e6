"""The network fails between request and answer: nothing is done twice that matters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from cutting_proxy import CuttingProxy, cutting_proxy
from rest_support import http_for, serving, span

from agl.errors import RolloutNotFoundError, WrongInstanceError
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.client import LightningStoreClient
from agl.store.rest.errors import HttpError, Reply
from agl.store.rest.replays import Replays
from agl.types import AttemptUpdate, EnqueueRolloutRequest, Span

API = "/v1/agl"
Proxied = tuple[InMemoryLightningStore, CuttingProxy, LightningStoreClient]


@asynccontextmanager
async def proxied() -> AsyncGenerator[Proxied]:
    store = InMemoryLightningStore()
    async with serving(store) as server, cutting_proxy(server.endpoint) as proxy:
        client = LightningStoreClient(
            proxy.url, retry_delays=(0.01, 0.02), health_retry_delays=(0.01,)
        )
        try:
            yield store, proxy, client
        finally:
            await client.close()


async def test_creating_happens_once() -> None:
    async with proxied() as (store, proxy, client):
        calls: list[tuple[str, Callable[[], Awaitable[Any]], str, int]] = [
            ("/enqueue", lambda: client.enqueue_rollout(1), "total_rollouts", 1),
            (
                "/enqueue",
                lambda: client.enqueue_many_rollouts(
                    [EnqueueRolloutRequest(input=n) for n in "ab"]
                ),
                "total_rollouts",
                3,
            ),
            ("/rollouts ", lambda: client.start_rollout(2), "total_rollouts", 4),
            ("/resources ", lambda: client.add_resources({}), "total_resources", 1),
        ]
        for path, call, total, expected in calls:
            proxy.lose_answers(path, times=2)
            answer = await call()
            assert answer
            statistics: dict[str, Any] = dict(await store.statistics())
            assert statistics[total] == expected, path
        assert len(proxy.lost) == 8


async def test_versions_attempts_and_spans_happen_once() -> None:
    async with proxied() as (store, proxy, client):
        started = await client.start_rollout(1)
        rollout_id, attempt_id = started.rollout_id, started.attempt.attempt_id
        proxy.lose_answers("/resources/rs-1", times=2)
        assert (await client.update_resources("rs-1", {})).version == 1
        proxy.lose_answers("/spans", times=2)
        await client.add_many_spans(
            [span(rollout_id, attempt_id, span_id="a"), span(rollout_id, attempt_id, span_id="b")]
        )
        assert (await store.query_spans(rollout_id)).total == 2
        proxy.lose_answers("/attempts ", times=2)
        second = await client.start_attempt(rollout_id)
        assert second.attempt.sequence_id == 2
        assert (await store.query_attempts(rollout_id)).total == 2
        proxy.lose_answers("/attempts/", times=2)
        done = await client.update_attempt(rollout_id, "latest", status="succeeded")
        found = await store.get_rollout_by_id(rollout_id)
        assert found is not None
        assert (found.status, done.status) == ("succeeded", "succeeded")
        assert len(proxy.lost) == 8


async def test_spans_stored_by_a_lost_request_count_as_new() -> None:
    async with proxied() as (store, proxy, client):
        started = await client.start_rollout(1)
        ids = started.rollout_id, started.attempt.attempt_id

        def numbered(*numbers: int, name: str = "n") -> list[Span]:
            return [span(*ids, span_id=f"{number:016x}", name=name) for number in numbers]

        await client.add_span(numbered(1, name="earlier")[0])
        proxy.lose_answers("/spans/batch", times=2)
        sent = [
            *numbered(1),
            *numbered(2, 3, 2),
            span(*ids, span_id="9", attributes={"nan": math.nan}),
        ]
        stored = await client.add_many_spans(sent)
        assert [one.span_id[-1] for one in stored] == ["2", "3", "9"]
        assert [one.name for one in stored] == ["n", "n", "demo"]

        proxy.lose_answers("/spans ", times=1)
        (one,) = numbered(4)
        assert await client.add_span(one) == one
        assert await client.add_span(one) is None  # nothing was lost this time
        proxy.lose_answers("/spans ", times=1)
        assert await client.add_span(numbered(4, name="another")[0]) is None
        assert len(proxy.lost) == 4
        names = [kept.name for kept in await store.query_spans(ids[0], sort_by=None)]
        assert names == ["earlier", "n", "n", "demo", "n"]


async def test_a_lost_dequeue_loses_no_rollout_and_gives_none_to_two_workers() -> None:
    async with proxied() as (store, proxy, client):
        queued = [await client.enqueue_rollout(number) for number in range(3)]
        proxy.lose_answers("/dequeue", times=2)
        first = await client.dequeue_rollout("w-1")
        rest = await client.dequeue_many_rollouts(limit=5, worker_id="w-2")
        assert first is not None
        claimed = [first.rollout_id, *(rollout.rollout_id for rollout in rest)]
        assert claimed == [rollout.rollout_id for rollout in queued]
        assert (await store.query_attempts(first.rollout_id)).total == 1
        assert len(proxy.lost) == 2


async def test_a_network_that_stays_away_is_told() -> None:
    async with proxied() as (store, proxy, client):
        assert await client.dequeue_rollout() is None
        proxy.lose_answers("/enqueue", times=3)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.enqueue_rollout(1)
        assert (await store.statistics()).get("total_rollouts") == 1


async def test_a_key_is_answered_as_the_first_time() -> None:
    async with http_for() as http:
        key = {"idempotency-key": "k"}
        body: dict[str, Any] = {"rollouts": [{"input": 1}]}
        first, second = [
            await http.post(f"{API}/queues/rollouts/enqueue", json=body, headers=key)
            for _ in range(2)
        ]
        assert (first.status_code, first.content) == (201, second.content)
        other = await http.post(f"{API}/rollouts", json={"input": 1}, headers=key)
        assert other.json()["rollout_id"] != first.json()[0]["rollout_id"]
        statistics = (await http.get(f"{API}/statistics")).json()
        assert statistics["total_rollouts"] == 2
        long = await http.post(
            f"{API}/rollouts", json={"input": 1}, headers={"idempotency-key": "k" * 201}
        )
        assert long.status_code == 400
        for _ in range(2):  # a refusal is not kept
            refused = await http.post(f"{API}/rollouts/ro-1/attempts", headers=key)
            assert refused.status_code == 404


async def test_a_repetition_waits_for_the_first_one() -> None:
    replays = Replays()
    go, runs = asyncio.Event(), 0

    async def work() -> Reply:
        nonlocal runs
        runs += 1
        await go.wait()
        return Reply(200, b"done")

    both = [asyncio.create_task(replays.once("/p", "k", work)) for _ in range(3)]
    await asyncio.sleep(0)
    both[1].cancel()
    go.set()
    results = await asyncio.gather(*both, return_exceptions=True)
    assert runs == 1
    assert [r.body for r in results if isinstance(r, Reply)] == [b"done", b"done"]


async def test_after_a_failure_the_repetition_tries_itself() -> None:
    replays = Replays()
    runs: list[int] = []

    async def work() -> Reply:
        runs.append(len(runs))
        await asyncio.sleep(0.01)
        if len(runs) == 1:
            raise OSError("disk")
        return Reply(200, b"done")

    results = await asyncio.gather(
        *(replays.once("/p", "k", work) for _ in range(3)), return_exceptions=True
    )
    assert isinstance(results[0], OSError)
    assert [r.body for r in results[1:] if isinstance(r, Reply)] == [b"done", b"done"]
    assert len(runs) == 2


async def test_answers_are_kept_only_so_long_and_so_many() -> None:
    now = 0.0
    replays = Replays(kept_seconds=10, kept_bytes=3000, clock=lambda: now)

    async def work() -> Reply:
        return Reply(200, b"x" * 300)

    for number in range(10):
        await replays.once("/p", str(number), work)
    assert len(replays) == 3
    now = 11.0
    await replays.once("/p", "late", work)
    assert len(replays) == 1
    with pytest.raises(HttpError):
        await replays.once("/p", "k" * 201, work)


async def test_answers_without_a_body_take_room_too() -> None:
    """Polls of an empty queue are most of what is kept."""
    replays = Replays(kept_bytes=100_000)

    async def work() -> Reply:
        return Reply(200, b"[]")

    for number in range(1000):
        await replays.once("/p", str(number), work)
    assert len(replays) < 200


async def test_a_pinned_client_notices_another_store() -> None:
    first_store, second_store = InMemoryLightningStore(), InMemoryLightningStore()
    async with serving(first_store) as first, serving(second_store) as second:
        client = LightningStoreClient(first.endpoint, retry_delays=())
        pinned = await client.pin()
        assert (await client.enqueue_rollout(1)).status == "queuing"
        with pytest.raises(RolloutNotFoundError):
            await client.start_attempt("ro-x")
        await client.close()

        moved = LightningStoreClient(second.endpoint, retry_delays=(), instance_id=pinned)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: moved.enqueue_rollout(1),
            lambda: moved.dequeue_rollout("w"),
            lambda: moved.wait_for_rollouts(rollout_ids=[], timeout=0),
        ]
        for call in calls:
            with pytest.raises(WrongInstanceError, match=f"not {pinned}"):
                await call()
        assert (await second_store.statistics()).get("total_rollouts") == 0
        await moved.close()


async def test_a_pinned_client_notices_a_server_without_ids() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(old, "127.0.0.1")
    port = listening.sockets[0].getsockname()[1]
    client = LightningStoreClient(f"http://127.0.0.1:{port}", retry_delays=(), instance_id="x")
    with pytest.raises(WrongInstanceError, match="another store"):
        await client.get_worker_by_id("w")
    await client.close()
    listening.close()


async def test_bulk_calls_and_their_failures() -> None:
    store = InMemoryLightningStore()
    async with serving(store) as server:
        client = LightningStoreClient(server.endpoint)
        one, two = await client.start_rollout(1), await client.start_rollout(2)
        pairs = [(one.rollout_id, "x"), (two.rollout_id, "x"), (one.rollout_id, "x")]
        assert await client.get_many_span_sequence_ids(pairs) == [1, 1, 2]
        updates = [
            AttemptUpdate(rollout_id=one.rollout_id, attempt_id="latest", status="succeeded"),
            AttemptUpdate(rollout_id="ro-none", attempt_id="latest", status="failed"),
            AttemptUpdate(rollout_id=two.rollout_id, attempt_id="latest", metadata={"a": 1}),
        ]
        for target in (client, store):
            good, bad, other = await target.update_many_attempts(updates)
            assert isinstance(bad, RolloutNotFoundError)
            assert not isinstance(good, Exception)
            assert not isinstance(other, Exception)
            assert (good.status, other.metadata) == ("succeeded", {"a": 1})
            assert other.status == "preparing"
        await client.close()


async def test_many_items_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.store.rest.calls.requests.BATCH_ITEMS", 2)
    async with serving() as server:
        client = LightningStoreClient(server.endpoint)
        requests = [EnqueueRolloutRequest(input=number) for number in range(5)]
        queued = await client.enqueue_many_rollouts(requests)
        assert [rollout.input for rollout in queued] == list(range(5))
        rollout = await client.start_rollout(9)
        pairs = [(rollout.rollout_id, "a")] * 5
        assert await client.get_many_span_sequence_ids(pairs) == [1, 2, 3, 4, 5]
        await client.close()


async def test_an_update_of_many_names_no_nulls() -> None:
    async with http_for() as http:
        body = {"updates": [{"rollout_id": "r", "attempt_id": "a", "metadata": None}]}
        answer: httpx.Response = await http.post(f"{API}/attempts/batch", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "updates", 0, "metadata"]
