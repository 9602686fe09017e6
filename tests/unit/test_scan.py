"""Questions over many items: the same answers as over few, and others are let in between."""

from __future__ import annotations

import asyncio
from functools import cache
from random import Random
from typing import Any

import pytest

from agl.errors import InvalidRequestError
from agl.store.collection.memory import ListBasedCollection
from agl.store.collection.query import sort_items
from agl.store.collection.scan import SLICE
from agl.types import Rollout, RolloutStatus
from agl.utils.ownership import replace

MANY = 6 * SLICE + 7
STATUSES: tuple[RolloutStatus, ...] = ("queuing", "running", "succeeded", "failed")


@cache
def rollouts() -> list[Rollout]:
    random = Random(7)
    return [
        Rollout(
            rollout_id=f"ro-{random.randrange(16**6):06x}-{number}",
            input=number,
            start_time=float(random.randrange(MANY // 4)),
            end_time=random.choice([None, float(random.randrange(9))]),
            status=random.choice(STATUSES),
        )
        for number in range(MANY)
    ]


def collection(items: list[Rollout]) -> ListBasedCollection[Rollout]:
    return ListBasedCollection(items, Rollout, ["rollout_id"], indexes=["status"])


FILTERS: list[dict[str, Any] | None] = [
    None,
    {"rollout_id": {"contains": "ab"}},
    {"status": {"within": ["succeeded", "failed", "running"]}},
    {"status": {"exact": "running"}, "rollout_id": {"contains": "a"}, "_aggregate": "or"},
]


def expected(items: list[Rollout], filter: dict[str, Any] | None) -> list[Rollout]:
    text = (filter or {}).get("rollout_id", {}).get("contains")
    if filter is None:
        return items
    if "_aggregate" in filter:
        return [r for r in items if r.status == "running" or text in r.rollout_id]
    if text is not None:
        return [r for r in items if text in r.rollout_id]
    return [r for r in items if r.status in filter["status"]["within"]]


SORTS: list[Any] = [
    None,
    {"name": "start_time", "order": "desc"},
    {"name": "end_time", "order": "asc"},
    {"name": "end_time", "order": "desc"},
    {"name": "rollout_id", "order": "asc"},
]
WINDOWS = [(20, 0), (-1, 0), (0, 0), (50, 2 * SLICE + 3), (10**30, 10), (5, 10**30)]


@pytest.mark.parametrize("filter", FILTERS)
async def test_many_are_answered_like_few(filter: Any) -> None:
    items = rollouts()
    kept = collection(items)
    for sort in SORTS:
        wanted = expected(items, filter)
        if sort:
            wanted = sort_items(wanted, sort["name"], sort["order"])
        for limit, offset in WINDOWS:
            found = await kept.query(filter, sort, limit, offset)
            end = None if limit == -1 else offset + limit
            assert list(found.items) == wanted[offset:end]
            assert found.total == len(wanted)


async def test_a_long_question_lets_others_in() -> None:
    asked = asyncio.create_task(
        collection(rollouts()).query({"rollout_id": {"contains": "ab"}}, limit=5)
    )
    turns = 0
    while not asked.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= MANY // SLICE


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("sort", [None, "end_time"])
async def test_what_changes_meanwhile_is_seen_as_it_was(filter: Any, sort: str | None) -> None:
    items = rollouts()
    kept = collection(items)
    wanted = expected(items, filter)
    asked = asyncio.create_task(
        kept.query(filter, {"name": sort, "order": "asc"} if sort else None, limit=-1)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it has begun
    for item in items[::2]:
        await kept.update([replace(item, status="cancelled", end_time=99.0)], ["status"])
        await kept.update([replace(item, status="queuing", end_time=99.0)])
    await kept.delete(items[1::3])
    await kept.insert([replace(item, rollout_id=item.rollout_id + "ab") for item in items[:100]])
    assert not asked.done()
    found = await asked
    assert list(found.items) == (sort_items(wanted, sort, "asc") if sort else wanted)
    assert found.total == len(wanted)


async def test_a_question_given_up_leaves_nothing_behind() -> None:
    items = rollouts()
    kept = collection(items)
    asked = asyncio.create_task(kept.query({"rollout_id": {"contains": "ab"}}))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert kept._items._scans == []  # pyright: ignore[reportPrivateUsage]


async def test_values_that_cannot_be_compared_are_named() -> None:
    items = rollouts()
    mixed = [
        replace(item, input={} if number == MANY - 1 else number)
        for number, item in enumerate(items)
    ]
    with pytest.raises(InvalidRequestError, match="input"):
        await collection(mixed).query(None, {"name": "input", "order": "asc"}, limit=-1)
