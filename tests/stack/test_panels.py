"""Every query of every dashboard, asked of the running Prometheus after a real workload."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agl.errors import NotFoundError
from agl.store.client_server import LightningStoreClient
from agl.types import OtelResource, Span, TraceStatus

AGL = str(Path(sys.executable).with_name("agl"))
FOLDER = Path(__file__).resolve().parents[2] / "grafana" / "dashboards"

RANGE_SECONDS = 3600
RULES_SECONDS = 200
"""Recording rules of recording rules follow the workload by up to two minutes."""

PANEL_WIDTH = 1000
MAY_BE_EMPTY: dict[str, str] = {
    "Availability Budget Burn": "no request of the workload fails",
    "Latency Budget Burn": "none takes as long as the objective allows",
    "Spans Given Up / Sec": "none is",
}
"""Title -> reason, for panels that the workload cannot fill."""

BOARDS = {"agl-store.json": json.loads((FOLDER / "agl-store.json").read_text())}
"""The boards that this bundle fills; tests/stack_mongo asks for those of MongoDB."""
TARGETS = [
    pytest.param(panel["title"], target["expr"], id=f"{panel['title']} {target['refId']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]

WELL = "✓"
"""A panel that says so where it is empty shows troubles; a bundle that is well has none."""
OTHERS = {
    "agl-overview": {"Rollouts Finished / Min, and an Hour Before": "younger than an hour"},
    "agl-rollouts": {},
    "agl-node": {},
    "agl-monitoring": {
        "Alerts That Fire": "none does",
        "Alertmanager to a Person: Failures": "nobody is paged",
        "Alertmanager's Members": "it is alone",
    },
}
"""The other boards that this bundle fills; panels that may be empty, and why."""

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def scrape_seconds(stack: Any) -> float:
    """The scrape interval of the target that the store's metrics come from."""
    targets = ask(stack.prometheus_url, "targets", state="active")["activeTargets"]
    interval = next(found for found in targets if found["labels"]["job"] == "app")["scrapeInterval"]
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", interval).groups()  # type: ignore[union-attr] # a bare duration
    return int(number) * {"ms": 0.001, "s": 1.0, "m": 60.0}[unit]


@pytest.fixture(scope="module")
def workload(stack: Any, scrape_seconds: float) -> None:
    """Rollouts, and real errors before and after them, so that their rate is not lost."""
    asyncio.run(provoke_errors(stack.store_url))
    stack.wait_for_scrapes(2)
    subprocess.run(
        [
            *(AGL, "bench", "scenario", "minimal", "--store-url", stack.store_url),
            *("--rollouts", "120", "--batch-size", "40", "--runners", "4", "--seed", "3"),
        ],
        check=True,
        timeout=200,
    )
    asyncio.run(provoke_errors(stack.store_url))
    stack.wait_for_scrapes(3)


async def provoke_errors(store_url: str) -> None:
    """Do wrong what callers do wrong: bad JSON, an id nobody knows, a span sent twice."""
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{store_url}/v1/agl/queues/rollouts/enqueue",
            content=b"{nonsense",
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422, answer.text
    client = LightningStoreClient(store_url, retry_delays=())
    try:
        with pytest.raises(NotFoundError):
            await client.update_attempt("ro-nobody-knows", "latest", status="succeeded")
        rollout = await client.start_rollout({"task": "send a span twice"})
        span = Span.from_attributes(
            attributes={},
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            sequence_id=1,
            start_time=time.time(),
            end_time=time.time(),
            status=TraceStatus(status_code="OK"),
            resource=OtelResource(attributes={}, schema_url=""),
        )
        assert await client.add_span(span) is not None
        assert await client.add_span(span) is None
        await client.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
        )
    finally:
        await client.close()


@pytest.mark.usefixtures("workload")
@pytest.mark.parametrize(("title", "expr"), TARGETS)
def test_query_returns_data(stack: Any, scrape_seconds: float, title: str, expr: str) -> None:
    now = time.time()
    step = max(RANGE_SECONDS / PANEL_WIDTH, scrape_seconds)
    data = ask(
        stack.prometheus_url,
        "query_range",
        query=substituted(expr, step, scrape_seconds),
        start=str(now - RANGE_SECONDS),
        end=str(now),
        step=str(step),
    )
    values = [float(value) for series in data["result"] for _, value in series["values"]]
    if title in MAY_BE_EMPTY:
        return
    assert any(math.isfinite(value) and value > 0 for value in values), (
        f"{title}: {len(data['result'])} series, but nothing to see"
    )


@pytest.mark.usefixtures("workload")
@pytest.mark.parametrize("uid", OTHERS)
def test_boards_tell_what_the_bundle_has(stack: Any, scrape_seconds: float, uid: str) -> None:
    board = json.loads((FOLDER / f"{uid}.json").read_text())
    give_up = time.monotonic() + RULES_SECONDS
    while silent := silent_panels(stack, scrape_seconds, board) - OTHERS[uid].keys():
        assert time.monotonic() < give_up, silent
        time.sleep(5)


def silent_panels(stack: Any, scrape_seconds: float, board: dict[str, Any]) -> set[str]:
    """Titles of the panels that show nothing, and do not say that this is well."""
    now = time.time()
    span = {"start": str(now - 600), "end": str(now), "step": str(scrape_seconds)}
    silent: set[str] = set()
    for panel in (panel for panel in board["panels"] if panel["type"] != "row"):
        for target in panel.get("targets", []):
            query = substituted(target["expr"], scrape_seconds, scrape_seconds)
            data = ask(stack.prometheus_url, "query_range", query=query, **span)
            values = [float(value) for one in data["result"] for _, value in one["values"]]
            told = any(map(math.isfinite, values))
            if not told and not panel["fieldConfig"]["defaults"].get("noValue", "").startswith(
                WELL
            ):
                silent.add(panel["title"])
    return silent


@pytest.mark.usefixtures("workload")
@pytest.mark.parametrize("name", ["job", "instance"])
def test_variables_offer_values(stack: Any, name: str) -> None:
    for board in BOARDS.values():
        variable = next(found for found in board["templating"]["list"] if found["name"] == name)
        selection = re.fullmatch(rf"label_values\((.+), {name}\)", variable["query"])
        assert selection is not None
        match = selection[1].replace("$job", ".+")
        assert ask(stack.prometheus_url, f"label/{name}/values", **{"match[]": match})


def test_exceptions_name_panels_that_exist() -> None:
    titles = {panel["title"] for board in BOARDS.values() for panel in board["panels"]}
    assert set(MAY_BE_EMPTY) <= titles
    assert all(MAY_BE_EMPTY.values())
    for uid, reasons in OTHERS.items():
        others = json.loads((FOLDER / f"{uid}.json").read_text())["panels"]
        assert set(reasons) <= {panel["title"] for panel in others}
        assert all(reasons.values())


def substituted(expr: str, step: float, scrape: float) -> str:
    """Return the query as Grafana sends it with every variable on All."""
    window = max(step + scrape, 4 * scrape)
    text = expr.replace("$__rate_interval", f"{math.ceil(window * 1000)}ms")
    text = re.sub(r"\$(job|instance|host)\b", ".+", text)
    assert "$" not in text
    return text


def ask(prometheus_url: str, path: str, **parameters: str) -> Any:
    answer = httpx.get(f"{prometheus_url}/api/v1/{path}", params=parameters, timeout=30)
    body = answer.json()
    assert body["status"] == "success", body
    return body["data"]
