"""The store in MongoDB: several processes, lost answers, pauses, data of agent-lightning 0.3."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from mongo import (  # noqa: F401 - fixtures
    MongoServer,
    mongo_database,
    mongo_server,
    running_stand_in,
    server_name,
)
from mongo_proxy import mongo_proxy
from mongo_support import Commands, make_span
from prometheus_client import CollectorRegistry

from agl.errors import RolloutNotFoundError, TooLargeError
from agl.store.mongo import MongoLightningStore
from agl.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from agl.utils.metrics import PrometheusMetricsBackend

WORKER = Path(__file__).parents[1] / "support" / "mongo_worker.py"
PATIENCE_SECONDS = 60.0
PARTITION = "pt-test"


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


class Opened:
    """Opens stores on one partition."""

    def __init__(self, uri: str, database: str, stack: AsyncExitStack) -> None:
        self.uri = uri
        self.database = database
        self._stack = stack

    async def __call__(self, uri: str | None = None, **options: Any) -> MongoLightningStore:
        store = MongoLightningStore(
            mongo_uri=uri or self.uri,
            database_name=self.database,
            partition_id=PARTITION,
            **{"scan_debounce_seconds": 1e9, **options},
        )
        return await self._stack.enter_async_context(store)


@pytest.fixture
def opened(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    stack: AsyncExitStack,
) -> Opened:
    return Opened(mongo_server.uri, mongo_database, stack)


async def truth(store: MongoLightningStore) -> dict[str, int]:
    """What statistics should say, counted."""
    database = store.collections.pool.database(store.database_name)
    mine = {"partition_id": store.partition_id}
    roots = await database["rollouts"].find(mine).to_list()
    return {
        "total_rollouts": len(roots),
        "total_attempts": sum(len(root["attempts"]) for root in roots),
        **{
            f"total_{name}": await database[name].count_documents(mine)
            for name in ("spans", "workers", "resources")
        },
    }


async def settled_statistics(store: MongoLightningStore) -> dict[str, Any]:
    """Statistics, as soon as they are true; corrections follow a moment later."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    expected = await truth(store)
    while True:
        statistics = dict(await store.statistics())
        found = {name: statistics[name] for name in expected}
        if found == expected or time.monotonic() > give_up:
            assert found == expected
            return statistics
        await asyncio.sleep(0.05)


# Several processes


