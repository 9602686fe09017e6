"""What the store counts and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agl.errors import AttemptNotFoundError, RolloutNotFoundError
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.operations import (
    COLLECTION_STORE_PUBLIC_METHODS,
    ERROR_LABELS,
    StoreRecorder,
    get_current_store_methods,
    operation,
    status_label,
    step,
)
from agl.types import OtelResource, RolloutConfig, Span, TraceStatus
from agl.utils.metrics import MetricsBackend
from agl.utils.metrics_catalogue import CATALOGUE

Row = tuple[str, tuple[str, ...]]


class Recorded(MetricsBackend):
    """Keeps what is recorded, by metric and label values in registration order."""

    def __init__(self) -> None:
        self.labels: dict[str, tuple[str, ...]] = {}
        self.buckets: dict[str, Any] = {}
        self.counters: Counter[Row] = Counter()
        self.observed: dict[Row, list[float]] = {}

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self.labels[name] = tuple(label_names or ())

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        self.labels[name] = tuple(label_names or ())
        self.buckets[name] = buckets

    def _row(self, name: str, labels: Mapping[str, str] | None) -> Row:
        return name, tuple((labels or {})[label] for label in self.labels[name])

    def inc(self, name: str, labels: Mapping[str, str] | None = None, amount: float = 1.0) -> None:
        self.counters[self._row(name, labels)] += int(amount)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.observed.setdefault(self._row(name, labels), []).append(value)

    def touch_counter(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        self.counters[self._row(name, labels)] += 0

    def touch_histogram(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        self.observed.setdefault(self._row(name, labels), [])


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def store(recorded: Recorded) -> InMemoryLightningStore:
    return InMemoryLightningStore(tracker=recorded)


def _span(rollout_id: str, attempt_id: str, number: int = 1) -> Span:
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id="t",
        span_id=str(number),
        parent_id=None,
        name="s",
        status=TraceStatus(status_code="OK"),
        attributes={},
        events=[],
        links=[],
        start_time=None,
        end_time=None,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def test_known_label_sets_exist_from_the_start(
    store: InMemoryLightningStore, recorded: Recorded
) -> None:
    for method in COLLECTION_STORE_PUBLIC_METHODS:
        labels = (method, method, "OK")
        assert recorded.counters[("agl.store.total", labels)] == 0
        histogram = "agl.store.waits" if method.startswith("wait_") else "agl.store.latency"
        assert recorded.observed[(histogram, labels)] == []
    modes = ("train", "val", "test", "unknown")
    expected = {(s, m) for s in ("succeeded", "failed", "cancelled") for m in modes}
    assert {row for name, row in recorded.counters if name == "agl.rollouts.total"} == expected
    assert {row for name, row in recorded.observed if name == "agl.rollouts.duration"} == expected


def test_metrics_are_registered_as_upstream_names_them(
    store: InMemoryLightningStore, recorded: Recorded
) -> None:
    assert recorded.labels["agl.store.total"] == ("method", "store_pubmeth", "status")
    assert recorded.labels["agl.rollouts.total"] == ("status", "mode")
    assert recorded.labels["agl.collections.total"] == (
        "store_pubmeth",
        "operation",
        "collection",
        "store_privmeth",
        "status",
    )
    assert recorded.buckets == {name: CATALOGUE[name].buckets for name in recorded.buckets}


def test_public_methods_are_those_of_the_contract() -> None:
    contract = {
        name
        for name in vars(LightningStore)
        if not name.startswith("_") and name not in ("capabilities", "otlp_traces_endpoint")
    }
    uncounted = {"statistics", "state"}
    assert set(COLLECTION_STORE_PUBLIC_METHODS) == contract - uncounted | {"wait_for_rollout"}


async def test_each_call_is_counted_once_under_its_name(
    store: InMemoryLightningStore, recorded: Recorded
) -> None:
    rollout = await store.start_rollout("a")
    await store.add_span(_span(rollout.rollout_id, rollout.attempt.attempt_id))
    with pytest.raises(RolloutNotFoundError):
        await store.start_attempt("ro-none")
    await store.wait_for_rollouts(rollout_ids=["ro-none"], timeout=0)

    def count(method: str, status: str = "OK") -> int:
        return recorded.counters[("agl.store.total", (method, method, status))]

    assert count("start_rollout") == count("add_span") == count("wait_for_rollouts") == 1
    assert count("start_attempt", "RolloutNotFoundError") == 1
    assert count("start_attempt") == 0
    step_row = ("agl.store.total", ("_add_many_spans_helper", "add_span", "OK"))
    assert recorded.counters[step_row] == 1
    waits = ("wait_for_rollouts", "wait_for_rollouts", "OK")
    assert len(recorded.observed[("agl.store.waits", waits)]) == 1
    assert ("agl.store.latency", waits) not in recorded.observed


async def test_collections_know_their_operation(
    store: InMemoryLightningStore, recorded: Recorded
) -> None:
    rollout = await store.start_rollout("a")
    await store.add_span(_span(rollout.rollout_id, rollout.attempt.attempt_id))

    def count(*labels: str) -> int:
        return recorded.counters[("agl.collections.total", labels)]

    assert count("start_rollout", "insert", "rollouts", "start_rollout", "OK") == 1
    assert count("add_span", "insert", "spans", "_add_many_spans_helper", "OK") == 1
    assert count("add_span", "chmax", "span_sequence_ids", "_add_many_spans_helper", "OK") == 1
    assert count("start_rollout", "atomic", "router", "start_rollout", "OK") == 1
    with pytest.raises(ValueError, match="exists"):
        await store.collections.rollouts.insert([rollout])
    assert count("unknown", "insert", "rollouts", "unknown", "DuplicatedPrimaryKeyError") == 1


async def test_a_rollout_is_counted_once_when_it_finishes(
    store: InMemoryLightningStore, recorded: Recorded
) -> None:
    first = await store.start_rollout("a", mode="train")
    second = await store.start_rollout("b")
    await store.update_attempt(first.rollout_id, "latest", status="succeeded")
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    await store.update_rollout(first.rollout_id, status="succeeded")
    await store.update_rollout(second.rollout_id, status="cancelled")

    total = {
        row: n for (name, row), n in recorded.counters.items() if name == "agl.rollouts.total" and n
    }
    assert total == {("succeeded", "train"): 1, ("cancelled", "unknown"): 1}
    (duration,) = recorded.observed[("agl.rollouts.duration", ("succeeded", "train"))]
    assert 0 <= duration < 60


async def test_claims_are_counted_and_their_delay_is_timed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryLightningStore(tracker=recorded)
    began = store._now()
    retried = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    first = await store.enqueue_rollout("a", mode="train", config=retried)
    await store.enqueue_rollout("b")
    monkeypatch.setattr("agl.store.collection_based.time.time", lambda: began + 60)
    await store.dequeue_many_rollouts(limit=5)
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    assert await store.dequeue_rollout() is not None
    assert await store.dequeue_rollout() is None
    await store.start_attempt(first.rollout_id)
    await store.start_rollout("never queued", mode="train")

    claims = {
        row: n
        for (name, row), n in recorded.counters.items()
        if name == "agl.rollouts.claims.total" and n
    }
    assert claims == {("first", "train"): 1, ("first", "unknown"): 1, ("retry", "train"): 1}
    (delay,) = recorded.observed[("agl.rollouts.claim.delay", ("train",))]
    assert 59 < delay <= 60


async def test_the_watchdogs_finish_is_counted(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryLightningStore(tracker=recorded, scan_debounce_seconds=0)
    await store.start_rollout("a", config=RolloutConfig(timeout_seconds=5))
    now = store._now()
    monkeypatch.setattr("agl.store.collection_based.time.time", lambda: now + 60)

    await store.query_workers()

    assert recorded.counters[("agl.rollouts.total", ("failed", "unknown"))] == 1
    row = ("update", "attempts", "_scan_for_unhealthy_rollouts", "OK")
    assert recorded.counters[("agl.collections.total", ("_scan_for_unhealthy_rollouts", *row))] == 1


async def test_late_news_and_duplicates_are_counted(
    store: InMemoryLightningStore, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = await store.start_rollout("a")
    span = _span(rollout.rollout_id, rollout.attempt.attempt_id)
    await store.add_span(span)
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await store.update_attempt(rollout.rollout_id, "latest", status="running")
    await store.add_many_spans([span, span])

    assert recorded.counters[("agl.rollouts.late.total", ("attempt",))] == 1
    assert recorded.counters[("agl.rollouts.late.total", ("span",))] == 1
    assert recorded.counters[("agl.spans.duplicates.total", ())] == 2
    assert "Duplicated span added for rollout" in caplog.text


class _Named:
    recorder = None

    @operation
    async def outer(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return get_current_store_methods(), await self.inner()

    @step
    async def inner(self) -> tuple[str, str]:
        return get_current_store_methods()


async def test_names_of_operation_and_step() -> None:
    named: Any = _Named()
    assert await named.outer() == (("unknown", "unknown"), ("unknown", "unknown"))
    named.recorder = StoreRecorder(Recorded())
    assert await named.outer() == (("outer", "outer"), ("outer", "inner"))
    assert get_current_store_methods() == ("unknown", "unknown")


class _OwnError(AttemptNotFoundError):
    pass


class _Strange(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (None, "OK"),
        (RolloutNotFoundError("x"), "RolloutNotFoundError"),
        (_OwnError("x"), "AttemptNotFoundError"),
        (FileNotFoundError("x"), "OSError"),
        (_Strange("x"), "Exception"),
        (SystemExit(), "Exception"),
    ],
)
def test_status_labels_are_bounded(error: BaseException | None, label: str) -> None:
    assert status_label(error) == label
    assert label in ERROR_LABELS | {"OK"}
