"""What may be stuck: found by the store, served over HTTP, printed by the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ports import free_port
from rest_support import LOOPBACK, http_for, serving

from agl.cli import main
from agl.store.memory import InMemoryLightningStore
from agl.store.threading import LightningStoreThreaded
from agl.types import RolloutConfig, StuckItem


class Clock(InMemoryLightningStore):
    """Its time is what it is told."""

    now = 1000.0

    def _now(self) -> float:
        return self.now


async def filled() -> tuple[Clock, dict[str, str]]:
    """Two rollouts queued, two running (one of them silent), one finished."""
    store = Clock(scan_debounce_seconds=1e9)
    ids: dict[str, str] = {}
    config = RolloutConfig(timeout_seconds=200, unresponsive_seconds=50)
    for name in ("old", "silent", "done"):
        started = await store.start_rollout(name, config=config, worker_id=f"w-{name}")
        ids[name] = started.rollout_id
        store.now += 10
    await store.update_attempt(ids["done"], "latest", status="succeeded")
    ids["first"] = (await store.enqueue_rollout("first")).rollout_id
    store.now += 10
    ids["second"] = (await store.enqueue_rollout("second")).rollout_id
    store.now += 20
    await store.update_attempt(ids["old"], "latest", status="running", last_heartbeat_time=1055.0)
    return store, ids


def of_kind(items: Any, kind: str) -> list[StuckItem]:
    return [item for item in items if item.kind == kind]


async def test_each_kind_with_the_longest_first() -> None:
    store, ids = await filled()
    for asked in (store, LightningStoreThreaded(store)):
        found = await asked.find_stuck()
        queued, running, silent = (of_kind(found, k) for k in ("queued", "running", "silent"))
        assert [item.rollout_id for item in queued] == [ids["first"], ids["second"]]
        assert [item.age_seconds for item in queued] == [30, 20]
        assert queued[0].attempt_id is None
        assert [item.rollout_id for item in running] == [ids["old"], ids["silent"]]
        assert [(i.age_seconds, i.limit_seconds, i.share) for i in running] == [
            (60, 200, 0.3),
            (50, 200, 0.25),
        ]
        assert [item.rollout_id for item in silent] == [ids["silent"], ids["old"]]
        assert [(item.age_seconds, item.share) for item in silent] == [(50, 1), (5, 0.1)]
        assert (silent[0].worker_id, silent[0].attempt) == ("w-silent", 1)
        assert len(await asked.find_stuck(1)) == 3


async def test_looking_reads_only_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl.store._stuck.LOOKED_AT", 2)
    store = InMemoryLightningStore()
    for number in range(5):
        await store.start_rollout(number)
    assert len(of_kind(await store.find_stuck(), "running")) == 2


async def test_over_http_with_a_command_for_each() -> None:
    store, ids = await filled()
    async with http_for(store) as http:
        answer = await http.get("/v1/agl/stuck", params={"limit": 1})
        assert answer.status_code == 200
        by_kind = {item["kind"]: item for item in answer.json()["items"]}
        assert by_kind["queued"]["command"] == (
            f'curl "$AGL_STORE"/v1/agl/rollouts/{ids["first"]} '
            "-H 'Content-Type: application/json' -d '{\"status\": \"cancelled\"}'"
        )
        assert by_kind["running"]["command"] == (f'curl "$AGL_STORE"/v1/agl/rollouts/{ids["old"]}')
        silent = by_kind["silent"]
        assert f"/attempts/{silent['attempt_id']} " in silent["command"]
        assert '{"status": "failed"}' in silent["command"]
        assert (await http.get("/v1/agl/stuck", params={"limit": 0})).status_code == 422


async def test_a_store_that_cannot_tell() -> None:
    class Other(InMemoryLightningStore):
        async def find_stuck(self, limit: int = 20) -> Any:
            raise NotImplementedError

    async with http_for(Other()) as http:
        assert (await http.get("/v1/agl/stuck")).status_code == 501


async def call(*argv: str) -> int:
    return await asyncio.to_thread(main, ["store", "stuck", *argv])


async def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    store, ids = await filled()
    async with serving(store, api_token="t") as server:
        url = server.otlp_traces_endpoint().removesuffix("/v1/traces")
        assert await call("--store-url", url) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == [
            "KIND",
            "ROLLOUT",
            "STATUS",
            "ATTEMPT",
            "WORKER",
            "AGE",
            "OF",
            "LIMIT",
        ]
        assert any(line.split()[:3] == ["queued", ids["first"], "queuing"] for line in lines)
        running = next(line for line in lines if line.startswith("running"))
        assert "30% of 200s" in running
        assert sum(line.startswith("    curl ") for line in lines) == 6
        assert "from AGL_STORE" in lines[-1], "what the commands lean on is said"
        assert await call("--store-url", url, "--json", "--limit", "1") == 0
        assert len(json.loads(capsys.readouterr().out)["items"]) == 3
        assert await call("--store-url", server.endpoint) == 1
        said = capsys.readouterr().err
        assert "agl store: error: the store answered 401" in said
        assert "--store-url: http://agl:TOKEN@host:port" in said
    async with serving() as server:
        assert await call("--store-url", server.endpoint) == 0
        assert capsys.readouterr().out == "Nothing is queued or running.\n"
    assert await call("--store-url", f"http://{LOOPBACK}:{free_port(LOOPBACK)}") == 1
    assert "no answer from" in capsys.readouterr().err
    assert await call("--store-url", "nonsense") == 2
    assert "argument --store-url" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["store", "stuk"]) == 2
    assert "unknown command 'stuk' (choose from stuck, partitions" in capsys.readouterr().err
