"""All rule files in a real Prometheus that scrapes a store at work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import history
import pytest
from ports import free_port
from processes import running_agl, wait_until_answering
from rule_checks import ALERTS, RULES

from agl.errors import RolloutNotFoundError
from agl.ops.alerting import load_recorded
from agl.store.client_server import LightningStoreClient

CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/*.yml]
scrape_configs:
  - job_name: app
    metrics_path: /v1/prometheus
    static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{host: here}}}}]
"""
WITH_FAILURES_ONLY = {"operation_collection:agl_collections_errors:ratio_rate1m"}
"""Operations on collections have no counters before they happen, failures included."""

OF_A_STORE = {
    name for name in load_recorded(RULES) if not name.startswith(("gpu:", "instance:mongodb_"))
} - WITH_FAILURES_ONLY


def hurried(source: Path, target: Path) -> None:
    """A copy of a rule file whose groups are all evaluated every second."""
    target.write_text(re.sub(r"^    interval: .*\n", "", source.read_text(), flags=re.MULTILINE))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a store and of a Prometheus with our rules."""
    try:
        history.tool("prometheus")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    folders = {name: tmp_path / name for name in ("multiproc", "rules")}
    for folder in folders.values():
        folder.mkdir()
    for source in (*RULES.glob("*.yml"), *ALERTS.glob("*.yml")):
        hurried(source, folders["rules"] / f"{source.parent.name}-{source.name}")
    ports = [free_port() for _ in range(2)]
    store_url = f"http://127.0.0.1:{ports[0]}"
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folders["multiproc"])}
    here = ("--host", "127.0.0.1", "--port")
    with contextlib.ExitStack() as running:
        start = running.enter_context
        store = start(
            running_agl("store", *here, str(ports[0]), "--tracker", "prometheus", env=env)
        )
        wait_until_answering(f"{store_url}/v1/agl/health", store)
        options = ("--store-url", store_url)
        exporter = start(running_agl("prometheus", *here, str(ports[1]), *options, env=env))
        wait_until_answering(f"http://127.0.0.1:{ports[1]}/health", exporter)
        config = CONFIG.format(rules=folders["rules"], port=ports[1])
        yield store_url, start(history.prometheus(tmp_path / "tsdb", config))


async def work(url: str) -> None:
    """A trainer and a runner, rollout after rollout, until it is cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        store = LightningStoreClient(url)
        stack.push_async_callback(store.close)
        while True:
            await store.enqueue_rollout({"question": 1}, mode="train")
            claimed = await store.dequeue_rollout(worker_id="Worker-1")
            assert claimed is not None
            with contextlib.suppress(RolloutNotFoundError):
                await store.start_attempt("ro-none")
            await store.update_attempt(
                claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
            )
            await asyncio.sleep(0.2)


def ask(prometheus: str, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{query}", timeout=30) as answer:
        return json.load(answer)["data"]


def recorded(prometheus: str) -> dict[str, list[dict[str, Any]]]:
    """The series there are now whose names have colons, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for series in ask(prometheus, "query", query='{__name__=~".+:.+:.+"}')["result"]:
        found.setdefault(series["metric"]["__name__"], []).append(series)
    return found


async def test_every_rule_works_on_the_series_of_a_store(stack: tuple[str, str]) -> None:
    store, prometheus = stack
    working = asyncio.create_task(work(store))
    deadline = time.monotonic() + 60
    while missing := OF_A_STORE - set(found := await asyncio.to_thread(recorded, prometheus)):
        assert not working.done(), working.result()
        assert time.monotonic() < deadline, f"no series of {sorted(missing)}"
        await asyncio.sleep(0.5)
    working.cancel()

    for name in OF_A_STORE - {"slo:objective:ratio"}:
        assert {series["metric"]["host"] for series in found[name]} == {"here"}, name
    slos = {"store_availability", "store_latency", "scheduling"}
    assert {series["metric"]["slo"] for series in found["slo:error_budget:burn_rate3d"]} == slos
    failing = {
        series["metric"]["method"]: float(series["value"][1])
        for series in found["method:agl_store_errors:ratio_rate1m"]
        if float(series["value"][1]) > 0
    }
    assert failing == {"start_attempt": 1.0}
    groups = ask(prometheus, "rules")["groups"]
    ill = [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]
    assert ill == []
    alerts = {alert["labels"]["alertname"] for alert in ask(prometheus, "alerts")["alerts"]}
    assert not {name for name in alerts if name.startswith(("Store", "Exporter", "Metrics"))}
