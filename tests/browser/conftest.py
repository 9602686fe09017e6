"""A Prometheus with a past and `agl panels` before it, for all tests of the browser."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gallery
import history
import pytest
from chromium import Page, browser, find_chromium
from ports import free_port
from processes import running_agl

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / ".cache" / "panels"


def query(expr: str, **more: Any) -> dict[str, Any]:
    return {"refId": "A", "expr": expr, "legendFormat": "__auto", **more}


def panel(title: str, *targets: dict[str, Any], kind: str = "timeseries", **more: Any) -> Any:
    grid = {"x": 0, "y": 0, "w": 12, "h": 7}
    return {"type": kind, "title": title, "gridPos": grid, "targets": list(targets), **more}


ODD: dict[str, Any] = {
    "uid": "odd",
    "title": "Odd",
    "timezone": "utc",
    "time": {"from": str(history.START * 1000), "to": str(history.END * 1000)},
    "templating": {"list": [{"name": "bad", "type": "query", "query": "label_values(up{, job)"}]},
    "annotations": {"list": [{"name": "Broken", "enable": True, "expr": "sum("}]},
    "panels": [
        panel("Good", query("queue_depth")),
        panel("Bad query", query("sum(rate(x[5m)")),
        panel("Missing", query("no_such_series")),
        panel("Half", query("queue_depth"), query("sum(", refId="B")),
        panel("Thousand", query("many")),
        panel("Odd thresholds", query("up"),
              fieldConfig={"defaults": {"thresholds": {"steps": 5}}}),
        panel("Odd steps", query("up"), kind="stat",
              fieldConfig={"defaults": {"thresholds": {"steps": [5, None]}}}),
        panel("Odd override", query("queue_depth"),
              fieldConfig={"overrides": [
                  {"matcher": 5, "properties": [{"id": "unit", "value": {}}]}]}),
        panel("Unknown kind", query("queue_depth"), kind="nodeGraph"),
        panel("Elsewhere", query("x", datasource={"type": "loki", "uid": "l"})),
        "not a panel",
    ],
}  # fmt: skip
MONTH: dict[str, Any] = {
    "uid": "month",
    "title": "Month",
    "timezone": "utc",
    "time": {"from": str((history.END - 30 * 86400) * 1000), "to": str(history.END * 1000)},
    "panels": [panel("A month", query("month"))],
}


@dataclass(frozen=True)
class Site:
    """Addresses of the server and of Prometheus, and the folder of the dashboards."""

    url: str
    prometheus: str
    boards: Path


@pytest.fixture(scope="session")
def tools() -> None:
    """Chromium and Prometheus, or a skip that says how to get them."""
    try:
        find_chromium()
        history.tool("prometheus")
    except FileNotFoundError as exc:
        if os.environ.get("AGL_BROWSER_REQUIRED"):
            raise
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def site(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("panels")
    boards = folder / "boards"
    boards.mkdir()
    gallery.write(boards)
    for board in (ODD, MONTH):
        (boards / f"{board['uid']}.json").write_text(json.dumps(board))
    (boards / "broken.json").write_text("{")
    shipped = ROOT / "grafana" / "dashboards" / "agl-store.json"
    (boards / shipped.name).write_bytes(shipped.read_bytes())
    history.build_blocks(folder / "tsdb", history.exposition())
    with history.prometheus(folder / "tsdb") as prometheus, panels(prometheus, boards) as url:
        yield Site(url, prometheus, boards)


@contextlib.contextmanager
def panels(prometheus: str, boards: Path, *more: str) -> Iterator[str]:
    """`agl panels` of these dashboards; gives its address once it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ("--port", str(port), "--prometheus-url", prometheus, "--dashboards", str(boards))
    with running_agl("panels", *options, "--scrape-interval", "15s", *more) as process:
        limit = time.monotonic() + 60
        while not answers(f"{url}/api/health"):
            assert process.poll() is None, "agl panels has ended"
            assert time.monotonic() < limit, "agl panels did not answer within 60 s"
            time.sleep(0.1)
        yield url


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


@pytest.fixture
async def page(tools: None) -> AsyncIterator[Page]:
    async with browser() as found:
        yield found