def ready_workers(opened: Opened, count: int) -> list[subprocess.Popen[str]]:
    """Processes that wait for a line before they claim all they can get."""
    workers = [
        subprocess.Popen(
            [sys.executable, WORKER, opened.uri, opened.database, PARTITION, f"p{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(WORKER.parent)},
        )
        for number in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    return workers


async def test_processes_claim_each_rollout_once(opened: Opened) -> None:
    store = await opened()
    requests = [EnqueueRolloutRequest(input=n) for n in range(120)]
    ids = [one.rollout_id for one in await store.enqueue_many_rollouts(requests)]
    workers = ready_workers(opened, 4)
    outputs = await asyncio.gather(
        *(asyncio.to_thread(worker.communicate, "go\n", PATIENCE_SECONDS) for worker in workers)
    )

    assert [worker.returncode for worker in workers] == [0] * 4
    shares = [output.split() for output, _ in outputs]
    assert Counter(key for share in shares for key in share) == Counter(ids)
    finished = await store.query_rollouts(status_in=["succeeded", "failed"])
    assert (len(finished.items), finished.total) == (120, 120)
    assert all(isinstance(one, AttemptedRollout) for one in finished)
    assert {one.attempt.sequence_id for one in finished} == {1}  # type: ignore[union-attr] # all are
    statistics = await settled_statistics(store)
    assert (statistics["total_attempts"], statistics["total_spans"]) == (120, 120)
    workers_left = await store.query_workers()
    assert {worker.status for worker in workers_left} == {"idle"}


async def test_parallel_attempts_get_numbers_of_their_own(opened: Opened) -> None:
    stores = [await opened() for _ in range(3)]
    rollout = await stores[0].start_rollout("a")
    started = await asyncio.gather(
        *(stores[n % 3].start_attempt(rollout.rollout_id) for n in range(12))
    )
    assert sorted(one.attempt.sequence_id for one in started) == list(range(2, 14))
    assert (await settled_statistics(stores[1]))["total_attempts"] == 13


async def test_totals_are_true_after_random_work_of_several_stores(opened: Opened) -> None:
    stores = [await opened(scan_debounce_seconds=0.05) for _ in range(3)]
    chance = random.Random(7)
    config = RolloutConfig(
        timeout_seconds=0.3, max_attempts=3, retry_condition=["timeout", "failed"]
    )

    async def act(number: int) -> None:
        store = stores[number % 3]
        for _ in range(12):
            step = chance.random()
            if step < 0.3:
                await store.enqueue_many_rollouts(
                    [EnqueueRolloutRequest(input=1, config=config)] * chance.randint(1, 4)
                )
            elif step < 0.5:
                await store.start_rollout(2, worker_id=f"w-{number}", config=config)
            elif step < 0.6:
                await store.update_resources(f"rs-{chance.randint(1, 3)}", {})
            else:
                claimed = await store.dequeue_many_rollouts(limit=2, worker_id=f"w-{number}")
                for one in claimed:
                    await store.add_many_spans([make_span(one, n) for n in (1, 2, 2, 3)])
                    status = chance.choice(["succeeded", "failed", "running"])
                    await store.update_attempt(one.rollout_id, "latest", status=status)

    await asyncio.gather(*(act(number) for number in range(9)))
    for store in stores:
        await settled_statistics(store)
    quiet = await opened()
    await quiet.query_rollouts(limit=0)  # the first call of a store wakes its watchdog
    await settled_statistics(quiet)
    everything = await quiet.query_rollouts()
    by_status = Counter(one.status for one in everything)
    for status, count in by_status.items():
        page = await quiet.query_rollouts(status_in=[status], limit=1)
        assert (status, page.total) == (status, count)
    assert everything.total == sum(by_status.values())


async def test_a_wrong_total_is_corrected(opened: Opened) -> None:
    store = await opened()
    await store.start_rollout("a")
    counters = store.collections.pool.database(store.database_name)["counters"]
    await counters.update_one({"_id": f"{PARTITION}/base"}, {"$inc": {"numbers.attempts": 5}})
    assert (await store.statistics())["total_attempts"] == 6
    assert await store.reconcile() == {"attempts": -5}
    assert (await store.statistics())["total_attempts"] == 1
    assert await store.reconcile() == {}


async def test_several_watchdogs_act_once(opened: Opened) -> None:
    stores = [await opened() for _ in range(4)]
    config = RolloutConfig(timeout_seconds=0.01, max_attempts=9, retry_condition=["timeout"])
    ids = [(await stores[0].start_rollout(n, config=config)).rollout_id for n in range(10)]
    await asyncio.sleep(0.05)
    await asyncio.gather(*(store.watchdog._sweep(64) for store in stores))
    for rollout_id in ids:
        found = await stores[1].get_rollout_by_id(rollout_id)
        assert isinstance(found, AttemptedRollout)
        assert (found.status, found.attempt.status) == ("requeuing", "timeout")
        assert len(await stores[1].query_attempts(rollout_id)) == 1
    claimed = await stores[2].dequeue_many_rollouts(limit=50)
    assert Counter(one.rollout_id for one in claimed) == Counter(ids)


async def test_a_sign_of_life_in_time_holds_the_watchdog_off(opened: Opened) -> None:
    """The span arrives between the watchdog's look and its decision."""
    store, other = await opened(), await opened()
    rollout = await store.start_rollout(1, config=RolloutConfig(unresponsive_seconds=600))
    await store.add_span(make_span(rollout, 1))
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=1.0)
    carry_out = store._carry_out
    struck = False

    async def late(collections: Any, plan: Any) -> None:
        nonlocal struck
        if not struck:
            struck = True
            await other.add_span(make_span(rollout, 2))
        await carry_out(collections, plan)

    store._carry_out = late  # type: ignore[method-assign] # to come in between
    await store.watchdog._sweep(64)
    found = await other.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(found, AttemptedRollout)
    assert (struck, found.status, found.attempt.status) == (True, "running", "running")


@pytest.mark.parametrize("streams", [True, False])
async def test_a_finish_elsewhere_ends_a_wait(opened: Opened, streams: bool) -> None:
    here, elsewhere = await opened(), await opened()
    here._watcher().streams = streams
    rollouts = [await here.start_rollout(n) for n in range(20)]
    waits = [
        asyncio.create_task(here.wait_for_rollouts(rollout_ids=[one.rollout_id], timeout=120))
        for one in rollouts
    ]
    every = asyncio.create_task(
        here.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts], timeout=120)
    )
    await asyncio.sleep(0.5)
    assert not any(wait.done() for wait in (*waits, every))
    for one in rollouts:
        await elsewhere.update_attempt(one.rollout_id, "latest", status="succeeded")
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await asyncio.gather(*waits)
        assert len(await every) == 20
    assert [one.rollout_id for (one,) in answers] == [one.rollout_id for one in rollouts]


