"""``agl store --backend mongo`` on a MongoDB it cannot work with: one line that says what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mongo import (
    PASSWORD,
    MongoServer,
    create_users,
    mongo_database,
    mongo_server,
    running_stand_in,
    server_name,
)
from old_mongo import MONGO_3_2, MONGO_5, NOT_INITIATED, greeting
from ports import free_port
from processes import run_agl

__all__ = ["mongo_database", "mongo_server"]

STAND_IN = server_name() if server_name() != "mongod" else "secantusd-py"


def fault(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The one line; nothing was served, and no password was shown."""
    port = str(free_port())
    options = ("--host", "127.0.0.1", "--port", port, "--backend", "mongo", "--n-workers", "1")
    ended = run_agl("store", *options, *arguments, env=env)
    assert ended.returncode == 1, ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "s3cret" not in ended.stderr + ended.stdout
    messages = [json.loads(line)["message"] for line in ended.stdout.splitlines()]
    assert not any("Running the lightning store" in message for message in messages)
    line = ended.stderr.removesuffix("\n")
    assert line.startswith("agl store: error: ")
    assert " - " in line, "no remedy"
    return line


def test_nobody_there() -> None:
    line = fault("--mongo-uri", f"mongodb://u:s3cret@127.0.0.1:{free_port()}/?replicaSet=rs0")
    assert "cannot be reached" in line
    assert "TLS" in line


def test_a_name_nobody_knows() -> None:
    line = fault("--mongo-uri", "mongodb+srv://store.invalid/")
    assert "the name store.invalid of the MongoDB connection string leads to no server" in line


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("mongodb://u:s3cret@x@db/", "percent-encoded"),
        ("mongodb://u:s3cret@db:port/", "percent-encoded"),
        ("mongodb:///?replicaSet=s3cret", "looks like mongodb://user:password@host"),
    ],
)
def test_a_broken_connection_string(uri: str, text: str) -> None:
    assert text in fault("--mongo-uri", uri)


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (MONGO_5, "is version 5.0.31, too old for this store - MongoDB 6.0 or newer is needed"),
        (MONGO_3_2, "too old for this store - MongoDB 6.0 or newer is needed"),
        (NOT_INITIATED, "is not initiated - once, on that server: mongosh --eval"),
    ],
)
def test_servers_that_cannot_be_had_here(hello: dict[str, Any], text: str) -> None:
    with greeting(hello) as port:
        assert text in fault("--mongo-uri", f"mongodb://127.0.0.1:{port}/?replicaSet=rs0")


def test_standalone() -> None:
    with running_stand_in(STAND_IN, "--standalone") as server:
        for uri in (server.uri, server.uri.partition("?")[0]):
            line = fault("--mongo-uri", uri)
            assert "is a standalone server, which has no transactions" in line
            assert "mongod --replSet rs0" in line


def test_another_replica_set(mongo_server: MongoServer) -> None:
    where, _, options = mongo_server.uri.partition("?")
    kept = [one for one in options.split("&") if one and not one.startswith("replicaSet=")]
    line = fault("--mongo-uri", f"{where}?{'&'.join([*kept, 'replicaSet=other'])}")
    assert "the connection string says 'other' - write replicaSet=" in line


def test_users_and_rights(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    roles = {
        "reader": {"role": "read", "db": "agentlightning"},
        "writer": {"role": "readWrite", "db": "agentlightning"},
    }
    create_users(STAND_IN, tmp_path / "data", roles)
    with running_stand_in(STAND_IN, "--auth", storage=tmp_path / "data") as server:
        uri = server.uri
        assert "demands a user - put one" in fault("--mongo-uri", uri)
        wrong = fault("--mongo-uri", server.uri_of("writer").replace(PASSWORD, "s3cret2"))
        assert "refuses the user 'writer' or its password" in wrong
        env = {"AGL_MONGO_USER": "reader", "AGL_MONGO_PASSWORD_FILE": str(password)}
        line = fault("--mongo-uri", uri, env=env)
        assert "the MongoDB user 'reader' has not the rights it needs" in line
        assert 'db.grantRolesToUser("reader", [{role: "readWrite", db: "agentlightning"}])' in line
        env["AGL_MONGO_USER"] = "writer"
        assert "database 'other'" in fault("--mongo-uri", uri, "--database", "other", env=env)


def test_the_driver_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "pymongo.py").write_text("raise ModuleNotFoundError(name='pymongo')")
    line = fault(env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "'pymongo', which is not installed - type: " in line
    assert line.endswith("-m pip install 'pymongo>=4.13,<5'")
