"""The driver's errors and options as ours: the cause is named, secrets are not."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from typing import Any

import pytest
from pymongo import AsyncMongoClient, errors

from agl.errors import (
    BackendError,
    BackendUnavailableError,
    DuplicatedPrimaryKeyError,
    TooLargeError,
)
from agl.store.collection.mongo import MongoClientPool, resolve_mongo_error_type
from agl.store.collection.mongo.errors import translate
from agl.store.collection.mongo.pool import client_options

SECRET = "mongodb://agl:hunter2@db.internal:27017"


def labelled(error: errors.PyMongoError, label: str) -> errors.PyMongoError:
    error._add_error_label(label)
    return error


def refused(code: int, name: str = "") -> errors.OperationFailure:
    return errors.OperationFailure(f"{SECRET} failed", code, {"codeName": name} if name else {})


def bulk(code: int) -> errors.BulkWriteError:
    return errors.BulkWriteError({"writeErrors": [{"index": 0, "code": code, "errmsg": SECRET}]})


DUPLICATE = errors.DuplicateKeyError(SECRET, 11000)
CASES: list[tuple[errors.PyMongoError, type[Exception], str, str]] = [
    (DUPLICATE, DuplicatedPrimaryKeyError, "already stored", "OperationFailure-11000"),
    (bulk(11000), DuplicatedPrimaryKeyError, "already stored", "OperationFailure-65"),
    (bulk(10334), TooLargeError, "16 MiB", "OperationFailure-65"),
    (errors.DocumentTooLarge(SECRET), TooLargeError, "16 MiB", "DocumentTooLarge"),
    (refused(18), BackendError, "user or password", "OperationFailure-18"),
    (refused(13), BackendError, "lacks rights", "OperationFailure-13"),
    (refused(20, "IllegalOperation"), BackendError, "20 IllegalOperation", "OperationFailure-20"),
    (errors.InvalidURI(SECRET), BackendError, "check the Mongo URI", "InvalidURI"),
    (errors.InvalidOperation(SECRET), BackendError, "closed", "InvalidOperation"),
    (
        errors.ServerSelectionTimeoutError(SECRET),
        BackendUnavailableError,
        "cannot be reached",
        "ServerSelectionTimeoutError",
    ),
    (errors.AutoReconnect(SECRET), BackendUnavailableError, "was lost", "AutoReconnect"),
    (errors.NetworkTimeout(SECRET), BackendUnavailableError, "was lost", "NetworkTimeout"),
    (
        errors.WaitQueueTimeoutError(SECRET),
        BackendUnavailableError,
        "in use",
        "WaitQueueTimeoutError",
    ),
    (errors.ExecutionTimeout(SECRET, 50), BackendUnavailableError, "50", "OperationFailure-50"),
    (refused(189), BackendUnavailableError, "code 189", "OperationFailure-189"),
    (refused(14031), BackendUnavailableError, "code 14031", "OperationFailure-14031"),
    (
        labelled(refused(112, "WriteConflict"), "TransientTransactionError"),
        BackendUnavailableError,
        "112 WriteConflict",
        "OperationFailure-112-Transient",
    ),
]


@pytest.mark.parametrize(("error", "kind", "text", "label"), CASES, ids=[case[3] for case in CASES])
def test_the_cause_is_named_and_no_secret(
    error: errors.PyMongoError, kind: type[Exception], text: str, label: str
) -> None:
    ours = translate(error)
    assert type(ours) is kind
    assert text in str(ours)
    assert "hunter2" not in str(ours)
    assert "db.internal" not in str(ours)
    assert resolve_mongo_error_type(error) == label


def test_other_errors_keep_their_class() -> None:
    assert resolve_mongo_error_type(ValueError()) == "ValueError"
    assert resolve_mongo_error_type(None) == "N/A"
    assert isinstance(translate(refused(1)), RuntimeError)  # as 0.3 raised


# The pool


def test_writes_are_durable_and_reads_see_them_whatever_the_uri_says() -> None:
    options = client_options("mongodb://h/?w=1&journal=false&readPreference=secondary", {})
    assert (options["w"], options["journal"], options["readPreference"]) == (
        "majority",
        True,
        "primary",
    )
    assert client_options("mongodb://h", {"w": 2})["w"] == 2


def test_the_uri_and_the_callers_options_override_defaults() -> None:
    options = client_options("mongodb://h/?sockettimeoutms=1&maxPoolSize=2", {"AppName": "mine"})
    assert not {"socketTimeoutMS", "maxPoolSize", "appname"} & options.keys()
    assert (options["AppName"], options["connectTimeoutMS"]) == ("mine", 5000)


NOWHERE = "mongodb://127.0.0.1:9/?replicaSet=rs0&serverSelectionTimeoutMS=50"


async def test_every_event_loop_has_its_client() -> None:
    async with MongoClientPool(mongo_uri=NOWHERE) as pool:
        mine = await pool.get_client()
        assert await pool.get_client() is mine
        collection = await pool.get_collection("d", "c")
        assert collection.database.client is mine
        assert collection.write_concern.document == {"w": "majority", "j": True}
        others: list[AsyncMongoClient[Any]] = []

        async def elsewhere() -> None:
            others.append(pool.client())
            await others[0].close()

        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await asyncio.to_thread(thread.join, 60)
        assert others[0] is not mine
        assert pool.client() is mine


async def test_a_closed_pool_stays_closed() -> None:
    pool = MongoClientPool(mongo_uri=NOWHERE)
    pool.client()
    await pool.close()
    await pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.client()


async def test_a_fork_starts_without_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MongoClientPool(mongo_uri=NOWHERE) as pool:
        parents = pool.client()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert pool.client() is not parents
        assert pool.client() is pool.client()
        await parents.close()


async def test_a_pool_pickles_without_its_clients() -> None:
    async with MongoClientPool(mongo_uri=NOWHERE, mongo_client_kwargs={"appname": "x"}) as pool:
        pool.client()
        async with pickle.loads(pickle.dumps(pool)) as copy:
            assert copy.client() is not pool.client()
            assert copy.client().options.pool_options.appname == "x"
