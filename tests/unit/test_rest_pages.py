"""Answers as JSON: long pages in slices that say the same as one piece, and odd numbers."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from rest_support import http_for, span

from agl.store.memory import InMemoryLightningStore
from agl.store.rest.pages import SLICE, dump_in_slices, is_long_page
from agl.store.rest.wire import dump
from agl.types import EnqueueRolloutRequest
from agl.utils.ownership import share_objects

API = "/v1/agl"
MANY = 5 * SLICE + 1


async def filled() -> tuple[InMemoryLightningStore, str]:
    store = InMemoryLightningStore()
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={"n": n, "odd": math.nan}) for n in range(MANY)]
    )
    started = await store.start_rollout(1)
    ids = started.rollout_id, started.attempt.attempt_id
    await store.add_many_spans(
        [span(*ids, span_id=f"{n:016x}", attributes={"odd": math.inf}) for n in range(MANY)]
    )
    return store, started.rollout_id


@pytest.mark.parametrize("what", ["rollouts", "spans", "spans as JSON"])
async def test_slices_are_what_one_piece_is(what: str) -> None:
    store, rollout_id = await filled()
    if what == "rollouts":
        page: Any = await store.query_rollouts()
    elif what == "spans":
        page = await store.query_spans(rollout_id)
    else:
        with share_objects():
            page = await store.query_spans(rollout_id)
    assert is_long_page(page)
    parts = await dump_in_slices(page)
    assert len(parts) == -(-len(page) // SLICE) + 1
    assert b"".join(parts) == dump(page)


async def test_others_run_while_a_long_page_is_made() -> None:
    store, _ = await filled()
    page = await store.query_rollouts()
    making = asyncio.create_task(dump_in_slices(page))
    turns = 0
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= MANY // SLICE


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_long_pages_over_http(method: str) -> None:
    store, rollout_id = await filled()
    async with http_for(store) as http:
        for path, query, expected in (
            ("rollouts", {"limit": -1}, MANY + 1),
            ("spans", {"rollout_id": rollout_id}, MANY),
            ("spans", {"rollout_id": rollout_id, "limit": SLICE}, SLICE),
        ):
            answer = await (
                http.get(f"{API}/{path}", params=query)
                if method == "GET"
                else http.post(f"{API}/{path}/search", json=query)
            )
            assert answer.status_code == 200
            assert int(answer.headers["content-length"]) == len(answer.content)
            assert len(answer.json()["items"]) == expected
            assert answer.json()["total"] >= expected


async def test_numbers_that_json_does_not_have() -> None:
    store = InMemoryLightningStore()
    async with http_for(store) as http:
        answer = await http.post(
            f"{API}/rollouts",
            content=b'{"input": {"a": NaN, "b": [-Infinity]}, "metadata": {"c": Infinity}}',
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 201
        assert (answer.json()["input"], answer.json()["metadata"]) == (
            {"a": None, "b": [None]},
            {"c": None},
        )
        kept = await store.get_rollout_by_id(answer.json()["rollout_id"])
        assert kept is not None
        assert math.isnan(kept.input["a"])
        assert (kept.input["b"], kept.metadata) == ([-math.inf], {"c": math.inf})

        ids = kept.rollout_id, answer.json()["attempt"]["attempt_id"]
        await store.add_span(span(*ids, attributes={"x": math.nan, "y": -math.inf}))
        spans = await http.get(f"{API}/spans", params={"rollout_id": ids[0]})
        assert spans.json()["items"][0]["attributes"] == {"x": "NaN", "y": "-Infinity"}
