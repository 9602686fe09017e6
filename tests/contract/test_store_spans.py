"""Spans and their sequence numbers."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from conftest import make_span
from opentelemetry.sdk.trace import TracerProvider

from agl.errors import AttemptNotFoundError, InvalidRequestError, RolloutNotFoundError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Event


async def test_sequence_numbers_belong_to_the_rollout(store: LightningStore) -> None:
    assert await store.get_next_span_sequence_id("ro-x", "at-1") == 1
    assert await store.get_next_span_sequence_id("ro-x", "at-2") == 2
    assert await store.get_next_span_sequence_id("ro-y", "at-1") == 1


async def test_many_sequence_numbers(store: LightningStore) -> None:
    pairs = [("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")]
    assert await store.get_many_span_sequence_ids(pairs) == [1, 1, 2, 3]
    assert await store.get_many_span_sequence_ids(pairs) == [4, 2, 5, 6]
    assert await store.get_many_span_sequence_ids([]) == []


async def test_explicit_numbers_raise_the_counter(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.add_span(make_span(rollout, 7))
    assert await store.get_next_span_sequence_id(rollout.rollout_id, "x") == 8
    await store.add_span(make_span(rollout, 3))
    assert await store.get_next_span_sequence_id(rollout.rollout_id, "x") == 9


async def test_add_span_keeps_everything(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    span = make_span(rollout, 1, kind="SpanKind.INTERNAL")

    assert await store.add_span(span) == span

    (stored,) = await store.query_spans(rollout.rollout_id)
    assert stored == span
    assert stored.model_extra == {"kind": "SpanKind.INTERNAL"}


async def test_attributes_that_are_no_number_come_back(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    odd = {"reward": math.nan, "bound": -math.inf, "both": [math.inf, 1.0]}
    event = Event(name="e", attributes=odd)
    await store.add_span(make_span(rollout, 1, attributes=odd, events=[event]))

    (stored,) = await store.query_spans(rollout.rollout_id)
    for found in (stored.attributes, stored.events[0].attributes):
        assert str(found["reward"]).lower() == "nan"
        assert str(found["bound"]).lower() in ("-inf", "-infinity")
        assert found["both"] == [math.inf, 1.0]


async def test_a_span_shows_that_the_attempt_runs(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    before = time.time()
    await store.add_span(make_span(rollout, 1))

    stored = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(stored, AttemptedRollout)
    assert (stored.status, stored.attempt.status) == ("running", "running")
    assert stored.attempt.last_heartbeat_time is not None
    assert stored.attempt.last_heartbeat_time >= before


async def test_a_duplicate_is_dropped_but_a_sign_of_life(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.add_span(make_span(rollout, 1, name="first"))
    first = await store.get_latest_attempt(rollout.rollout_id)

    assert await store.add_span(make_span(rollout, 1, name="second")) is None
    assert await store.add_many_spans([make_span(rollout, 1, name="third")]) == []

    assert first is not None
    assert first.last_heartbeat_time is not None
    async with asyncio.timeout(60):  # a store may write heartbeats together, a moment later
        while True:
            second = await store.get_latest_attempt(rollout.rollout_id)
            assert second is not None
            if (second.last_heartbeat_time or 0) > first.last_heartbeat_time:
                break
            await asyncio.sleep(0.02)
    assert [span.name for span in await store.query_spans(rollout.rollout_id)] == ["first"]


async def test_add_many_spans_returns_the_new_ones_in_input_order(store: LightningStore) -> None:
    one = await store.start_rollout("a")
    two = await store.start_rollout("b")
    await store.add_span(make_span(one, 2))
    batch = [
        make_span(one, 1),
        make_span(two, 5),
        make_span(one, 2),
        make_span(one, 3),
        make_span(two, 5, name="inside"),
        make_span(two, 4),
    ]

    stored = await store.add_many_spans(batch)

    assert stored == [batch[0], batch[1], batch[3], batch[5]]
    assert [s.sequence_id for s in await store.query_spans(one.rollout_id)] == [1, 2, 3]
    assert [s.sequence_id for s in await store.query_spans(two.rollout_id)] == [4, 5]
    for rollout in (one, two):
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert attempt.status == "running"
    assert await store.get_next_span_sequence_id(two.rollout_id, "x") == 6


async def test_add_no_spans(store: LightningStore) -> None:
    assert await store.add_many_spans([]) == []


async def test_the_same_span_id_in_another_attempt_is_another_span(store: LightningStore) -> None:
    first = await store.start_rollout("a")
    second = await store.start_attempt(first.rollout_id)
    spans = [make_span(first, 1), make_span(second, 1)]

    assert await store.add_many_spans(spans) == spans
    assert len(await store.query_spans(first.rollout_id)) == 2


async def test_spans_that_belong_to_nothing(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    with pytest.raises(RolloutNotFoundError, match="ro-none"):
        await store.add_span(make_span(rollout, 1, rollout_id="ro-none"))
    with pytest.raises(AttemptNotFoundError, match="at-none"):
        await store.add_span(make_span(rollout, 2, attempt_id="at-none"))
    with pytest.raises(AttemptNotFoundError, match="at-none"):
        await store.add_many_spans(
            [make_span(rollout, 3), make_span(rollout, 4, attempt_id="at-none")]
        )

    assert len(await store.query_spans(rollout.rollout_id)) == 0
    assert await store.get_next_span_sequence_id(rollout.rollout_id, "x") == 5


async def test_add_otel_span(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    tracer = TracerProvider().get_tracer("test")
    spans: list[Any] = []
    for name in ("one", "two"):
        with tracer.start_as_current_span(name) as span:
            span.set_attribute("n", 1)
            spans.append(span)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)

    first = await store.add_otel_span(*ids, spans[0])
    second = await store.add_otel_span(*ids, spans[1], sequence_id=9)

    assert first is not None
    assert second is not None
    assert (first.name, first.sequence_id, first.attributes) == ("one", 1, {"n": 1})
    assert second.sequence_id == 9
    assert await store.add_otel_span(*ids, spans[0]) is None
    assert await store.get_next_span_sequence_id(*ids) == 11


async def test_query_spans_filters(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    other = await store.start_rollout("b")
    await store.add_many_spans(
        [
            make_span(rollout, 1, name="chat openai", parent_id=None),
            make_span(rollout, 2, name="tool", parent_id=f"{1:016x}"),
            make_span(rollout, 3, name="Chat", parent_id=f"{2:016x}"),
            make_span(other, 4, name="chat"),
        ]
    )

    async def query(**arguments: Any) -> list[int]:
        found = await store.query_spans(rollout.rollout_id, **arguments)
        return [span.sequence_id for span in found]

    assert await query() == [1, 2, 3]
    assert await query(filter_logic="or") == [1, 2, 3]
    assert await query(name="tool") == [2]
    assert await query(name_contains="hat") == [1, 3]
    assert await query(name_contains="chat") == [1]
    assert await query(span_id=f"{3:016x}") == [3]
    assert await query(trace_id=f"{2:032x}") == [2]
    assert await query(trace_id_contains="0") == [1, 2, 3]
    assert await query(span_id_contains="3") == [3]
    assert await query(parent_id=f"{1:016x}") == [2]
    assert await query(parent_id_contains="2") == [3]
    assert await query(name="tool", span_id=f"{3:016x}") == []
    assert await query(name="tool", span_id=f"{3:016x}", filter_logic="or") == [2, 3]
    assert await query(sort_order="desc", limit=2) == [3, 2]
    assert await query(sort_by="name") == [3, 1, 2]
    assert await query(sort_by="parent_id", sort_order="desc") == [3, 2, 1]
    assert await query(sort_by="parent_id") == [2, 3, 1]


async def test_query_spans_of_attempts(store: LightningStore) -> None:
    first = await store.start_rollout("a")
    await store.add_span(make_span(first, 1))
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(make_span(second, 2))
    queued = await store.enqueue_rollout("b")

    async def query(rollout_id: str, attempt_id: str | None) -> list[int]:
        return [span.sequence_id for span in await store.query_spans(rollout_id, attempt_id)]

    assert await query(first.rollout_id, first.attempt.attempt_id) == [1]
    assert await query(first.rollout_id, "latest") == [2]
    assert await query(first.rollout_id, "at-none") == []
    assert await query(queued.rollout_id, "latest") == []
    assert await query("ro-none", None) == []


async def test_pages_of_spans(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    await store.add_many_spans([make_span(rollout, n) for n in (3, 1, 2, 5, 4)])

    page = await store.query_spans(rollout.rollout_id, limit=2, offset=2)
    assert [span.sequence_id for span in page] == [3, 4]
    assert (page.limit, page.offset, page.total) == (2, 2, 5)


async def test_unsorted_spans_come_as_they_were_stored(store: LightningStore) -> None:
    first = await store.start_rollout("a")
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(make_span(second, 9))
    await store.add_span(make_span(first, 5))
    await store.add_span(make_span(second, 1))

    page = await store.query_spans(first.rollout_id, sort_by=None)

    assert [span.sequence_id for span in page] == [9, 5, 1]


async def test_an_unknown_field_to_sort_by_is_refused_without_any_attempt(
    store: LightningStore,
) -> None:
    rollout = await store.enqueue_rollout("a")
    with pytest.raises(InvalidRequestError, match="bogus"):
        await store.query_spans(rollout.rollout_id, "latest", sort_by="bogus")


async def test_spans_are_not_shared_with_callers(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    span = make_span(rollout, 1)
    added = await store.add_span(span)
    span.attributes["tags"].append("mine")  # type: ignore[union-attr] # a list by construction
    span.status.description = "mine"
    assert added is not None
    added.attributes["mine"] = 1
    (queried,) = await store.query_spans(rollout.rollout_id)
    queried.attributes.clear()

    (stored,) = await store.query_spans(rollout.rollout_id)
    assert stored == make_span(rollout, 1)
