"""kill -9 in the middle of a training: everything comes back, and no count is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from bundle import Stack

from agl.store.client_server import LightningStoreClient

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


async def run_rollouts(client: LightningStoreClient, count: int) -> None:
    for number in range(count):
        rollout = await client.start_rollout({"task": number}, mode="test")
        await client.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
        )


def with_client(stack: Stack, work: Callable[[LightningStoreClient], Awaitable[None]]) -> None:
    async def run() -> None:
        # As patient as a loaded machine needs to start a container.
        client = LightningStoreClient(
            stack.store_url, retry_delays=(1, 2, 5, 5, 5), health_retry_delays=(0.5,) * 60
        )
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(run())


FINISHED = "sum(agl_rollouts_total)"


def finished(stack: Stack) -> float:
    return stack.value(FINISHED)


def wait_until_finished(stack: Stack, count: float) -> None:
    """Until Prometheus knows of so many; what was counted last is written a moment later.

    There is no value after a scrape that failed.
    """
    deadline = time.monotonic() + 60
    while True:
        found = [float(one["value"][1]) for one in stack.query(FINISHED)]
        if found == [count]:
            return
        assert not found or found[0] < count, "more than there ever were"
        assert time.monotonic() < deadline, f"{found}, not {count}"
        time.sleep(1)


@pytest.mark.parametrize("service", ["app", "app-exporter"])
def test_counters_survive_the_death_of(stack: Stack, service: str) -> None:
    stack.wait_for_scrapes(2)
    before = finished(stack) + 10
    with_client(stack, lambda client: run_rollouts(client, 10))
    wait_until_finished(stack, before)
    restarts = stack.container(service)["RestartCount"]

    stack.kill(service)
    stack.wait_for_restart(service, restarts)
    with_client(stack, lambda client: run_rollouts(client, 5))
    wait_until_finished(stack, before + 5)
    stack.wait_for_scrapes()
    wait_until_finished(stack, before + 5)


def test_prometheus_comes_back_with_its_data(stack: Stack) -> None:
    stack.wait_for_scrapes(2)
    before = stack.value("sum(count_over_time(up[1h]))")
    restarts = stack.container("prometheus")["RestartCount"]
    stack.kill("prometheus")
    stack.wait_for_restart("prometheus", restarts)
    assert stack.value("sum(count_over_time(up[1h]))") >= before


def test_a_client_outlives_the_death_of_the_store(stack: Stack) -> None:
    """Its call is retried until the store is back; what the memory store held is gone."""
    restarts = stack.container("app")["RestartCount"]

    async def work(client: LightningStoreClient) -> None:
        await client.enqueue_rollout({"task": "lost with the process"})
        stack.kill("app")
        rollout = await client.enqueue_rollout({"task": "after the death"})
        claimed = await client.dequeue_rollout()
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id

    with_client(stack, work)
    stack.wait_for_restart("app", restarts)
