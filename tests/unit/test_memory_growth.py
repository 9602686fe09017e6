"""What keeps a full store in memory cheap: shared parts, and structures that must not scan."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agl.store._eviction import SpanBudget
from agl.store.collection.memory import DequeBasedQueue, ListBasedCollection
from agl.store.collection.ordered import OrderedIntegers
from agl.store.memory import InMemoryLightningStore
from agl.types import EnqueueRolloutRequest, RolloutConfig


class Item(BaseModel):
    first: str
    second: str
    kind: str = "x"
    note: str = ""


keys = st.sampled_from(["a", "b", "c"])
items = st.builds(Item, first=keys, second=keys, kind=keys, note=st.text(max_size=2))
steps = st.lists(st.tuples(st.sampled_from(["add", "put", "remove"]), items), max_size=25)


@settings(max_examples=150, deadline=None)
@given(steps=steps, first=keys, second=keys, kinds=st.lists(keys, max_size=2))
def test_composite_keys_and_indexes_against_a_dictionary(
    steps: list[tuple[str, Item]], first: str, second: str, kinds: list[str]
) -> None:
    async def run() -> None:
        collection = ListBasedCollection[Item]([], Item, ["first", "second"], indexes=["kind"])
        naive: dict[tuple[str, str], Item] = {}
        for step, item in steps:
            key = (item.first, item.second)
            if step == "add":
                added = await collection.insert_missing([item])
                assert (added == [item]) == (key not in naive)
                naive.setdefault(key, item)
            elif step == "put":
                await collection.upsert([item], ["kind"])
                known = naive.get(key, item)
                naive[key] = known.model_copy(update={"kind": item.kind})
            elif key in naive:
                await collection.delete([item])
                del naive[key]

        async def found(filter: Any) -> list[Item]:
            page = await collection.query(filter)
            assert page.total == len(page.items)
            return list(page.items)

        assert await collection.size() == len(naive)
        assert await collection.find(first, second) == naive.get((first, second))
        assert await found(None) == list(naive.values())
        group = [item for item in naive.values() if item.first == first]
        assert await found({"first": {"exact": first}}) == group
        assert await found({"first": {"within": [first, "b"]}}) == [
            item for item in naive.values() if item.first in (first, "b")
        ]
        assert await found({"kind": {"within": kinds}}) == [
            item for item in naive.values() if item.kind in kinds
        ]
        newest = await collection.find_newest(first, "note")
        assert (newest and newest.note) == max((item.note for item in group), default=None)

    asyncio.run(run())


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enqueue", "enqueue_missing", "dequeue", "discard", "peek", "has"]),
            st.lists(keys, min_size=1, max_size=3),
        ),
        max_size=25,
    )
)
def test_a_queue_against_a_list(steps: list[tuple[str, list[str]]]) -> None:
    async def run() -> None:
        queue, naive = DequeBasedQueue[str](str), list[str]()
        for step, given_items in steps:
            if step == "enqueue":
                await queue.enqueue(given_items)
                naive += given_items
            elif step == "enqueue_missing":
                missing = [item for item in dict.fromkeys(given_items) if item not in naive]
                assert await queue.enqueue_missing(given_items) == missing
                naive += missing
            elif step == "dequeue":
                assert await queue.dequeue(len(given_items)) == naive[: len(given_items)]
                del naive[: len(given_items)]
            elif step == "discard":
                left = [item for item in naive if item not in given_items]
                assert await queue.discard(given_items) == len(naive) - len(left)
                naive = left
            elif step == "peek":
                assert await queue.peek(len(given_items)) == naive[: len(given_items)]
            else:
                assert await queue.has(given_items[0]) == (given_items[0] in naive)
            assert await queue.size() == len(naive)

    asyncio.run(run())


@settings(max_examples=50, deadline=None)
@given(gone=st.sets(st.integers(0, 2999)), back=st.sets(st.integers(0, 2999)))
def test_ordered_integers_over_several_blocks(gone: set[int], back: set[int]) -> None:
    numbers = OrderedIntegers()
    for number in range(3000):
        numbers.add(number)
    for number in gone:
        numbers.remove(number)
    for number in back & gone:
        numbers.add(number)
    kept = set(range(3000)) - gone | (back & gone)
    assert list(numbers) == sorted(kept)
    assert len(numbers) == len(kept)


async def test_a_rollout_with_spans_costs_the_collector_few_objects() -> None:
    store = InMemoryLightningStore()
    count = 500
    requests = [
        EnqueueRolloutRequest(input={"n": 1}, config=RolloutConfig(timeout_seconds=5.0))
        for _ in range(count)
    ]
    gc.collect()
    before = len(gc.get_objects())
    await store.enqueue_many_rollouts(requests)
    await store.dequeue_many_rollouts(limit=count)
    gc.collect()
    assert (len(gc.get_objects()) - before) / count < 4


async def test_changing_one_rollout_leaves_those_it_shares_with_alone() -> None:
    store = InMemoryLightningStore()
    limits = RolloutConfig(timeout_seconds=5.0)
    first, second = [await store.start_rollout(n, config=limits) for n in range(2)]
    bare, other = [await store.start_rollout(n) for n in range(2)]
    for rollout in (first, bare):
        rollout.config.max_attempts = 9
        await store.update_rollout(rollout.rollout_id, metadata={"x": 1}, mode="train")
        changed = RolloutConfig(timeout_seconds=7.0)
        await store.update_rollout(rollout.rollout_id, config=changed)
    limits.timeout_seconds = 1.0
    for rollout, timeout in ((second, 5.0), (other, None)):
        stored = await store.get_rollout_by_id(rollout.rollout_id)
        assert stored is not None
        assert stored.config.timeout_seconds == timeout
        assert stored.config.max_attempts == 1
        assert stored.model_fields_set == rollout.model_fields_set
    third = await store.start_rollout(3, config=RolloutConfig(timeout_seconds=5.0))
    assert third.config.timeout_seconds == 5.0


def test_a_budget_forgets_reopened_rollouts_one_by_one() -> None:
    budget = SpanBudget(1, 0)
    for name in ("a", "b", "c"):
        budget.add(name, 10, finished=False)
    budget.finish(["a", "b"])
    budget.reopen(["a"])
    assert budget.next_victim(()) == "b"
    budget.evicted("b", {"x": 1})
    budget.finish(["a"])
    assert budget.next_victim(()) == "a"
    budget.evicted("a", {"x": 1, "y": 1})
    assert budget.next_victim(()) == "c"
    assert (budget.evicted_spans, budget.evicted_rollouts) == (3, 2)
