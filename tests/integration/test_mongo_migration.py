"""``agl store migrate`` killed half-way, beside a store at work, and between servers with users."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from legacy_mongo import write_legacy
from mongo import (
    PASSWORD,
    MongoServer,
    create_users,
    mongo_database,
    mongo_server,
    running_stand_in,
    server_name,
)
from mongo_proxy import mongo_proxy
from mongo_store import load, store_on_mongo, until, verify
from ports import free_port
from processes import BIN, environment
from pymongo.database import Database

__all__ = ["mongo_database", "mongo_server"]

pytestmark = pytest.mark.timeout(300)

STAND_IN = server_name() if server_name() != "mongod" else "secantusd-py"
Client = pymongo.MongoClient[dict[str, Any]]
BATCH = 500


@pytest.fixture
def database(mongo_server: MongoServer, mongo_database: str) -> Iterator[Database[dict[str, Any]]]:
    with Client(mongo_server.uri) as client:
        yield client[mongo_database]


async def migrating(uri: str, database: str, *arguments: str) -> asyncio.subprocess.Process:
    """``agl store migrate``, started."""
    where = ("--mongo-uri", uri, "--database", database)
    return await asyncio.create_subprocess_exec(
        *(BIN / "agl", "store", "migrate", *where, *arguments),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def by_id(database: Database[dict[str, Any]], name: str) -> dict[Any, dict[str, Any]]:
    return {document["_id"]: document for document in database[name].find()}


async def test_killed_half_way_it_goes_on_to_the_end(
    mongo_server: MongoServer, database: Database[dict[str, Any]]
) -> None:
    """First while it copies, then while it embeds: what was done is not done again."""
    source = database.client[f"{database.name}_old"]
    copy = ("--from", mongo_server.uri, "--from-database", source.name)
    embedded = {"attempts": {"$exists": True}}
    left_alone = f"0 missing in the target, {BATCH} newer in the target and left alone"
    try:
        write_legacy(source, "p", BATCH + 8, statuses=("queuing", "queuing", "queuing", "running"))
        before = {name: by_id(source, name) for name in ("rollouts", "attempts", "spans")}
        for passes in (1, 2):  # the rest of the copy is one more
            async with mongo_proxy(mongo_server.uri) as proxy:
                proxy.hold("update", "rollouts", passes=passes)
                process = await migrating(proxy.uri, database.name, *copy)
                await asyncio.wait_for(proxy.holding.wait(), 60)
                process.kill()
                assert await process.wait() == -signal.SIGKILL
            done = database["rollouts"].count_documents({} if passes == 1 else embedded)
            assert done == BATCH
        process = await migrating(mongo_server.uri, database.name, *copy)
        printed, said = await asyncio.wait_for(process.communicate(), 100)
        assert process.returncode == 0, said
        lines = printed.decode().splitlines()
        assert f"rollouts: {BATCH + 8} in the source, {left_alone}" in lines
        assert {name: by_id(source, name) for name in before} == before
    finally:
        database.client.drop_database(source.name)

    roots = by_id(database, "rollouts")
    assert roots.keys() == before["rollouts"].keys()
    for key, old in before["rollouts"].items():
        assert {name: roots[key][name] for name in old} == old
    ids = [attempt["attempt_id"] for root in roots.values() for attempt in root["attempts"]]
    assert sorted(ids) == sorted(one["attempt_id"] for one in before["attempts"].values())
    assert by_id(database, "spans") == before["spans"]
    waiting = [root for root in roots.values() if root["status"] == "queuing"]
    assert all(root["queued_at"] is not None for root in waiting)
    assert by_id(database, "attempts") == by_id(database, "rollout_queue") == {}


async def test_a_store_is_at_work_meanwhile_and_nothing_is_lost(
    mongo_server: MongoServer, database: Database[dict[str, Any]]
) -> None:
    """What it has read is worked on and finished before it writes what it made of that."""
    write_legacy(database, "default", 24, statuses=("queuing",))
    old = {f"ro-{number}" for number in range(24)}
    async with mongo_proxy(mongo_server.uri) as proxy:
        proxy.hold("update", "rollouts")
        process = await migrating(proxy.uri, database.name)
        await asyncio.wait_for(proxy.holding.wait(), 60)
        with store_on_mongo(mongo_server, database.name) as store:
            async with load(store) as ledger:
                await until("old rollouts finished", lambda: len(old & set(ledger.finished)) >= 8)
                proxy.release()
                _, said = await asyncio.wait_for(process.communicate(), 100)
                assert process.returncode == 0, said
                target = len(ledger.finished) + 8
                await until("new rollouts finished", lambda: len(ledger.finished) >= target)
            assert ledger.failures == []
            await verify(store, ledger)
            assert store.stop() == 0
    assert old <= {root["rollout_id"] for root in by_id(database, "rollouts").values()}
    assert database["rollouts"].count_documents({"attempts": {"$exists": False}}) == 0
    assert database["rollout_queue"].count_documents({}) == 0


async def test_between_servers_that_demand_users_the_old_one_just_started(tmp_path: Path) -> None:
    """The way for a folder of 8.2: `docker run` of the old server, and at once `migrate`."""
    old, new, uri, password = (tmp_path / name for name in ("old", "new", "uri", "password"))
    roles = {
        "reader": {"role": "read", "db": "of_0_3"},
        "store": {"role": "readWrite", "db": "agentlightning"},
    }
    create_users(STAND_IN, old, roles, lambda client: write_legacy(client["of_0_3"], "p", 8))
    shutil.copytree(old, new)
    port = free_port()
    uri.write_text(f"mongodb://reader:{PASSWORD}@127.0.0.1:{port}/?directConnection=true")
    password.write_text(PASSWORD)
    options = ("--mongo-user", "store", "--mongo-password-file", str(password))
    options += ("--from-file", str(uri), "--from-database", "of_0_3")
    with running_stand_in(STAND_IN, "--auth", storage=new) as target:
        process = await migrating(target.uri, "agentlightning", *options)
        assert process.stderr is not None
        said = await asyncio.wait_for(process.stderr.readline(), 60)
        assert said == b"waiting for the server that --from names\n"
        with running_stand_in(STAND_IN, "--auth", storage=old, port=port) as source:
            printed, said = await asyncio.wait_for(process.communicate(), 100)
            end_at_once(source)
        assert process.returncode == 0, said
        assert b"rollouts: 8 in the source, 0 missing in the target\n" in printed
        assert PASSWORD.encode() not in printed + said
        with Client(target.uri_of("store")) as client:
            assert client["agentlightning"]["rollouts"].count_documents({}) == 8
            assert client["agentlightning"]["spans"].count_documents({}) == 12
        end_at_once(target)


def end_at_once(server: MongoServer) -> None:
    """One whose data nobody needs any more need not take its leave."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