async def test_a_finish_while_the_wait_begins_is_not_missed(opened: Opened) -> None:
    here, elsewhere = await opened(), await opened()
    rollouts = [await here.start_rollout(n) for n in range(30)]

    async def wait(rollout: AttemptedRollout) -> int:
        found = await here.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=120)
        return len(found)

    async def finish(rollout: AttemptedRollout, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await elsewhere.update_rollout(rollout.rollout_id, status="cancelled")

    async with asyncio.timeout(PATIENCE_SECONDS):
        results = await asyncio.gather(
            *(wait(one) for one in rollouts),
            *(finish(one, n * 0.005) for n, one in enumerate(rollouts)),
        )
    assert results[: len(rollouts)] == [1] * len(rollouts)


async def test_latest_resources_are_known_everywhere_at_once(opened: Opened) -> None:
    one, two = await opened(), await opened()
    requests = [EnqueueRolloutRequest(input=n) for n in range(3)]
    for _ in range(4):
        latest = await one.add_resources({})
        many = await two.enqueue_many_rollouts(requests)
        assert {r.resources_id for r in many} == {latest.resources_id}
        assert (await two.enqueue_rollout(1)).resources_id == latest.resources_id
    updates = await asyncio.gather(
        *((one, two)[n % 2].update_resources("rs", {}) for n in range(8))
    )
    assert sorted(update.version for update in updates) == list(range(1, 9))


async def test_heartbeats_in_quick_succession_are_written_together(opened: Opened) -> None:
    store, other = await opened(heartbeat_seconds=8), await opened()
    rollout = await store.start_rollout(1)
    for number in range(1, 10):
        await store.add_span(make_span(rollout, number))
    first = await other.get_latest_attempt(rollout.rollout_id)
    assert first is not None
    give_up = time.monotonic() + PATIENCE_SECONDS
    latest = first
    while latest.last_heartbeat_time == first.last_heartbeat_time:
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)
        latest = await other.get_latest_attempt(rollout.rollout_id) or latest
    assert (latest.last_heartbeat_time or 0) > (first.last_heartbeat_time or 0)


async def test_a_heartbeat_that_waited_revives_its_attempt(opened: Opened) -> None:
    """The attempt is given up between a span and the heartbeat that was to be written later."""
    store, other = await opened(heartbeat_seconds=8), await opened()
    rollout = await store.start_rollout(1)
    await store.add_span(make_span(rollout, 1))
    await store.add_span(make_span(rollout, 2))
    await other.update_attempt(rollout.rollout_id, "latest", status="unresponsive")
    give_up = time.monotonic() + PATIENCE_SECONDS
    while (latest := await other.get_latest_attempt(rollout.rollout_id)) is not None:
        if latest.status == "running":
            break
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


