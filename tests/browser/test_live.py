"""The shipped dashboard over a store at work: real processes, scraped by a real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import history
import pytest
from chromium import Page
from conftest import PICTURES, ROOT, panels
from ports import free_port
from processes import running_agl, wait_until_answering
from test_panels import SETTLED, body, titles

from agl import LightningStoreClient

pytestmark = pytest.mark.timeout(300)

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: app
    metrics_path: /v1/prometheus
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture
def stack(tools: None, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a store and of the panels over its metrics."""
    metrics = tmp_path / "multiproc"
    metrics.mkdir()
    env = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    ports = [free_port() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        here = ("--host", "127.0.0.1", "--port")
        store = start(
            running_agl("store", *here, str(ports[0]), "--tracker", "prometheus", env=env)
        )
        exporter = start(running_agl("prometheus", *here, str(ports[1]), env=env))
        wait_until_answering(f"http://127.0.0.1:{ports[0]}/v1/agl/health", store)
        wait_until_answering(f"http://127.0.0.1:{ports[1]}/health", exporter)
        data = tmp_path / "tsdb"
        prometheus = start(history.prometheus(data, CONFIG.format(port=ports[1])))
        url = start(panels(prometheus, ROOT / "grafana" / "dashboards", "--home", "agl-store"))
        yield f"http://127.0.0.1:{ports[0]}", url


async def work(url: str) -> None:
    """What a trainer and a runner do, rollout after rollout, until it is cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        store = LightningStoreClient(url)
        stack.push_async_callback(store.close)
        while True:
            await store.enqueue_rollout({"question": 1}, mode="train")
            claimed = await store.dequeue_rollout(worker_id="Worker-1")
            assert claimed is not None
            await store.update_attempt(
                claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
            )
            await asyncio.sleep(0.1)


async def test_the_store_board_shows_a_store_at_work(page: Page, stack: tuple[str, str]) -> None:
    store, url = stack
    await page.size(1600, 2400)
    working = asyncio.create_task(work(store))
    await page.open(f"{url}/")
    await page.until("location.pathname === '/d/agl-store/lightningstore'")
    await page.open(f"{url}/d/agl-store?from=now-5m&to=now&theme=light")
    wanted = (
        "HTTP Requests / Sec (by Path)",
        "Store Latency (P50, P95, P99)",
        "Rollout Completion Rate (by Status)",
        "Collection Ops / Sec (by Store Method)",
    )
    for title in wanted:
        drawn = (
            "[...document.querySelectorAll('.panel')].some((p) => p.querySelector('canvas') &&"
            f" p.querySelector('h3').textContent === '{title}')"
        )
        await page.until(drawn, f"{title} is drawn")
        assert not working.done(), working.result()
    working.cancel()
    await page.until(SETTLED)
    await page.picture(PICTURES / "store-at-work.png")
    assert await titles(page, ".panel.failed") == []
    assert "POST /v1/agl/" in await body(page, "HTTP Requests / Sec (by Path)")
    assert "succeeded" in await body(page, "Rollout Completion Rate (by Status)")
    assert page.errors == []
