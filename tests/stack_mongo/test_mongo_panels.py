"""Every query of MongoDB's board, asked of the running Prometheus."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import httpx
import pytest
from bundle import Stack
from mongo_bundle import play

FOLDER = Path(__file__).resolve().parents[2] / "grafana" / "dashboards"
BOARD = json.loads((FOLDER / "agl-mongodb.json").read_text())
SCRAPE = 15.0
STAND_IN = "the stand-in for MongoDB does not tell"
WELL = "✓"
"""A panel that says so where it is empty shows troubles; a bundle that is well has none."""
MAY_BE_EMPTY = {
    "Disk Used": STAND_IN,
    "MongoDB Replication Lag": "a replica set of one member",
    "MongoDB Latency (by Kind)": STAND_IN,
    "MongoDB Cache (Share of Its Limit)": STAND_IN,
}
"""Title -> reason, for panels that this server cannot fill."""

TARGETS = [
    pytest.param(panel["title"], target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in BOARD["panels"]
    if not panel.get("fieldConfig", {}).get("defaults", {}).get("noValue", "").startswith(WELL)
    for target in panel.get("targets", [])
]

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def _workload(stack: Stack) -> None:
    """Some work, and until the exporter has told of it twice."""
    before = last_scrape(stack)
    play(stack.store_url, 20)
    deadline = time.monotonic() + 90
    while last_scrape(stack) < before + 3 * SCRAPE:
        assert time.monotonic() < deadline
        time.sleep(1)


def last_scrape(stack: Stack) -> float:
    return stack.value("max(timestamp(mongodb_up))")


def substituted(expr: str) -> str:
    """The query as Grafana sends it with every variable on All; the window is of 4 scrapes."""
    text = expr.replace("$__rate_interval", "60s")
    text = text.replace("$job", ".+").replace("$instance", ".+")
    assert "$" not in text
    return text


@pytest.mark.usefixtures("_workload")
@pytest.mark.parametrize(("title", "expr"), TARGETS)
def test_query_returns_data(stack: Stack, title: str, expr: str) -> None:
    answer = httpx.get(
        f"{stack.prometheus_url}/api/v1/query_range",
        params={
            "query": substituted(expr),
            "start": str(time.time() - 600),
            "end": str(time.time()),
            "step": "15",
        },
    ).json()
    assert answer["status"] == "success", answer
    if title in MAY_BE_EMPTY:
        return
    series = answer["data"]["result"]
    values = [float(value) for one in series for _, value in one["values"]]
    assert any(map(math.isfinite, values)), f"{title}: {series}"


@pytest.mark.parametrize("name", ["job", "instance"])
def test_variables_offer_values(stack: Stack, name: str) -> None:
    variable = next(found for found in BOARD["templating"]["list"] if found["name"] == name)
    selection = re.fullmatch(rf"label_values\((.+), {name}\)", variable["query"])
    assert selection is not None
    answer = httpx.get(
        f"{stack.prometheus_url}/api/v1/label/{name}/values",
        params={"match[]": selection[1].replace("$job", ".+")},
    ).json()
    assert answer["data"]


def test_exceptions_name_panels_that_exist() -> None:
    assert set(MAY_BE_EMPTY) <= {panel["title"] for panel in BOARD["panels"]}
