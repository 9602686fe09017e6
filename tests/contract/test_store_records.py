"""Resources and workers."""

from __future__ import annotations

import re
import time
from typing import Any

from agl.store.base import LightningStore
from agl.types import LLM, NamedResources, PromptTemplate, ProxyLLM


def _resources(model: str = "m") -> NamedResources:
    return {
        "llm": LLM(endpoint="http://h/v1", model=model, sampling_parameters={"t": 0.5}),
        "proxy": ProxyLLM(endpoint="http://p", model=model),
        "prompt": PromptTemplate(template="{x}", engine="f-string"),
    }


async def test_no_resources_yet(store: LightningStore) -> None:
    assert await store.get_latest_resources() is None
    assert await store.get_resources_by_id("rs-none") is None
    assert len(await store.query_resources()) == 0


async def test_add_resources(store: LightningStore) -> None:
    before = time.time()
    added = await store.add_resources(_resources())

    assert re.fullmatch(r"rs-[0-9a-f]{12}", added.resources_id)
    assert added.version == 1
    assert before <= added.create_time == added.update_time <= time.time()
    assert added.resources == _resources()
    assert type(added.resources["proxy"]) is ProxyLLM
    assert await store.get_resources_by_id(added.resources_id) == added
    assert await store.get_latest_resources() == added


async def test_update_resources_replaces_and_counts(store: LightningStore) -> None:
    added = await store.add_resources(_resources())
    newer = await store.add_resources({})
    assert await store.get_latest_resources() == newer

    updated = await store.update_resources(added.resources_id, {"llm": _resources("m2")["llm"]})

    assert (updated.version, updated.create_time) == (2, added.create_time)
    assert updated.update_time >= added.update_time
    assert list(updated.resources) == ["llm"]
    assert await store.get_latest_resources() == updated


async def test_update_resources_creates(store: LightningStore) -> None:
    created = await store.update_resources("rs-mine", _resources())
    assert (created.resources_id, created.version) == ("rs-mine", 1)
    assert await store.get_resources_by_id("rs-mine") == created


async def test_query_resources(store: LightningStore) -> None:
    for name in ("rs-one", "rs-two", "rs-three"):
        await store.update_resources(name, {})
    await store.update_resources("rs-one", {})

    async def query(**arguments: Any) -> list[str]:
        return [update.resources_id for update in await store.query_resources(**arguments)]

    assert await query() == ["rs-one", "rs-two", "rs-three"]
    assert await query(resources_id="rs-two") == ["rs-two"]
    assert await query(resources_id_contains="t") == ["rs-two", "rs-three"]
    assert await query(resources_id="rs-two", resources_id_contains="one") == []
    assert await query(sort_by="version", sort_order="desc", limit=1) == ["rs-one"]
    page = await store.query_resources(limit=2, offset=2)
    assert (len(page), page.total) == (1, 3)


async def test_resources_are_not_shared_with_callers(store: LightningStore) -> None:
    given = _resources()
    added = await store.add_resources(given)
    for resources in (given, added.resources):
        llm = resources["llm"]
        assert isinstance(llm, LLM)
        llm.sampling_parameters["t"] = 9
        del resources["prompt"]

    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources == _resources()


async def test_update_worker(store: LightningStore) -> None:
    before = time.time()
    stats = {"cpu": [1, 2]}
    worker = await store.update_worker("w", stats)
    stats["cpu"].clear()

    assert (worker.worker_id, worker.status) == ("w", "unknown")
    assert worker.heartbeat_stats == {"cpu": [1, 2]}
    assert worker.last_heartbeat_time is not None
    assert before <= worker.last_heartbeat_time <= time.time()
    later = await store.update_worker("w")
    assert later.heartbeat_stats == {"cpu": [1, 2]}
    assert await store.get_worker_by_id("w") == later
    assert await store.get_worker_by_id("none") is None


async def test_a_heartbeat_leaves_the_status_alone(store: LightningStore) -> None:
    rollout = await store.start_rollout("a", worker_id="w")
    worker = await store.update_worker("w", {})
    assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)


async def test_query_workers(store: LightningStore) -> None:
    await store.update_worker("Worker-1")
    await store.start_rollout("a", worker_id="Worker-2")
    await store.dequeue_rollout(worker_id="other")

    async def query(**arguments: Any) -> list[str]:
        return [worker.worker_id for worker in await store.query_workers(**arguments)]

    assert await query() == ["Worker-1", "Worker-2", "other"]
    assert await query(status_in=["busy", "idle"]) == ["Worker-2", "other"]
    assert await query(worker_id_contains="Worker") == ["Worker-1", "Worker-2"]
    assert await query(worker_id_contains="Worker", status_in=["idle"]) == []
    assert await query(worker_id_contains="Worker", status_in=["idle"], filter_logic="or") == [
        "Worker-1",
        "Worker-2",
        "other",
    ]
    assert await query(sort_by="worker_id", sort_order="desc", limit=2) == ["other", "Worker-2"]
    assert await query(offset=2, limit=5) == ["other"]
