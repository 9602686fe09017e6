"""``agl store partitions``, ``prune`` and ``migrate`` on data of agent-lightning 0.3."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from legacy_mongo import write_legacy
from mongo import MongoServer, mongo_database, mongo_server, running_stand_in, server_name
from processes import BIN, environment, run_agl
from pymongo.database import Database

from agl.store.collection.mongo.indexes import INDEXES

__all__ = ["mongo_database", "mongo_server"]

STAND_IN = server_name() if server_name() != "mongod" else "secantusd-py"


@pytest.fixture
def database(mongo_server: MongoServer, mongo_database: str) -> Iterator[Database[dict[str, Any]]]:
    with pymongo.MongoClient[dict[str, Any]](mongo_server.uri) as client:
        yield client[mongo_database]


def agl(server: MongoServer, database: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ("--mongo-uri", server.uri, "--database", database)
    return run_agl("store", *arguments, *where, seconds=100)


def succeed(server: MongoServer, database: str, *arguments: str) -> str:
    ended = agl(server, database, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def contents(database: Database[dict[str, Any]]) -> dict[str, int]:
    names = sorted(database.list_collection_names())
    counts = {name: database[name].count_documents({}) for name in names}
    return {name: count for name, count in counts.items() if count}


def serve(database: Database[dict[str, Any]], partition_id: str) -> None:
    """A heartbeat of a server on another host."""
    record = {"partition_id": partition_id, "server_id": "s", "host": "store-2", "port": 4747}
    database["servers"].update_one(
        {"_id": "s/1"}, {"$set": record, "$currentDate": {"seen_at": True}}, upsert=True
    )


# partitions


def test_partitions_are_listed(mongo_server: MongoServer, database: Database[Any]) -> None:
    write_legacy(database, "pt-a", 8)
    write_legacy(database, "pt-b", 4)
    serve(database, "pt-b")
    found = json.loads(succeed(mongo_server, database.name, "partitions", "--format", "json"))
    assert [one["partition_id"] for one in found] == ["pt-a", "pt-b"]
    assert found[0]["counts"]["rollouts"] == 8
    assert found[0]["counts"]["spans"] == 12
    assert found[0]["unfinished"] == 4
    assert found[0]["last_activity"] == 1_767_225_600.0 + 7 + 5
    assert found[0]["size_bytes"] > 2 * found[1]["size_bytes"] * 0.9 > 0
    assert [one["served_by"] for one in found] == [[], ["store-2 port 4747"]]
    text = succeed(mongo_server, database.name, "partitions")
    assert text.splitlines()[1].split()[:4] == ["pt-a", "8", "4", "12"]
    assert text.splitlines()[2].endswith("store-2 port 4747")


def test_an_empty_database(mongo_server: MongoServer, mongo_database: str) -> None:
    text = succeed(mongo_server, mongo_database, "partitions")
    assert text == f"Database {mongo_database!r} holds no partition.\n"
    assert json.loads(succeed(mongo_server, mongo_database, "partitions", "--format", "json")) == []


# prune


def test_prune_removes_one_partition_and_no_other(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "kept", 4)
    before = contents(database)
    write_legacy(database, "gone", 40)
    database["partitions"].insert_one({"_id": "gone", "instance_id": "x"})
    database["counters"].insert_one({"partition_id": "gone", "numbers": {}, "serial": 0})
    text = succeed(mongo_server, database.name, "prune", "gone", "--yes")
    assert "40 rollouts (20 unfinished)" in text
    assert contents(database) == before
    ended = agl(mongo_server, database.name, "prune", "gone", "--yes")
    assert ended.returncode == 1
    assert "has no partition 'gone'" in ended.stderr


def test_prune_needs_a_yes_where_nobody_can_be_asked(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "p", 4)
    before = contents(database)
    ended = run_agl(
        "store", "prune", "p", "--mongo-uri", mongo_server.uri, "--database", database.name
    )
    assert ended.returncode == 2
    assert "--yes removes without asking" in ended.stderr
    assert contents(database) == before


@pytest.mark.parametrize(("answer", "code"), [("no\n", 1), ("y\n", 1), ("p\n", 0)])
def test_prune_asks_for_the_name(
    answer: str, code: int, mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "p", 4)
    before = contents(database)
    terminal, other_end = pty.openpty()
    os.write(terminal, answer.encode())
    where = ("--mongo-uri", mongo_server.uri, "--database", database.name)
    ended = subprocess.run(
        [BIN / "agl", "store", "prune", "p", *where],
        stdin=other_end,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    os.close(terminal)
    os.close(other_end)
    assert ended.returncode == code, ended.stderr
    assert "Type the name of the partition" in ended.stdout
    assert (contents(database) == before) is (code == 1)


def test_prune_refuses_what_a_live_server_uses(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "p", 4)
    serve(database, "p")
    before = contents(database)
    ended = agl(mongo_server, database.name, "prune", "p", "--yes")
    assert ended.returncode == 1
    assert "partition 'p' is in use by the store on store-2 port 4747" in ended.stderr
    assert contents(database) == before


# migrate


def names_of_indexes(database: Database[Any]) -> dict[str, set[str]]:
    return {name: set(database[name].index_information()) for name in INDEXES}


def test_a_dry_run_changes_nothing(mongo_server: MongoServer, database: Database[Any]) -> None:
    write_legacy(database, "p", 8)
    before = contents(database), names_of_indexes(database)
    lines = succeed(mongo_server, database.name, "migrate", "--dry-run").splitlines()
    assert "would drop index workers.idx_s_t_a_t_u_s" in lines
    assert "would drop index resources.idx_u_p_d_a_t_e___t_i_m_e" in lines
    assert "would embed the attempts of rollouts: 8" in lines
    assert any(line.startswith("would build index rollouts.") for line in lines)
    assert (contents(database), names_of_indexes(database)) == before


def test_migrate_embeds_builds_and_tidies(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "p", 503)  # more than a batch
    orphan = {"partition_id": "p", "rollout_id": "ro-x", "attempt_id": "at-x", "sequence_id": 1}
    database["attempts"].insert_one(dict(orphan))
    spans = list(database["spans"].find().sort("_id", 1))
    assert succeed(mongo_server, database.name, "migrate") == "Migrated.\n"

    for name, wanted in INDEXES.items():
        stored = database[name].index_information()
        keys = [tuple(tuple(key) for key in index["key"]) for index in stored.values()]
        assert all(index.keys in keys for index in wanted), name
        assert not {"idx_status", "idx_s_t_a_t_u_s", "idx_u_p_d_a_t_e___t_i_m_e"} & set(stored)
    roots = list(database["rollouts"].find().sort("_id", 1))
    assert len(roots) == 503
    for number, root in enumerate(roots):
        ids = [attempt["attempt_id"] for attempt in root["attempts"]]
        expected = [f"at-ro-{number}-1", f"at-ro-{number}-2"] if number % 4 else []
        assert ids == expected
        assert not any("_id" in attempt for attempt in root["attempts"])
        assert (root["queued_at"] is None) == (root["status"] != "queuing")
        assert (root["deadline"] is None) == (root["status"] != "running")
        assert root["input"] == {"task": number}
    waiting = [root["queued_at"] for root in roots if root["status"] == "queuing"]
    assert waiting == sorted(waiting)
    assert waiting[:2] == [1_767_225_600.0, 1_767_225_604.0]
    assert roots[1]["deadline"] == roots[1]["attempts"][1]["start_time"] + 60
    assert [one["attempt_id"] for one in database["attempts"].find()] == ["at-x"]
    assert database["rollout_queue"].count_documents({}) == 0
    assert list(database["spans"].find().sort("_id", 1)) == spans

    database["attempts"].delete_many({})
    assert succeed(mongo_server, database.name, "migrate") == "There is nothing to migrate.\n"


def test_migrate_goes_on_where_it_was_interrupted(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    write_legacy(database, "p", 8)
    decided = {"attempts": [], "version": "newer", "queued_at": 5.0, "deadline": None}
    database["rollouts"].update_one({"rollout_id": "ro-4"}, {"$set": decided})
    succeed(mongo_server, database.name, "migrate")
    root = database["rollouts"].find_one({"rollout_id": "ro-4"})
    assert root is not None
    assert {name: root[name] for name in decided} == decided, "what a server wrote stays"
    assert database["rollouts"].count_documents({"attempts": {"$exists": False}}) == 0


# migrate --from


def test_migrate_copies_from_a_running_server(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    with (
        running_stand_in(STAND_IN) as old,
        pymongo.MongoClient[dict[str, Any]](old.uri) as client,
    ):
        source = client["agentlightning"]
        write_legacy(source, "pt-a", 12)
        write_legacy(source, "pt-b", 4)
        before = contents(source)
        dry = succeed(mongo_server, database.name, "migrate", "--from", old.uri, "--dry-run")
        assert "would copy rollouts: 16" in dry
        assert contents(database) == {}

        copy = ("migrate", "--from", old.uri)
        text = succeed(mongo_server, database.name, *copy)
        assert "rollouts: 16 in the source, 0 missing in the target\n" in text
        assert text.endswith("Migrated.\n")
        assert database["rollouts"].count_documents({"attempts": {"$exists": False}}) == 0
        assert database["spans"].count_documents({"partition_id": "pt-a"}) == 18
        assert contents(source) == before

        source["spans"].update_one({"rollout_id": "ro-1"}, {"$set": {"name": "changed"}})
        write_legacy(source, "pt-c", 4)
        again = succeed(mongo_server, database.name, *copy)
        assert "16 newer in the target and left alone" in again
        assert database["spans"].count_documents({"name": "changed"}) == 1
        assert database["rollouts"].count_documents({}) == 20

        serve(database, "pt-c")
        ended = agl(mongo_server, database.name, *copy)
        assert ended.returncode == 1
        assert "partition 'pt-c' of the target is in use" in ended.stderr


def test_one_partition_is_copied(mongo_server: MongoServer, database: Database[Any]) -> None:
    source = database.client[f"{database.name}_old"]
    try:
        write_legacy(source, "pt-a", 4)
        write_legacy(source, "pt-b", 4)
        options = ("--from", mongo_server.uri, "--from-database", source.name, "--only", "pt-b")
        succeed(mongo_server, database.name, "migrate", *options)
        assert database["rollouts"].distinct("partition_id") == ["pt-b"]
        mistyped = (*options[:-1], "pt-c")
        ended = agl(mongo_server, database.name, "migrate", *mistyped)
        assert ended.returncode == 1
        assert "--only: the source has no partition 'pt-c'" in ended.stderr
        assert "it has 'pt-a', 'pt-b'" in ended.stderr
    finally:
        database.client.drop_database(source.name)


def test_a_database_is_not_copied_onto_itself(
    mongo_server: MongoServer, database: Database[Any]
) -> None:
    options = ("--from", mongo_server.uri, "--from-database", database.name)
    ended = agl(mongo_server, database.name, "migrate", *options)
    assert ended.returncode == 1
    assert "--from names the database that is to be copied to" in ended.stderr
