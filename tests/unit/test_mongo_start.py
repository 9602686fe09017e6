"""What a store on MongoDB finds out before it serves: clocks, and how old the server is."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from agl.config import MongoSettings
from agl.store.mongo_admin.connect import place, user_of
from agl.store.mongo_admin.diagnosis import BEST_WIRE_VERSION, Server, skew
from agl.store.mongo_admin.start import announce


@pytest.mark.parametrize(
    ("began", "ended", "there", "expected"),
    [
        (100.0, 101.0, 100.5, 0.0),
        (100.0, 101.0, 100.0, 0.0),
        (100.0, 101.0, 101.0, 0.0),
        (100.0, 101.0, 90.0, 10.0),
        (100.0, 101.0, 111.0, -10.0),
        (100.0, 101.0, None, 0.0),
    ],
)
def test_how_far_the_clock_is_ahead(
    began: float, ended: float, there: float | None, expected: float
) -> None:
    hello: dict[str, Any] = {}
    if there is not None:
        hello["localTime"] = datetime.fromtimestamp(there, UTC).replace(tzinfo=None)
    assert skew(hello, began, ended) == expected


def warnings(caplog: pytest.LogCaptureFixture, server: Server) -> list[str]:
    with caplog.at_level(logging.INFO, "agl.cli.store"):
        announce(MongoSettings("mongodb://u:s3cret@db:1/"), server)
    assert caplog.messages[0] == f"MongoDB {server.version} at db:1, replica set rs0."
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_what_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    good = Server("8.0.26", "replica set rs0", BEST_WIRE_VERSION, 0.9)
    assert warnings(caplog, good) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.0, "clock is 5.0 s ahead of MongoDB's"), (-2.5, "clock is 2.5 s behind MongoDB's")],
)
def test_a_clock_that_is_off(seconds: float, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (line,) = warnings(caplog, Server("8.0.26", "replica set rs0", BEST_WIRE_VERSION, seconds))
    assert text in line


def test_an_older_server(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = warnings(caplog, Server("7.0.1", "replica set rs0", 21, 0.0))
    assert line == "MongoDB 7.0.1 needs more round trips than MongoDB 8.0 or newer."


@pytest.mark.parametrize(
    ("uri", "hosts", "user"),
    [
        ("mongodb://db", "db", None),
        ("mongodb://a:1,b:2/x?replicaSet=rs0", "a:1,b:2", None),
        ("mongodb://u:p%40x@a:1,b:2/?authSource=admin", "a:1,b:2", "u"),
        ("mongodb+srv://u@h/", "h", "u"),
    ],
)
def test_what_of_a_connection_string_is_shown(uri: str, hosts: str, user: str | None) -> None:
    assert (place(MongoSettings(uri)), user_of(MongoSettings(uri))) == (hosts, user)
    assert user_of(MongoSettings(uri, user="other")) == "other"
