"""The catalogue against what is really exposed: names, labels and values, guarded by a file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agl.store.collection.mongo.metrics import DriverMetrics
from agl.store.memory import InMemoryLightningStore
from agl.store.operations import COLLECTION_STORE_PUBLIC_METHODS
from agl.store.rest.app import create_app
from agl.types import StoreState, state
from agl.utils.exporter import Exporter
from agl.utils.exporter_state import StateGauges
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.metrics_catalogue import (
    ATTEMPT_STATUSES,
    CATALOGUE,
    EXPORTER,
    MODES,
    OTHER,
    OTHERS,
    ROLLOUT_STATUSES,
    SERVER,
    STORE,
    WORKER_STATUSES,
    bounded,
    register,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "scrape.txt"
SERIES = "support/series/state.yml"
OF_LIBRARY = ("process_", "python_gc_")
UPSTREAM = {
    "agl_http_total": ("path", "method", "status"),
    "agl_http_latency": ("path", "method", "status"),
    "agl_store_total": ("method", "store_pubmeth", "status"),
    "agl_store_latency": ("method", "store_pubmeth", "status"),
    "agl_rollouts_total": ("status", "mode"),
    "agl_rollouts_duration": ("status", "mode"),
    "agl_collections_total": (
        "store_pubmeth",
        "operation",
        "collection",
        "store_privmeth",
        "status",
    ),
    "agl_collections_latency": (
        "store_pubmeth",
        "operation",
        "collection",
        "store_privmeth",
        "status",
    ),
}


def of_store() -> list[Metric]:
    registry = CollectorRegistry()
    tracker = PrometheusMetricsBackend(registry=registry)
    create_app(InMemoryLightningStore(tracker=tracker), tracker=tracker, api_token="t")
    DriverMetrics(tracker)
    return list(registry.collect())


async def of_exporter(folder: Path) -> list[Metric]:
    gauges = StateGauges()
    gauges.told((await InMemoryLightningStore().state()).model_dump())
    answer = await Exporter(folder, gauges).scrape("application/openmetrics-text;version=1.0.0", "")
    return [
        family
        for family in text_string_to_metric_families(answer.body.decode())
        if not family.name.startswith(OF_LIBRARY)
    ]


def series_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def lines(metrics: Iterable[Metric]) -> list[str]:
    """Types, help texts, and every series without its value; buckets once for a metric."""
    found: set[str] = set()
    for metric in metrics:
        bounds: list[str] = []
        found.add(f"{series_name(metric)} {metric.type}: {metric.documentation}")
        for sample in metric.samples:
            if sample.name.endswith("_created"):
                continue
            labels = dict(sample.labels)
            le = labels.pop("le", "")
            if le and le not in bounds:
                bounds.append(le)
            shown = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            found.add(f"{sample.name}{{{shown}}}")
        if bounds:
            found.add(f"{metric.name} buckets {' '.join(bounds)}")
    return sorted(found)


async def test_a_scrape_at_the_start_is_as_it_was(tmp_path: Path) -> None:
    """``AGL_GOLDEN=write`` renews the file; its diff says what users of the metrics will see."""
    text = "\n".join([*lines(of_store()), *lines(await of_exporter(tmp_path)), ""])
    if os.environ.get("AGL_GOLDEN") == "write":
        GOLDEN.write_text(text, "utf-8")
    before = GOLDEN.read_text("utf-8")
    difference = difflib.unified_diff(before.splitlines(), text.splitlines(), "golden", "now")
    assert "\n".join(difference) == ""


def test_upstreams_metrics_are_all_there() -> None:
    rows = {row.series: row for row in CATALOGUE.values()}
    for name, labels in UPSTREAM.items():
        assert rows[name].label_names == labels
        assert rows[name].type == ("counter" if name.endswith("_total") else "histogram")


async def test_what_is_exposed_is_in_the_catalogue_and_the_other_way_round(tmp_path: Path) -> None:
    rows = {row.series: row for row in CATALOGUE.values()}
    of_files = {name for name, row in rows.items() if "server_process" in row.label_names}
    of_files.add("agl_metrics_dropped_total")
    conditional = {"agl_exporter_newest_write_age_seconds"}
    for metrics, processes, missing in (
        (of_store(), {SERVER}, of_files),
        (await of_exporter(tmp_path), {EXPORTER, STORE}, conditional),
    ):
        exposed = {series_name(metric): metric for metric in metrics}
        expected = {name for name, row in rows.items() if row.process in processes} - missing
        assert exposed.keys() - conditional == expected
        for name, metric in exposed.items():
            assert (metric.type, metric.documentation) == (rows[name].type, rows[name].help)
            for sample in metric.samples:
                assert set(sample.labels) - {"le"} == set(rows[name].label_names), sample
                for label, domain in rows[name].labels:
                    assert sample.labels[label] in domain.values, sample


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_rows_are_well_formed(row: object) -> None:
    assert isinstance(row, type(next(iter(CATALOGUE.values()))))
    assert re.fullmatch(r"[a-z][a-z0-9_]*", row.series)
    assert row.help.endswith(".")
    assert (row.type == "counter") == row.series.endswith("_total")
    assert (row.buckets is not None) == (row.type == "histogram")
    if row.buckets:
        assert 10 <= len(row.buckets) <= 16
        assert list(row.buckets) == sorted(set(row.buckets))
    source = Path(__file__).parents[2] / "app" / "agl" / row.recorded
    assert source.is_file(), row.recorded


def test_rollouts_may_take_a_day() -> None:
    assert CATALOGUE["agl.rollouts.duration"].buckets is not None
    assert CATALOGUE["agl.rollouts.duration"].buckets[-1] == 24 * 3600


def test_only_successes_have_histograms_at_the_start() -> None:
    for metric in of_store():
        if metric.type == "histogram":
            for sample in metric.samples:
                status = sample.labels.get("status", "OK")
                assert status in ("OK", "200", "201", "501", "succeeded", "failed", "cancelled")


def backend() -> tuple[PrometheusMetricsBackend, CollectorRegistry]:
    registry = CollectorRegistry()
    made = PrometheusMetricsBackend(registry=registry)
    register(made, "agl.store.total", "agl.store.latency", "agl.rollouts.total")
    return made, registry


def test_a_value_that_is_not_in_the_catalogue_becomes_other_and_is_counted() -> None:
    made, registry = backend()
    method = COLLECTION_STORE_PUBLIC_METHODS[0]
    odd = [f"odd-{number}" for number in range(50)]
    for status in odd:
        labels = {"method": method, "store_pubmeth": method, "status": status}
        made.inc("agl.store.total", labels)
        made.timer("agl.store.total", "agl.store.latency", labels)(0.5)
    made.flush()
    other = {"method": method, "store_pubmeth": method, "status": OTHER}
    assert registry.get_sample_value("agl_store_total", other) == 100
    assert registry.get_sample_value("agl_store_latency_count", other) == 50
    counted = CATALOGUE[OTHERS].series
    assert (registry.get_sample_value(counted, {"metric": "agl_store_total"}) or 0) >= 100
    assert registry.get_sample_value(counted, {"metric": "agl_rollouts_total"}) == 0
    exposed = made._counter_of("agl.store.total")
    assert len(exposed.records) + len(exposed._timers) < 5  # odd values are not kept


def test_metrics_of_others_keep_their_values() -> None:
    assert bounded("somebody.elses", ("anything",)) == ("anything",)
    made, registry = backend()
    made.register_counter("mine.total", ["x"])
    made.inc("mine.total", {"x": "anything"})
    assert registry.get_sample_value("mine_total", {"x": "anything"}) == 1


def test_the_state_gauges_are_those_of_the_store_and_of_the_alerts_tests() -> None:
    rows = {row.series: row for row in CATALOGUE.values() if row.process == STORE}
    told = {f"agl_state_{name}" for name in StoreState.model_fields if name != "name"}
    assert rows.keys() == told | {"agl_state_up", "agl_state_age_seconds"}
    series = yaml.safe_load(Path(__file__).parents[1].joinpath(SERIES).read_text())
    assert series == {name: list(row.label_names) for name, row in rows.items()}
    for domain, values in (
        (ROLLOUT_STATUSES, state.ROLLOUT_STATUSES),
        (ATTEMPT_STATUSES, state.ATTEMPT_STATUSES),
        (WORKER_STATUSES, state.WORKER_STATUSES),
        (MODES, state.MODE_NAMES),
    ):
        assert domain.values == set(values)