# Failures


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("before", [True, False])
async def test_a_connection_cut_in_the_middle_of_a_write(
    opened: Opened, times: int, before: bool
) -> None:
    """The answer is lost after the write, or the write before it is carried out."""
    async with mongo_proxy(opened.uri) as proxy:
        store = await opened(proxy.uri)
        await store.enqueue_rollout("warm")
        await store.dequeue_rollout()

        async def cut(call: Any, command: str = "bulkWrite") -> Any:
            lost = proxy.lost
            proxy.lose(command, times=times, before=before)
            result = await call
            assert proxy.lost - lost == times
            return result

        started = await cut(store.start_rollout("a", worker_id="w"))
        queued = await cut(store.enqueue_rollout("b"))
        claimed = await cut(store.dequeue_rollout(worker_id="w"))
        assert claimed.rollout_id == queued.rollout_id
        second = await cut(store.start_attempt(started.rollout_id))
        assert second.attempt.sequence_id == 2
        assert await cut(store.add_span(make_span(claimed, 1))) is not None
        assert await cut(store.add_span(make_span(claimed, 2))) is not None
        await cut(store.update_attempt(claimed.rollout_id, "latest", status="succeeded"))
        many = await cut(
            store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(5)]),
            "commitTransaction",
        )
        assert len(many) == 5
        await cut(store.add_resources({}), "commitTransaction")

        everything = {one.rollout_id: one for one in await store.query_rollouts()}
        assert len(everything) == 3 + 5
        assert len(await store.query_attempts(started.rollout_id)) == 2
        assert len(await store.query_attempts(claimed.rollout_id)) == 1
        assert everything[claimed.rollout_id].status == "succeeded"
        assert len(await store.query_spans(claimed.rollout_id)) == 2
        await settled_statistics(store)


async def test_a_decision_that_is_sent_again_knows_its_own_work(opened: Opened) -> None:
    """It need not look who was faster: nobody was."""
    async with mongo_proxy(opened.uri) as proxy:
        commands = Commands()
        listening = {"event_listeners": [commands]}
        store = await opened(proxy.uri, mongo_client_kwargs=listening)
        rollout = await store.start_rollout("a")
        proxy.lose("bulkWrite", times=2)  # the driver itself tries a second time
        with commands.counted() as sent:
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert (sent.count("find"), sent.count("bulkWrite")) == (0, 3)


async def test_a_claim_whose_answer_was_lost_is_not_made_twice(opened: Opened) -> None:
    """Between the write and its repetition another process changes the document."""
    async with mongo_proxy(opened.uri) as proxy:
        store, other = await opened(proxy.uri), await opened()
        await store.statistics()
        queued = [await other.enqueue_rollout(n) for n in range(2)]
        combiner = (await store.collections.lane()).combiner
        pause = combiner._pause

        async def changed_meanwhile(*args: Any) -> None:
            await other.update_rollout(queued[0].rollout_id, metadata={"seen": True})
            await pause(*args)

        combiner._pause = changed_meanwhile  # type: ignore[method-assign] # to come in between
        proxy.lose("bulkWrite", times=2)  # the driver itself tries a second time
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.rollout_id == queued[0].rollout_id
        assert len(await other.query_attempts(claimed.rollout_id)) == 1
        rest = await store.dequeue_many_rollouts(limit=5)
        assert [one.rollout_id for one in rest] == [queued[1].rollout_id]
        await settled_statistics(store)


