"""The figures that a store in memory keeps: what random histories seldom reach."""

from __future__ import annotations

import pickle
import random

from httpx import ASGITransport, AsyncClient
from rest_support import span

from agl.store._state import Beginnings, oldest_running
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import create_app
from agl.types import RolloutConfig
from agl.types.span import REWARD_ATTRIBUTE, REWARD_SPAN_NAME, has_reward
from agl.types.state import GONE_SECONDS, SILENT_SECONDS


class ClockedStore(InMemoryLightningStore):
    now = 1000.0

    def _now(self) -> float:
        return self.now


def test_beginnings_against_a_dictionary_and_what_they_remember() -> None:
    chance = random.Random(7)
    beginnings = Beginnings()
    naive: dict[str, tuple[float | None, float]] = {}
    for step in range(4000):
        name = f"ro-{chance.randrange(40)}"
        if chance.random() < 0.5:
            timeout = chance.choice([None, 1.0, 60.0, float("inf")])
            naive[name] = timeout, float(chance.randrange(1000))
            beginnings.put(name, *naive[name])
        else:
            naive.pop(name, None)
            beginnings.remove(name)
        if step % 7 == 0:
            oldest: dict[float | None, float] = {}
            for timeout, began in naive.values():
                oldest[timeout] = min(oldest.get(timeout, began), began)
            assert beginnings.oldest() == oldest
    kept = sum(len(group.heap) for group in beginnings._groups.values())
    assert kept <= 2 * len(naive) + 65 * len(beginnings._groups)


def test_one_that_never_ends_does_not_keep_those_that_ended() -> None:
    beginnings = Beginnings()
    beginnings.put("for ever", None, 0.0)
    for number in range(10_000):
        beginnings.put(f"ro-{number}", None, 1.0 + number)
        beginnings.remove(f"ro-{number}")
    (group,) = beginnings._groups.values()
    assert len(group.heap) < 100
    assert beginnings.oldest() == {None: 0.0}


def test_shares_of_odd_timeouts() -> None:
    began = {None: 0.0, 10.0: 95.0, float("inf"): 1.0, 0.0: 50.0, -1.0: 50.0}
    assert oldest_running(began, 100.0) == (100.0, 0.5)
    assert oldest_running({5.0: 101.0}, 100.0) == (0.0, 0.0)
    assert oldest_running({}, 100.0) == (0.0, 0.0)


async def test_workers_fall_silent_and_are_given_up_after_a_day() -> None:
    store = ClockedStore()
    await store.update_worker("beats")
    await store.dequeue_rollout(worker_id="asks")
    await store.start_rollout(1, worker_id="only named")  # was never heard of itself
    store.now += SILENT_SECONDS
    assert (await store.state()).silent_workers == 0
    store.now += 1
    await store.dequeue_rollout(worker_id="asks")
    state = await store.state()
    assert state.silent_workers == 1
    assert state.worker_oldest_heartbeat_age_seconds == {"idle": 0, "busy": 0, "unknown": 61}
    assert state.workers == {"idle": 1, "busy": 1, "unknown": 1}
    store.now += GONE_SECONDS - 61
    state = await store.state()
    assert state.silent_workers == 2
    assert state.worker_oldest_heartbeat_age_seconds["unknown"] == GONE_SECONDS
    store.now += 62
    state = await store.state()
    assert (state.silent_workers, state.workers["unknown"]) == (0, 1)
    await store.update_worker("beats")
    store.now += 5
    assert (await store.state()).worker_oldest_heartbeat_age_seconds["unknown"] == 5


async def test_spans_that_were_given_up_were_there() -> None:
    store = InMemoryLightningStore(
        eviction_memory_threshold=10, safe_memory_threshold=1, span_size_estimator=lambda _: 6
    )
    for number in range(4):
        rollout = await store.start_rollout(number, mode="train")
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        await store.add_span(span(*ids, attributes={REWARD_ATTRIBUTE: 0.0}))
        await store.update_attempt(*ids, status="succeeded")
    state = await store.state()
    assert state.spans_evicted == (await store.statistics()).get("evicted_spans") == 3
    assert state.spans_stored == 1
    assert state.finished_without_spans["train"] == state.finished_without_reward["train"] == 0
    assert (state.eviction_threshold_bytes, state.safe_threshold_bytes) == (10, 1)
    assert state.span_bytes == 6


async def test_a_requeued_rollout_waits_from_then_on() -> None:
    store = ClockedStore()
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await store.start_rollout(1, config=config)
    store.now += 500
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")
    store.now += 3
    assert (await store.state()).oldest_queued_age_seconds == 3
    await store.update_rollout(rollout.rollout_id, status="queuing")  # where it is already
    assert (await store.state()).oldest_queued_age_seconds == 3


async def test_items_removed_from_the_collections_are_not_counted() -> None:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout(1, mode="val", worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    empty = (await InMemoryLightningStore().state()).model_dump()
    c = store.collections
    await c.attempts.delete((await c.attempts.query()).items)
    await c.rollouts.delete((await c.rollouts.query()).items)
    await c.workers.delete((await c.workers.query()).items)
    assert (await store.state()).model_dump() == empty


async def test_a_pickled_store_goes_on_counting() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout(1)
    twin = pickle.loads(pickle.dumps(store))
    await twin.enqueue_rollout(2)
    assert (await twin.state()).queue_depth == 2
    assert (await store.state()).queue_depth == 1


def test_what_holds_a_reward() -> None:
    assert not has_reward(span("ro", "at"))
    assert not has_reward(span("ro", "at", attributes={"agentlightning.reward.1.name": "x"}))
    assert has_reward(span("ro", "at", attributes={REWARD_ATTRIBUTE: 0.0}))
    assert has_reward(span("ro", "at", name=REWARD_SPAN_NAME))


async def test_the_state_needs_the_token() -> None:
    app = create_app(InMemoryLightningStore(), api_token="t")
    async with AsyncClient(transport=ASGITransport(app), base_url="http://store") as http:
        assert (await http.get("/v1/agl/state")).status_code == 401
        answer = await http.get("/v1/agl/state", headers={"Authorization": "Bearer t"})
    assert answer.json()["queue_depth"] == 0
