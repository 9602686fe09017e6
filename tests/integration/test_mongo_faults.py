"""Faults of MongoDB under load: what was acknowledged is there, once, and work goes on by itself.

Each test keeps a ledger of what clients were told (``mongo_store.Ledger``) and compares it with
what the store says afterwards. The table of faults is in ``docs/operating.md``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pymongo
import pytest
from mongo import (
    MongoServer,
    any_server,
    mongo_database,
    mongo_server,
    running_stand_in,
    server_name,
)
from mongo_proxy import mongo_proxy
from mongo_store import (
    Ledger,
    RunningStore,
    Work,
    client_of,
    load,
    sockets,
    store_on_mongo,
    until,
    verify,
    verify_totals,
)
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from agl.types import EnqueueRolloutRequest, RolloutConfig

__all__ = ["mongo_database", "mongo_server"]

NAME = server_name()
OURS = pytest.mark.skipif(NAME == "mongod", reason="the server is not ours to stop")
DURABLE = "--sync-on-commit"
"""Makes a stand-in journal before it acknowledges, as mongod does."""

DATABASE = "agl_faults"


def port_of(server: MongoServer) -> int:
    return int(server.uri.split(":")[2].partition("/")[0])


async def progress(ledger: Ledger, more: int = 10) -> None:
    target = len(ledger.finished) + more
    await until("progress", lambda: len(ledger.finished) >= target)


def assert_named(ledger: Ledger, *causes: str) -> None:
    """Every failure a client saw says why, and nothing that is not its business."""
    for failure in ledger.failures:
        assert any(cause in failure for cause in causes), failure
        assert "mongodb://" not in failure
        assert "s3cret" not in failure


# MongoDB goes away


@OURS
async def test_mongodb_is_killed_under_load_and_returns(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ExitStack() as stack:
        first = stack.enter_context(running_stand_in(NAME, DURABLE, storage=data))
        store = stack.enter_context(store_on_mongo(first, DATABASE))
        async with load(store) as ledger:
            await progress(ledger)
            assert first.pid is not None
            before = store.workers()
            os.kill(first.pid, signal.SIGKILL)
            store.process.send_signal(signal.SIGHUP)  # nobody to check the settings with
            await until(
                "refusal", lambda: store.logged("SIGHUP: nothing was changed: MongoDB at") == 1
            )
            assert store.workers() == before
            again = running_stand_in(NAME, DURABLE, storage=data, port=port_of(first))
            stack.enter_context(again)
            await progress(ledger)
        await verify(store, ledger)
        assert ledger.failures == []
        assert store.stop() == 0


@OURS
async def test_mongodb_pauses_for_20_seconds(tmp_path: Path) -> None:
    with running_stand_in(NAME) as server, store_on_mongo(server, DATABASE) as store:
        assert server.pid is not None
        async with load(store) as ledger:
            await progress(ledger)
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(20)
            os.kill(server.pid, signal.SIGCONT)
            await progress(ledger)
        await verify(store, ledger)
        assert ledger.failures == []
        assert store.stop() == 0


async def test_the_primary_steps_down() -> None:
    with any_server() as server, pymongo.MongoClient[dict[str, Any]](server.uri) as admin:
        database = server.new_database()
        with store_on_mongo(server, database) as store:
            async with load(store) as ledger:
                await progress(ledger)
                try:
                    admin.admin.command("replSetStepDown", 5, force=True)
                except OperationFailure as refused:
                    pytest.skip(f"this server cannot step down: {refused.code}")
                await progress(ledger)
            await verify(store, ledger)
            assert ledger.failures == []
            assert store.stop() == 0
        server.drop(database)


@pytest.mark.parametrize("before", [True, False])
async def test_connections_are_cut_in_the_middle_of_commits(
    before: bool, mongo_server: MongoServer, mongo_database: str
) -> None:
    """The commit is lost, or the answer to a commit that was carried out."""
    async with mongo_proxy(mongo_server.uri) as proxy:
        beside = MongoServer(mongo_server.name, proxy.uri)
        task = asyncio.to_thread(_started, beside, mongo_database)
        stack, store = await task
        try:
            async with load(store, work=Work(batch=5)) as ledger:
                for command in ("commitTransaction", "bulkWrite", "commitTransaction"):
                    await progress(ledger)
                    lost = proxy.lost
                    proxy.lose(command, times=5, before=before)
                    await until("loss", lambda lost=lost: proxy.lost == lost + 5)
                await progress(ledger)
            await verify(store, ledger)
            assert ledger.failures == []
        finally:
            await asyncio.to_thread(stack.close)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_process_is_killed_between_its_claims_and_the_answer(
    limit: int, mongo_server: MongoServer, mongo_database: str
) -> None:
    """The client asks again by its key: another process hands out the very claims."""
    async with mongo_proxy(mongo_server.uri) as proxy:
        beside = MongoServer(mongo_server.name, proxy.uri)
        stack, store = await asyncio.to_thread(_started, beside, mongo_database)
        stored = AsyncMongoClient[dict[str, Any]](mongo_server.uri)
        try:
            async with client_of(store) as client:
                await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in "abcd"])
                sender = proxy.keep("bulkWrite")
                asking = asyncio.create_task(
                    client.dequeue_many_rollouts(limit=limit, worker_id="w")
                )
                port = await asyncio.wait_for(sender, 60)
                claimed = {
                    document["rollout_id"]: document["attempts"][0]["attempt_id"]
                    for document in await stored[mongo_database]["rollouts"].find().to_list()
                    if document.get("attempts")
                }
                assert (len(claimed), asking.done()) == (limit, False)
                before = store.workers()
                (victim,) = (pid for pid in before if (port, proxy.port) in sockets(pid))
                os.kill(victim, signal.SIGKILL)
                told = await asyncio.wait_for(asking, 60)
                assert {one.rollout_id: one.attempt.attempt_id for one in told} == claimed
                assert victim not in store.workers()
                rest = await client.dequeue_many_rollouts(limit=9, worker_id="w")
                assert {one.rollout_id for one in rest} & claimed.keys() == set()
                assert len(rest) == 4 - limit
                for one in (*told, *rest):
                    (attempt,) = await client.query_attempts(one.rollout_id)
                    assert attempt.attempt_id == one.attempt.attempt_id
                await verify_totals(client, total_rollouts=4, total_attempts=4)
        finally:
            await stored.close()
            await asyncio.to_thread(stack.close)


def _started(server: MongoServer, database: str) -> tuple[ExitStack, RunningStore]:
    """Off the event loop, where the proxy runs that it needs to start."""
    stack = ExitStack()
    return stack, stack.enter_context(store_on_mongo(server, database))


# Disk full


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    size = "96m" if NAME == "secantusd-rs" else "320m"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that takes the room that is left, but for ``leave`` bytes."""
    disk = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_bsize - leave)
    return filler


