"""Every query of every board, asked of a real Prometheus that scrapes a cluster and has our rules.

The cluster is ``tests/support/fleet.py``; tests/stack and tests/stack_mongo ask the same of what
the bundle really serves.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import history
import httpx
import pytest
from board_checks import BOARDS, filled, served, targets
from ports import free_port
from rule_checks import ROOT

pytestmark = pytest.mark.timeout(300)

SCRAPES = 15
WINDOW = "20s"
EMPTY = {
    ("agl-overview", "Rollouts Finished / Min, and an Hour Before", "B"): (
        "this Prometheus is younger than an hour; tests/browser has one with a past"
    ),
}
"""Board, panel and query that this cluster gives nothing for, and why."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address, once it has scraped everything often enough for a rate."""
    try:
        history.tool("prometheus")
    except FileNotFoundError as exc:
        pytest.skip(str(exc))
    folder = tmp_path_factory.mktemp("fleet")
    own = free_port()
    with fleet.serving() as port:
        config = fleet.configuration(port, own, hurried_rules(folder))
        with history.prometheus(folder / "tsdb", config, own) as url:
            wait_for_scrapes(url)
            yield url


def hurried_rules(folder: Path) -> Path:
    """Our rules, all of them evaluated every second: some have intervals of a minute."""
    for kind in ("rules", "alerts"):
        (folder / kind).mkdir()
        for path in sorted((ROOT / "prometheus" / kind).glob("*.yml")):
            text = re.sub(r"(?m)^( +interval:) \S+$", r"\1 1s", path.read_text())
            (folder / kind / path.name).write_text(text)
    return folder


def wait_for_scrapes(url: str) -> None:
    limit = time.monotonic() + 120
    while True:
        counts = instant(url, "count_over_time(up[10m])")
        if len(counts) == len(fleet.TARGETS) + 2 and min(counts) >= SCRAPES:
            return
        assert time.monotonic() < limit, f"scraped too seldom: {counts}"
        time.sleep(0.5)


def instant(url: str, query: str) -> list[float]:
    return [float(series["value"][1]) for series in ask(url, "query", query=query)]


def ask(url: str, path: str, **parameters: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/api/v1/{path}", params=parameters, timeout=60).json()
    assert answer["status"] == "success", (parameters, answer)
    return answer["data"]["result"]


def seen(url: str, expr: str) -> bool:
    """Whether a query gives any finite value since this Prometheus began.

    A process starts anew once, early on, so that a shorter look might be too late for it.
    """
    now = time.time()
    span = {"start": str(now - 600), "end": str(now), "step": "5"}
    found = ask(url, "query_range", query=filled(expr, WINDOW), **span)
    return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


@pytest.mark.parametrize("uid", BOARDS)
def test_every_query_gives_something(prometheus: str, uid: str) -> None:
    silent = {
        (uid, target.panel["title"], target.content["refId"])
        for target in targets()
        if target.uid == uid and not seen(prometheus, target.expr)
    }
    assert silent == {key for key in EMPTY if key[0] == uid}


@pytest.mark.parametrize("uid", ["agl-overview", "agl-training"])
def test_a_verdict_is_one_word_at_all_times(prometheus: str, uid: str) -> None:
    """Also before the first evaluation of a rule, which lies within this range."""
    now = time.time()
    span = {"start": str(now - 300), "end": str(now), "step": "1"}
    for target in targets():
        options = target.panel["fieldConfig"]["defaults"]
        if target.uid == uid and target.panel["type"] == "stat" and options.get("mappings"):
            found = ask(prometheus, "query_range", query=filled(target.expr, WINDOW), **span)
            assert len(found) == 1, target.name


@pytest.mark.parametrize("uid", BOARDS)
def test_every_variable_offers_values(prometheus: str, uid: str) -> None:
    for variable in BOARDS[uid]["templating"]["list"]:
        if variable["type"] == "query":
            source = filled(variable["query"].removeprefix("label_values(").rpartition(",")[0])
            url = f"{prometheus}/api/v1/label/{variable['name']}/values"
            found = httpx.get(url, params={"match[]": source}, timeout=60).json()
            assert found["data"], variable["query"]


@pytest.mark.parametrize("uid", BOARDS)
def test_annotations_can_be_asked(prometheus: str, uid: str) -> None:
    for annotation in BOARDS[uid]["annotations"]["list"]:
        if "expr" in annotation:
            ask(prometheus, "query", query=filled(annotation["expr"], WINDOW))


def test_the_cluster_serves_what_exporters_document() -> None:
    known = served()
    for target in fleet.TARGETS:
        for sample in fleet.served(target, 1_767_225_600):
            name = sample.name if sample.name in known else sample.name.rpartition("_")[0]
            labels = {label for label, _ in sample.labels}
            assert name in known or f"{name}_bucket" in known, sample.name
            assert labels <= known.get(name, known.get(f"{name}_bucket", set())), sample
