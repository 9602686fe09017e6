"""Rollouts: creating, queueing, claiming, changing, querying."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from conftest import queued_ids

from agl.errors import RolloutNotFoundError
from agl.store.base import LightningStore
from agl.types import (
    LLM,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
)

FINISHED = ("succeeded", "failed", "cancelled")


async def test_an_input_as_deep_as_json_may_be_comes_back(store: LightningStore) -> None:
    deep: list[Any] = []
    for _ in range(198):
        deep = [deep]
    queued = await store.enqueue_rollout("a")
    await store.update_rollout(queued.rollout_id, input=deep)
    found = await store.query_rollouts()
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert [found[0].input, claimed.input] == [deep, deep]


async def test_start_rollout_is_preparing_with_its_first_attempt(store: LightningStore) -> None:
    before = time.time()
    rollout = await store.start_rollout({"q": 1}, mode="train", metadata={"k": [1]}, worker_id="w")

    assert re.fullmatch(r"ro-[0-9a-f]{12}", rollout.rollout_id)
    assert re.fullmatch(r"at-[0-9a-f]{8}", rollout.attempt.attempt_id)
    assert (rollout.status, rollout.mode, rollout.input) == ("preparing", "train", {"q": 1})
    assert rollout.metadata == {"k": [1]}
    assert rollout.attempt.sequence_id == 1
    assert rollout.attempt.status == "preparing"
    assert rollout.attempt.worker_id == "w"
    assert rollout.attempt.last_heartbeat_time is None
    assert before <= rollout.start_time == rollout.attempt.start_time <= time.time()
    assert await queued_ids(store) == []


async def test_defaults_of_a_new_rollout(store: LightningStore) -> None:
    rollout = await store.enqueue_rollout(None)

    assert rollout.status == "queuing"
    assert rollout.metadata == {}
    assert rollout.config == RolloutConfig()
    assert (rollout.mode, rollout.resources_id, rollout.end_time) == (None, None, None)
    assert not isinstance(rollout, AttemptedRollout)


async def test_latest_resources_are_the_default_and_a_given_id_is_not_checked(
    store: LightningStore,
) -> None:
    await store.add_resources({})
    latest = await store.add_resources({"llm": LLM(endpoint="http://h", model="m")})

    requests = [
        EnqueueRolloutRequest(input=1),
        EnqueueRolloutRequest(input=2, resources_id="no-such"),
    ]
    many = await store.enqueue_many_rollouts(requests)
    started = await store.start_rollout(3)

    assert [rollout.resources_id for rollout in many] == [latest.resources_id, "no-such"]
    assert started.resources_id == latest.resources_id


async def test_the_queue_is_first_in_first_out(store: LightningStore) -> None:
    first = await store.enqueue_rollout("a")
    many = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=c) for c in "bcd"])

    single = await store.dequeue_rollout()
    assert single is not None
    rest = await store.dequeue_many_rollouts(limit=2)
    last = await store.dequeue_many_rollouts(limit=5)

    assert single.rollout_id == first.rollout_id
    assert [r.rollout_id for r in [*rest, *last]] == [r.rollout_id for r in many]
    assert {r.status for r in [single, *rest, *last]} == {"preparing"}
    assert {r.attempt.sequence_id for r in [single, *rest, *last]} == {1}
    assert await store.dequeue_rollout() is None
    assert await store.dequeue_many_rollouts(limit=3) == []


@pytest.mark.parametrize("limit", [0, -1])
async def test_dequeue_nothing(store: LightningStore, limit: int) -> None:
    await store.enqueue_rollout("a")
    assert await store.dequeue_many_rollouts(limit=limit) == []
    assert len(await queued_ids(store)) == 1


async def test_enqueue_no_rollouts(store: LightningStore) -> None:
    assert await store.enqueue_many_rollouts([]) == []


@pytest.mark.parametrize("status", [*FINISHED, "running", "preparing"])
async def test_a_rollout_that_does_not_wait_any_more_is_not_claimed(
    store: LightningStore, status: Any
) -> None:
    gone = await store.enqueue_rollout("a")
    waits = await store.enqueue_rollout("b")
    await store.update_rollout(gone.rollout_id, status=status)

    assert await queued_ids(store) == [waits.rollout_id]
    assert (await _get(store, gone.rollout_id)).status == status


async def test_requeued_by_hand_goes_to_the_end_and_only_once(store: LightningStore) -> None:
    first = await store.enqueue_rollout("a")
    second = await store.enqueue_rollout("b")
    await store.update_rollout(first.rollout_id, status="cancelled")
    await store.update_rollout(first.rollout_id, status="requeuing")
    await store.update_rollout(first.rollout_id, status="requeuing")
    await store.update_rollout(first.rollout_id, status="queuing")

    assert await queued_ids(store) == [second.rollout_id, first.rollout_id]


async def test_a_claimed_rollout_queued_again_gets_the_next_attempt_number(
    store: LightningStore,
) -> None:
    rollout = await store.start_rollout("a")
    await store.update_rollout(rollout.rollout_id, status="queuing")

    again = await store.dequeue_rollout()

    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (rollout.rollout_id, 2)


@pytest.mark.parametrize("status", FINISHED)
async def test_update_rollout_may_finish_and_reopen(store: LightningStore, status: Any) -> None:
    rollout = await store.start_rollout("a")

    finished = await store.update_rollout(rollout.rollout_id, status=status)
    assert finished.end_time is not None
    assert finished.end_time >= rollout.start_time
    assert (await store.update_rollout(rollout.rollout_id, status=status)) == finished

    reopened = await store.update_rollout(rollout.rollout_id, status="running")
    assert (reopened.status, reopened.end_time) == ("running", None)


async def test_update_rollout_writes_only_what_is_given(store: LightningStore) -> None:
    rollout = await store.start_rollout({"q": 1}, mode="train", metadata={"a": 1})

    config = RolloutConfig(max_attempts=3)
    changed = await store.update_rollout(rollout.rollout_id, config=config, resources_id="rs-1")
    assert (changed.config, changed.resources_id) == (config, "rs-1")
    assert (changed.input, changed.mode, changed.metadata) == ({"q": 1}, "train", {"a": 1})
    assert changed.status == "preparing"

    emptied = await store.update_rollout(
        rollout.rollout_id, input=None, mode=None, resources_id=None, metadata={}
    )
    assert (emptied.input, emptied.mode, emptied.resources_id) == (None, None, None)
    assert emptied.metadata == {}
    assert emptied.config == config
    assert not isinstance(emptied, AttemptedRollout)


async def test_a_value_of_the_wrong_type_changes_nothing(store: LightningStore) -> None:
    rollout = await store.start_rollout("a")
    wrong: Any = "bogus"
    for arguments in ({"status": wrong}, {"mode": wrong}, {"config": wrong}):
        with pytest.raises(ValueError):
            await store.update_rollout(rollout.rollout_id, metadata={"x": 1}, **arguments)
    with pytest.raises(ValueError):
        await store.update_attempt(rollout.rollout_id, "latest", status=wrong, worker_id="w")

    assert await _get(store, rollout.rollout_id) == rollout


async def test_unknown_rollout(store: LightningStore) -> None:
    assert await store.get_rollout_by_id("ro-none") is None
    with pytest.raises(RolloutNotFoundError, match="ro-none"):
        await store.update_rollout("ro-none", status="failed")
    with pytest.raises(RolloutNotFoundError, match="ro-none"):
        await store.start_attempt("ro-none")


async def test_get_rollout_by_id_has_the_latest_attempt(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    assert type(await store.get_rollout_by_id(queued.rollout_id)) is Rollout

    await store.start_attempt(queued.rollout_id)
    second = await store.start_attempt(queued.rollout_id)

    assert await _get(store, queued.rollout_id) == second


async def test_query_rollouts(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    started = await store.start_rollout("b")
    done = await store.start_rollout("c")
    await store.update_rollout(done.rollout_id, status="succeeded")
    ids = [queued.rollout_id, started.rollout_id, done.rollout_id]

    async def query(**arguments: Any) -> list[str]:
        return [r.rollout_id for r in await store.query_rollouts(**arguments)]

    assert await query() == ids
    assert await query(status_in=["succeeded", "queuing"]) == [ids[0], ids[2]]
    assert await query(status_in=[]) == []
    assert await query(rollout_id_in=[ids[2], ids[0], "ro-none"]) == [ids[0], ids[2]]
    assert await query(rollout_id_contains=ids[1][4:]) == [ids[1]]
    assert await query(rollout_id_contains=ids[1].upper()) == []
    assert await query(status_in=["queuing"], rollout_id_in=[ids[2]]) == []
    assert await query(status_in=["queuing"], rollout_id_in=[ids[2]], filter_logic="or") == [
        ids[0],
        ids[2],
    ]
    assert await query(filter_logic="or") == ids
    assert await query(sort_by="start_time", sort_order="desc") == ids[::-1]
    assert (await query(sort_by="end_time", sort_order="asc"))[0] == ids[2]
    assert (await query(sort_by="end_time", sort_order="desc"))[0] == ids[2]


async def test_pages_of_rollouts(store: LightningStore) -> None:
    ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(5)]

    page = await store.query_rollouts(limit=2, offset=1)
    assert [r.rollout_id for r in page] == ids[1:3]
    assert (page.limit, page.offset, page.total) == (2, 1, 5)
    page = await store.query_rollouts(limit=2, offset=4, status_in=["queuing"])
    assert ([r.rollout_id for r in page], page.total) == (ids[4:], 5)
    page = await store.query_rollouts(offset=9)
    assert (list(page), page.total) == ([], 5)


async def test_query_rollouts_has_latest_attempts(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    started = await store.start_rollout("b")
    again = await store.start_attempt(started.rollout_id)

    assert list(await store.query_rollouts()) == [queued, again]


async def test_order_in_a_status_is_that_of_creation(store: LightningStore) -> None:
    ids = [(await store.start_rollout(n)).rollout_id for n in range(4)]
    for rollout_id in (ids[2], ids[0], ids[3]):
        await store.update_rollout(rollout_id, status="failed")

    failed = await store.query_rollouts(status_in=["failed"])

    assert [r.rollout_id for r in failed] == [ids[0], ids[2], ids[3]]


async def test_deprecated_names_of_filters(store: LightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    started = await store.start_rollout("b")

    with pytest.warns(DeprecationWarning):
        found = await store.query_rollouts(status=["queuing"])
    assert [r.rollout_id for r in found] == [queued.rollout_id]
    with pytest.warns(DeprecationWarning):
        found = await store.query_rollouts(rollout_ids=[started.rollout_id])
    assert [r.rollout_id for r in found] == [started.rollout_id]


async def test_sorting_by_an_unknown_field(store: LightningStore) -> None:
    with pytest.raises(ValueError, match="no_such"):
        await store.query_rollouts(sort_by="no_such")


async def test_callers_and_store_share_nothing(store: LightningStore) -> None:
    task = {"messages": [{"role": "user"}]}
    metadata = {"tags": ["x"]}
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await store.start_rollout(task, config=config, metadata=metadata)
    task["messages"][0]["role"] = metadata["tags"][0] = "changed"
    config.retry_condition.clear()

    stored = await _get(store, rollout.rollout_id)
    assert stored.input == {"messages": [{"role": "user"}]}
    assert stored.metadata == {"tags": ["x"]}
    assert stored.config.retry_condition == ["failed"]

    for got in (rollout, stored, (await store.query_rollouts())[0]):
        got.input["messages"].clear()
        got.metadata.clear()
        got.config.retry_condition.clear()
        got.status = "failed"
        got.attempt.status = "failed"
    stored = await _get(store, rollout.rollout_id)
    assert stored.input == {"messages": [{"role": "user"}]}
    assert stored.metadata == {"tags": ["x"]}
    assert stored.config.retry_condition == ["failed"]
    assert (stored.status, stored.attempt.status) == ("preparing", "preparing")


async def test_statistics_count_everything(store: LightningStore) -> None:
    await store.enqueue_rollout("a")
    await store.start_rollout("b", worker_id="w")
    await store.add_resources({})

    statistics = await store.statistics()

    assert statistics["total_rollouts"] == 2
    assert statistics["total_attempts"] == 1
    assert statistics["total_spans"] == 0
    assert statistics["total_resources"] == 1
    assert statistics["total_workers"] == 1
    assert statistics["uptime"] >= 0
    assert statistics["name"] in ("InMemoryLightningStore", "MongoLightningStore")


async def _get(store: LightningStore, rollout_id: str) -> Any:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    return rollout