@OURS
async def test_the_disk_of_mongodb_is_full(tmp_path: Path) -> None:
    """As WiredTiger's panic ends mongod, so the stand-in is ended, and started with room again."""
    small_log = ("--log-file-max", "8MB") if NAME == "secantusd-rs" else ()
    with small_disk(tmp_path / "data") as data, ExitStack() as stack:
        first = stack.enter_context(running_stand_in(NAME, DURABLE, *small_log, storage=data))
        store = stack.enter_context(store_on_mongo(first, DATABASE))
        async with load(store, work=Work(input_bytes=20_000)) as ledger:
            await progress(ledger)
            filler = fill(data, leave=2**20)
            await until("failure", lambda: len(ledger.failures) > 0)
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            filler.unlink()
            again = running_stand_in(NAME, DURABLE, *small_log, storage=data, port=port_of(first))
            stack.enter_context(again)
            await progress(ledger)
        refused = ("MongoDB refused the operation (", "MongoDB refused a write (")
        assert_named(ledger, *refused, "MongoDB cannot be reached")
        await verify(store, ledger)
        assert store.stop() == 0


# Access


@contextmanager
def with_users(storage: Path) -> Iterator[tuple[MongoServer, pymongo.MongoClient[dict[str, Any]]]]:
    """A stand-in that demands users: ``store``, and an administrator."""
    with (
        running_stand_in(NAME, storage=storage) as server,
        pymongo.MongoClient[dict[str, Any]](server.uri) as client,
    ):
        roles = [{"role": "readWrite", "db": DATABASE}]
        client.admin.command("createUser", "store", pwd="s3cret", roles=roles)
        client.admin.command("createUser", "admin", pwd="s3cret", roles=["root"])
    with running_stand_in(NAME, "--auth", storage=storage) as server:
        host = server.uri.removeprefix("mongodb://")
        with pymongo.MongoClient[dict[str, Any]](f"mongodb://admin:s3cret@{host}") as admin:
            uri = f"mongodb://store:s3cret@{host}"
            yield MongoServer(server.name, uri, server.pid, server.storage), admin


def no_secret(store: RunningStore) -> None:
    assert "s3cret" not in store.log.read_text()


@OURS
@pytest.mark.skipif(
    NAME == "secantusd-py", reason="the Python stand-in seems to keep the rights of a login"
)
async def test_rights_are_taken_away_and_given_back(tmp_path: Path) -> None:
    with (
        with_users(tmp_path / "data") as (server, admin),
        store_on_mongo(server, DATABASE) as store,
    ):
        role = [{"role": "readWrite", "db": DATABASE}]
        async with load(store) as ledger:
            await progress(ledger)
            admin.admin.command("updateUser", "store", roles=[{"role": "read", "db": DATABASE}])
            await until("failure", lambda: len(ledger.failures) > 0)
            admin.admin.command("updateUser", "store", roles=role)
            await progress(ledger)
        assert_named(ledger, "MongoDB refused: the user lacks rights; it needs readWrite")
        await verify(store, ledger)
        no_secret(store)
        assert store.stop() == 0