@pytest.mark.skipif(server_name() == "mongod", reason="the server is not ours to stop")
async def test_a_server_that_pauses_is_waited_for(stack: AsyncExitStack) -> None:
    with running_stand_in(server_name()) as server:
        assert server.pid is not None
        opened = Opened(server.uri, server.new_database(), stack)
        store = await opened()
        rollouts = [await store.start_rollout(n) for n in range(10)]
        os.kill(server.pid, signal.SIGSTOP)
        calls = [
            asyncio.create_task(store.add_span(make_span(one, number)))
            for one in rollouts
            for number in range(1, 6)
        ]
        calls += [asyncio.create_task(store.start_rollout("later")) for _ in range(5)]
        await asyncio.sleep(3)  # test_mongo_faults has 20, with clients
        assert not any(call.done() for call in calls)
        os.kill(server.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert all([await call for call in calls])
        statistics = await settled_statistics(store)
        assert (statistics["total_rollouts"], statistics["total_spans"]) == (15, 50)


async def test_a_document_beyond_the_limit_fails_alone(opened: Opened) -> None:
    store = await opened()
    rollout = await store.start_rollout("a")
    large = "x" * (17 * 2**20)
    results = await asyncio.gather(
        store.enqueue_rollout(large),
        store.add_span(make_span(rollout, 1)),
        store.add_span(make_span(rollout, 2, attributes={"large": large})),
        store.enqueue_rollout("b"),
        store.update_rollout(rollout.rollout_id, metadata={"large": large}),
        return_exceptions=True,
    )
    for place in (0, 2, 4):
        assert isinstance(results[place], TooLargeError), place
        assert "16 MiB" in str(results[place])
    assert not any(isinstance(results[place], BaseException) for place in (1, 3))
    await settled_statistics(store)


async def test_a_document_that_grows_beyond_the_limit(opened: Opened) -> None:
    store = await opened()
    half = "x" * (9 * 2**20)
    rollout = await store.start_rollout(half)
    with pytest.raises(TooLargeError, match="16 MiB"):
        await store.update_rollout(rollout.rollout_id, metadata={"half": half})
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await settled_statistics(store)


async def test_ids_that_cannot_be_sent_are_unknown(opened: Opened) -> None:
    store = await opened()
    rollout = await store.start_rollout("a")
    results = await asyncio.gather(
        store.get_rollout_by_id("ro-\ud800"),
        store.get_rollout_by_id(rollout.rollout_id),
        store.start_attempt("ro-\ud800"),
        store.start_attempt(rollout.rollout_id, worker_id="w-\ud800"),
        store.start_attempt(rollout.rollout_id, worker_id="w"),
        return_exceptions=True,
    )
    assert results[0] is None
    assert isinstance(results[1], AttemptedRollout)
    assert isinstance(results[2], RolloutNotFoundError)
    assert isinstance(results[3], ValueError)
    assert isinstance(results[4], AttemptedRollout)


async def test_a_cancelled_dequeue_gives_its_share_back(opened: Opened) -> None:
    store = await opened()
    rollout = await store.enqueue_rollout("a")
    leaving = asyncio.create_task(store.dequeue_rollout())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id


# What agent-lightning 0.3 wrote


def legacy_rollout(number: int, status: str, **values: Any) -> dict[str, Any]:
    return {
        "partition_id": PARTITION,
        "rollout_id": f"ro-{number:012d}",
        "input": {"n": number},
        "start_time": 1000.0 + number,
        "end_time": None,
        "mode": "train",
        "resources_id": "rs-1",
        "status": status,
        "config": {
            "timeout_seconds": None,
            "unresponsive_seconds": None,
            "max_attempts": 2,
            "retry_condition": ["failed"],
        },
        "metadata": {},
        **values,
    }


def legacy_attempt(number: int, sequence: int, status: str) -> dict[str, Any]:
    return {
        "partition_id": PARTITION,
        "rollout_id": f"ro-{number:012d}",
        "attempt_id": f"at-{number:06d}{sequence:02d}",
        "sequence_id": sequence,
        "start_time": 1000.0 + sequence,
        "end_time": None,
        "status": status,
        "worker_id": "w-1",
        "last_heartbeat_time": None,
        "metadata": {},
    }


async def _write_legacy(store: MongoLightningStore) -> None:
    database = store.collections.pool.database(store.database_name)
    await database["rollouts"].insert_many(
        [
            legacy_rollout(1, "running"),
            legacy_rollout(2, "queuing"),
            legacy_rollout(3, "requeuing"),
            legacy_rollout(4, "succeeded", end_time=2000.0),
            {**legacy_rollout(5, "queuing"), "partition_id": "pt-other"},
        ]
    )
    await database["attempts"].insert_many(
        [
            legacy_attempt(1, 1, "failed"),
            legacy_attempt(1, 2, "running"),
            legacy_attempt(3, 1, "failed"),
            legacy_attempt(4, 1, "succeeded"),
        ]
    )
    await database["rollout_queue"].insert_many(
        [
            {
                "partition_id": PARTITION,
                "value": f"ro-{number:012d}",
                "consumed": number != 2,
                "created_at": datetime(2026, 1, 1),
            }
            for number in (1, 2, 3)
        ]
    )
    await database["resources"].insert_one(
        {
            "partition_id": PARTITION,
            "resources_id": "rs-1",
            "create_time": 1.0,
            "update_time": 2.0,
            "version": 3,
            "resources": {},
        }
    )
    await database["span_sequence_ids"].insert_one(
        {"partition_id": PARTITION, "key": "ro-000000000001", "value": 41}
    )


async def test_data_of_0_3_is_read_as_it_is(opened: Opened) -> None:
    raw = MongoLightningStore(mongo_uri=opened.uri, database_name=opened.database)
    await _write_legacy(raw)
    await raw.close()
    store = await opened()

    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_attempts"]) == (4, 4)
    page = await store.query_rollouts()
    assert [one.rollout_id[-1] for one in page] == ["1", "2", "3", "4"]
    assert [getattr(one, "attempt", None) is None for one in page] == [False, True, False, False]
    attempts = await store.query_attempts("ro-000000000001")
    assert [one.sequence_id for one in attempts] == [1, 2]
    latest = await store.get_latest_resources()
    assert latest is not None
    assert (latest.resources_id, latest.version) == ("rs-1", 3)
    assert (await store.enqueue_rollout("new")).resources_id == "rs-1"
    assert await store.get_next_span_sequence_id("ro-000000000001", "at") == 42


async def test_work_begun_with_0_3_goes_on(opened: Opened) -> None:
    raw = MongoLightningStore(mongo_uri=opened.uri, database_name=opened.database)
    await _write_legacy(raw)
    await raw.close()
    store, other = await opened(), await opened()
    await store.enqueue_rollout("new")

    claimed = await store.dequeue_many_rollouts(limit=10, worker_id="w-2")
    assert [one.rollout_id[-1] for one in claimed[:2]] == ["2", "3"]  # in the old order, first
    assert [one.attempt.sequence_id for one in claimed] == [1, 2, 1]

    first = await other.get_rollout_by_id("ro-000000000001")
    assert isinstance(first, AttemptedRollout)
    assert await other.add_span(make_span(first, 50)) is not None
    await other.update_attempt(first.rollout_id, "latest", status="succeeded")
    found = await store.get_rollout_by_id(first.rollout_id)
    assert isinstance(found, AttemptedRollout)
    assert (found.status, found.attempt.status) == ("succeeded", "succeeded")
    assert found.attempt.last_heartbeat_time is not None
    assert [a.status for a in await store.query_attempts(first.rollout_id)] == [
        "failed",
        "succeeded",
    ]
    assert (await store.statistics())["total_attempts"] == 7
    assert await store.reconcile() == {}


async def test_the_watchdog_adopts_what_0_3_left_under_way(opened: Opened) -> None:
    raw = MongoLightningStore(mongo_uri=opened.uri, database_name=opened.database)
    database = raw.collections.pool.database(opened.database)
    limits = {"timeout_seconds": 5.0, "unresponsive_seconds": None}
    config = {**limits, "max_attempts": 1, "retry_condition": []}
    await database["rollouts"].insert_one(legacy_rollout(1, "running", config=config))
    await database["attempts"].insert_one(legacy_attempt(1, 1, "running"))
    await raw.close()
    store = await opened()
    await store.watchdog._sweep(64)
    found = await store.get_rollout_by_id("ro-000000000001")
    assert isinstance(found, AttemptedRollout)
    assert (found.status, found.attempt.status) == ("failed", "timeout")


async def test_claims_of_processes_that_compete_are_counted_once(opened: Opened) -> None:
    registries = [CollectorRegistry() for _ in range(2)]
    trackers = [PrometheusMetricsBackend(registry=registry) for registry in registries]
    stores = [await opened(tracker=tracker) for tracker in trackers]
    retried = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    requests = [EnqueueRolloutRequest(input=n, mode="train", config=retried) for n in range(20)]
    await stores[0].enqueue_many_rollouts(requests)
    claimed: list[AttemptedRollout] = []
    while len(claimed) < 20:
        for batch in await asyncio.gather(*(s.dequeue_many_rollouts(limit=4) for s in stores)):
            claimed += batch
    await stores[0].update_attempt(claimed[0].rollout_id, "latest", status="failed")
    assert await stores[1].dequeue_rollout() is not None
    assert await stores[1].dequeue_rollout() is None

    def total(series: str, **labels: str) -> float:
        for tracker in trackers:
            tracker.flush()
        wanted = {"mode": "train", **labels}
        return sum(registry.get_sample_value(series, wanted) or 0 for registry in registries)

    assert total("agl_rollouts_claims_total", attempt="first") == 20
    assert total("agl_rollouts_claims_total", attempt="retry") == 1
    assert total("agl_rollouts_claim_delay_count") == 20
