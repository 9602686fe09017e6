"""The server object, in and out of the process that created it."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import pickle
from typing import Any

import pytest
from ports import free_port
from rest_support import LOOPBACK, launcher_args, span

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.client_server import LightningStoreServer
from agl.store.memory import InMemoryLightningStore
from agl.types import RolloutConfig

TOKEN = "to/ken"


class SharedStore(InMemoryLightningStore):
    """Claims that its state is shared between processes, so that it may be served by several."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=False
        )


@pytest.mark.parametrize(
    "extra", [{"host": "h"}, {"port": 1}, {"launch_mode": "asyncio"}], ids=lambda extra: str(extra)
)
def test_arguments_that_exclude_each_other(extra: Any) -> None:
    with pytest.raises(ValueError, match="cannot be set when launcher_args is provided"):
        LightningStoreServer(InMemoryLightningStore(), launcher_args=launcher_args(), **extra)


def test_stores_that_cannot_be_served_so(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="not async-safe"):
        LightningStoreServer(LightningStore(), LOOPBACK, 1)
    with pytest.raises(ValueError, match="does not support zero-copy"):
        LightningStoreServer(InMemoryLightningStore(), LOOPBACK, 1, launch_mode="mp")
    caplog.clear()
    server = LightningStoreServer(InMemoryLightningStore(), LOOPBACK)
    assert server.endpoint == f"http://{LOOPBACK}:4747"
    levels = {record.message: record.levelno for record in caplog.records}
    assert levels["No port given; using 4747."] == logging.WARNING
    assert levels["The store is not thread-safe; its calls are made one at a time."]


def test_what_a_server_is() -> None:
    server = LightningStoreServer(InMemoryLightningStore(thread_safe=True), LOOPBACK, 81)
    assert server.capabilities == dict.fromkeys(
        ("thread_safe", "async_safe", "zero_copy", "otlp_traces"), True
    )
    assert server.otlp_traces_endpoint() == "http://127.0.0.1:81/v1/traces"
    assert server.launcher_args.healthcheck_url == "/v1/agl/health"
    missing = {name for name in vars(LightningStore) if name not in vars(LightningStoreServer)}
    assert {name for name in missing if not name.startswith("_")} == set()


def _in_a_fork(server: LightningStoreServer, results: Any) -> None:
    async def call() -> None:
        started = await server.start_rollout({"from": "fork"}, worker_id="w")
        await server.add_span(span(started.rollout_id, started.attempt.attempt_id))
        results.put(started.rollout_id)
        with pytest.raises(RuntimeError, match="Only the process that created"):
            await server.stop()
        results.put("checked")

    asyncio.run(call())


async def test_other_processes_call_over_http() -> None:
    store = InMemoryLightningStore(thread_safe=True)
    server = LightningStoreServer(
        store, launcher_args=launcher_args(launch_mode="thread"), api_token=TOKEN
    )
    await server.start()
    try:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=_in_a_fork, args=(server, results))
        process.start()
        rollout_id = await asyncio.to_thread(results.get, timeout=20)
        assert await asyncio.to_thread(results.get, timeout=20) == "checked"
        await asyncio.to_thread(process.join)
        assert (await store.query_spans(rollout_id)).total == 1

        copy: LightningStoreServer = pickle.loads(pickle.dumps(server))
        assert (copy.app, copy.store, copy.tracker) == (None, None, None)
        assert copy.endpoint == server.endpoint
        found = await copy.get_rollout_by_id(rollout_id)
        assert found is not None
        assert found.input == {"from": "fork"}
        with pytest.raises(RuntimeError, match="Only the process that created"):
            await copy.start()
        await copy._remote().close()
    finally:
        await server.stop()


async def test_calls_of_an_unsafe_store_never_overlap() -> None:
    inside = 0
    most = 0

    class Watched(InMemoryLightningStore):
        async def get_latest_resources(self) -> Any:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.005)
            inside -= 1

    server = LightningStoreServer(Watched(), LOOPBACK, free_port(LOOPBACK), launch_mode="thread")
    await server.start()
    remote = server._remote()
    calls = [server.get_latest_resources() for _ in range(10)]
    calls += [remote.get_latest_resources() for _ in range(10)]
    await asyncio.gather(*calls)
    assert most == 1
    await server.stop()


async def test_several_processes_serve_a_shared_store() -> None:
    server = LightningStoreServer(
        SharedStore(), launcher_args=launcher_args(launch_mode="mp", n_workers=2)
    )
    await server.start()
    remote = server._remote()
    assert (await remote.statistics())["name"] == "SharedStore"
    await server.stop()


async def test_the_watchdog_runs_while_nobody_calls() -> None:
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, launcher_args=launcher_args())
    await server.start()
    started = await store.start_rollout(1, config=RolloutConfig(timeout_seconds=0.1))
    finished = await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=10)
    assert [rollout.status for rollout in finished] == ["failed"]
    await server.stop()