@OURS
async def test_the_password_is_changed_and_changed_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with with_users(data) as (server, admin), store_on_mongo(server, DATABASE) as store:
        async with load(store) as ledger:
            await progress(ledger)
            admin.admin.command("updateUser", "store", pwd="another")
            for pid in store.workers():  # who connects anew has to log in
                os.kill(pid, signal.SIGKILL)
            await until("failure", lambda: any("password" in one for one in ledger.failures))
            admin.admin.command("updateUser", "store", pwd="s3cret")
            await progress(ledger)
        assert any("MongoDB refused the user or password" in one for one in ledger.failures)
        assert not any("s3cret" in one or "mongodb://" in one for one in ledger.failures)
        await verify(store, ledger)
        no_secret(store)
        assert store.stop() == 0


# Size


async def test_a_document_beyond_16_mib_is_413_with_the_limit(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    with store_on_mongo(mongo_server, mongo_database, processes=1) as store:
        async with load(store) as ledger, httpx.AsyncClient(base_url=store.url, timeout=60) as http:
            body = {"rollouts": [{"input": "x" * (17 * 2**20)}]}
            answer = await http.post("/v1/agl/queues/rollouts/enqueue", json=body)
            await progress(ledger)
        assert answer.status_code == 413
        assert "whose limit is 16 MiB a document" in answer.json()["detail"]
        await verify(store, ledger)
        assert ledger.failures == []
        assert store.stop() == 0


# Hosts and trainers

CLOCK = """
import os, time
_seconds, _time, _time_ns = float(os.environ["AGL_TEST_CLOCK"]), time.time, time.time_ns
time.time = lambda: _time() + _seconds
time.time_ns = lambda: _time_ns() + int(_seconds * 1e9)
"""


async def test_clocks_of_store_hosts_differ(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    """Two minutes ahead and two behind, with a watchdog that gives a silent worker 100 seconds."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    where = {"PYTHONPATH": str(tmp_path)}
    with (
        store_on_mongo(mongo_server, mongo_database, env={**where, "AGL_TEST_CLOCK": "120"}) as one,
        store_on_mongo(
            mongo_server, mongo_database, env={**where, "AGL_TEST_CLOCK": "-120"}
        ) as two,
    ):
        assert one.logged("s ahead of MongoDB's") == two.logged("s behind MongoDB's") == 1
        config = RolloutConfig(
            unresponsive_seconds=100, max_attempts=3, retry_condition=["unresponsive"]
        )
        async with client_of(one) as here, client_of(two) as there:
            started = [
                await client.start_rollout({"task": f"long-{name}"}, config=config)
                for name, client in (("one", here), ("two", there))
            ]
            ids = [rollout.rollout_id for rollout in started]
            work, began = Work(config=config), time.monotonic()
            async with load(one, work=work) as first, load(two, work=work) as second:
                await until("look of the watchdogs", lambda: time.monotonic() > began + 12)
                await progress(first)
                await progress(second)
                waiting = asyncio.create_task(there.wait_for_rollouts(rollout_ids=ids, timeout=60))
                for client, rollout in zip((there, here), started, strict=True):
                    attempt_id = rollout.attempt.attempt_id
                    found = await client.get_latest_attempt(rollout.rollout_id)
                    assert found is not None
                    assert (found.attempt_id, found.status) == (attempt_id, "preparing")
                    await client.update_attempt(rollout.rollout_id, attempt_id, status="succeeded")
                assert {r.status for r in await waiting} == {"succeeded"}
        both = Ledger.of(first, second)
        for rollout in started:
            both.claim(rollout)
            both.finish(rollout)
        assert both.failures == []
        await verify(one, both)
        await verify(two, both)
        assert one.stop() == two.stop() == 0


async def test_two_trainers_on_one_partition_get_their_own_results(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    """Their runners take whatever waits; each trainer waits for its own, and gets it once."""
    with (
        store_on_mongo(mongo_server, mongo_database, processes=1) as one,
        store_on_mongo(mongo_server, mongo_database, processes=1) as two,
    ):
        assert two.logged("two trainings need a --partition-id each") == 1

        async def train(store: RunningStore, name: str) -> list[tuple[str, Any]]:
            async with client_of(store) as client:
                resources = await client.add_resources({})
                requests = [
                    EnqueueRolloutRequest(
                        input={"task": f"{name}-{n}"}, resources_id=resources.resources_id
                    )
                    for n in range(20)
                ]
                ids = [r.rollout_id for r in await client.enqueue_many_rollouts(requests)]
                finished = []
                while len(finished) < len(ids):
                    finished = await client.wait_for_rollouts(rollout_ids=ids, timeout=5)
                assert {r.status for r in finished} == {"succeeded"}
                return [(r.resources_id or "", r.input["task"]) for r in finished]

        async with load(one, players=2) as first, load(two, players=2) as second:
            mine, yours = await asyncio.gather(train(one, "mine"), train(two, "yours"))
        assert sorted(task for _, task in mine) == sorted(f"mine-{n}" for n in range(20))
        assert sorted(task for _, task in yours) == sorted(f"yours-{n}" for n in range(20))
        assert len({resources for resources, _ in mine + yours}) == 2
        both = Ledger.of(first, second)
        assert both.failures == []
        await verify(two, both)
        assert one.stop() == two.stop() == 0
