"""The exporter and the store's state: asked beside scrapes, vanishing with age, in nobody's way."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from processes import run_agl, running_agl, wait_until_answering
from prometheus_client.parser import text_string_to_metric_families
from rest_support import serving, span

from agl.cli._state_poll import StatePoll
from agl.cli.prometheus import create_prometheus_app
from agl.errors import EnvironmentFault, UsageError
from agl.store.memory import InMemoryLightningStore
from agl.utils.exporter_state import StateGauges

LABELLED = 'agl_state_rollouts{mode="train",status="succeeded"}'
WRITER = """
from agl.utils.metrics import PrometheusMetricsBackend
backend = PrometheusMetricsBackend()
backend.register_counter("agl.test.total", ["path"])
backend.inc("agl.test.total", {"path": "/x"})
backend.flush()
"""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A metrics folder in which a server process has counted something."""
    path = tmp_path / "metrics"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(path))
    path.mkdir()
    subprocess.run([sys.executable, "-c", WRITER], check=True, timeout=60)
    return path


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout(1, mode="train", worker_id="w")
    await store.add_span(span(rollout.rollout_id, rollout.attempt.attempt_id))
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await store.enqueue_rollout(2)
    yield store


def exporter_of(poll: StatePoll) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_prometheus_app("/v1/prometheus", None, poll))
    return httpx.AsyncClient(transport=transport, base_url="http://exporter")


async def series(exporter: httpx.AsyncClient, prefix: str = "agl_state_") -> dict[str, float]:
    text = (await exporter.get("/v1/prometheus")).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_the_stores_figures_are_served(
    folder: Path, store: InMemoryLightningStore, clock: Clock
) -> None:
    async with serving(store) as server:
        poll = StatePoll(server.endpoint, None, StateGauges(clock=clock))
        async with exporter_of(poll) as exporter:
            before = await series(exporter)
            assert before == {"agl_state_up": 0, "agl_state_age_seconds": 0}
            await poll.ask()
            clock.now += 7
            figures = await series(exporter)
            again = await series(exporter)
            counters = await series(exporter, "agl_test")
        await poll._forget_client()
    assert figures == again
    assert figures["agl_state_up"] == 1
    assert figures["agl_state_age_seconds"] == 7
    assert figures[LABELLED] == 1
    assert figures["agl_state_queue_depth"] == 1
    assert figures["agl_state_spans_stored"] == 1
    assert figures['agl_state_finished_without_spans{mode="train"}'] == 0
    assert figures['agl_state_finished_without_reward{mode="train"}'] == 1
    assert figures["agl_state_eviction_threshold_bytes"] > 0
    assert counters == {'agl_test_total{path="/x"}': 1}


async def test_figures_of_a_store_that_is_away_vanish_and_nothing_else_does(
    folder: Path, store: InMemoryLightningStore, clock: Clock
) -> None:
    async with serving(store) as server:
        poll = StatePoll(server.endpoint, None, StateGauges(clock=clock, limit=60))
        await poll.ask()
    async with exporter_of(poll) as exporter:
        clock.now += 59
        await poll.ask()
        young = await series(exporter)
        clock.now += 2
        await poll.ask()
        old = await series(exporter)
        counters = await series(exporter, "agl_test")
    assert (young["agl_state_up"], young["agl_state_age_seconds"]) == (0, 59)
    assert young[LABELLED] == 1
    assert old == {"agl_state_up": 0, "agl_state_age_seconds": 61}
    assert counters == {'agl_test_total{path="/x"}': 1}


def told_by_the_poll(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == StatePoll.__module__]


async def test_a_wrong_token_is_told_once_and_a_new_one_is_taken_up(
    folder: Path,
    store: InMemoryLightningStore,
    clock: Clock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agl.cli._state_poll")
    file = tmp_path / "token"
    file.write_text("wrong\n")
    async with serving(store, api_token="right/@") as server:
        poll = StatePoll(server.endpoint, file, StateGauges(clock=clock))
        async with exporter_of(poll) as exporter:
            for _ in range(3):
                await poll.ask()
            assert (await series(exporter))["agl_state_up"] == 0
            told = told_by_the_poll(caplog)
            assert len(told) == 1
            assert f"wants another token (see {file})" in told[0]
            file.write_text("right/@\n")
            await poll.ask()
            assert (await series(exporter))["agl_state_up"] == 1
            file.unlink()
            await poll.ask()
            assert (await series(exporter))["agl_state_up"] == 0
        await poll._forget_client()
    told = told_by_the_poll(caplog)
    assert "tells its state again" in told[1]
    assert "cannot be read" in told[2]
    assert "right" not in " ".join(told)


class Forgetful(InMemoryLightningStore):
    """A store of somebody else's, which keeps no figures."""

    async def state(self) -> Any:
        raise NotImplementedError("no figures here")


async def test_a_store_that_keeps_no_figures_is_told_apart(
    folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Forgetful()) as server:
        poll = StatePoll(server.endpoint, None, StateGauges(clock=clock))
        await poll.ask()
        await poll._forget_client()
    assert "answered 501 to GET /v1/agl/state" in caplog.text


@pytest.mark.parametrize("url", ["store:4747", "ftp://store", "http://"])
def test_addresses_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(UsageError, match="--store-url"):
        StatePoll(url, None, StateGauges())


def test_a_token_is_given_in_one_place_and_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(EnvironmentFault, match="--store-token-file"):
        StatePoll("http://127.0.0.1:1", file, StateGauges())
    file.write_text("t")
    with pytest.raises(UsageError, match="--store-token-file"):
        StatePoll("http://agl:t@127.0.0.1:1", file, StateGauges())
    ended = run_agl(
        "prometheus",
        "--store-token-file",
        str(file),
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )
    assert ended.returncode == 2
    assert (
        ended.stderr
        == "agl prometheus: error: argument --store-token-file: --store-url is missing\n"
    )


def test_the_exporter_is_up_before_the_store_and_finds_it_when_it_comes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    ports = free_port(), free_port()
    env = {
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared"),
        "AGL_STORE_URL": f"http://127.0.0.1:{ports[0]}",
        "AGL_STORE_TOKEN_FILE": str(token),
    }
    metrics = f"http://127.0.0.1:{ports[1]}/v1/prometheus"
    with running_agl("prometheus", "--port", str(ports[1]), env=env) as exporter:
        assert b"\nagl_state_up 0.0\n" in wait_until_answering(metrics, exporter)
        wait_until_answering(f"http://127.0.0.1:{ports[1]}/health", exporter)
        options = ("--port", str(ports[0]), "--api-token-file", str(token))
        with running_agl("store", *options) as store:
            deadline = time.monotonic() + 60
            while b"\nagl_state_up 1.0\n" not in (body := wait_until_answering(metrics, exporter)):
                assert time.monotonic() < deadline, body
                time.sleep(0.1)
            store.terminate()
            store.communicate(timeout=60)
        exporter.terminate()
        out, err = exporter.communicate(timeout=60)
    assert b"\nagl_state_queue_depth 0.0\n" in body
    assert (exporter.returncode, err) == (0, "")
    assert "s3cret" not in out
    assert "Traceback" not in out
