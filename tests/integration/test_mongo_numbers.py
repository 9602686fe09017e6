"""Span numbers in MongoDB: what is stored of them, and that none is given out twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from mongo_support import Commands, make_span

from agl.errors import AttemptNotFoundError
from agl.store.mongo import MongoLightningStore

Stores = tuple[MongoLightningStore, MongoLightningStore]


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
async def stores(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    commands: Commands,
) -> AsyncGenerator[Stores]:
    """Two that know nothing of each other, as in two processes."""
    where: dict[str, Any] = {
        "mongo_uri": mongo_server.uri,
        "mongo_client_kwargs": {"event_listeners": [commands]},
        "database_name": mongo_database,
        "partition_id": "p",
        "scan_debounce_seconds": 1e9,
    }
    async with MongoLightningStore(**where) as one, MongoLightningStore(**where) as two:
        yield one, two


def _number_writes(commands: Commands, database: str) -> int:
    """How many documents with numbers were to be written."""
    name = "span_sequence_ids"
    count = 0
    for command in commands.sent:
        if command.get("insert") == name:
            count += len(command["documents"])
        if "bulkWrite" in command:
            spaces = [one["ns"] for one in command["nsInfo"]]
            places = [op.get("insert", op.get("update")) for op in command["ops"]]
            count += sum(spaces[place] == f"{database}.{name}" for place in places)
        count += name in (command.get("update"), command.get("findAndModify"))
    return count


async def test_spans_with_numbers_of_their_own_leave_one_mark(
    stores: Stores,
    commands: Commands,
    mongo_database: str,  # noqa: F811
) -> None:
    one, _ = stores
    rollout = await one.start_rollout(1)
    for number in range(1, 6):
        await one.add_span(make_span(rollout, number))
    await asyncio.gather(*(one.add_span(make_span(rollout, n)) for n in range(6, 12)))
    assert _number_writes(commands, mongo_database) == 1


async def test_another_process_sees_the_highest_number(stores: Stores) -> None:
    one, two = stores
    rollout = await one.start_rollout(1)
    for number in (3, 9, 4):
        await one.add_span(make_span(rollout, number))
    ids = rollout.rollout_id, "x"
    assert await two.get_next_span_sequence_id(*ids) == 10
    assert await one.get_many_span_sequence_ids([ids, ids]) == [11, 12]
    await two.add_span(make_span(rollout, 20))
    await one.add_span(make_span(rollout, 30))
    assert await two.get_next_span_sequence_id(*ids) == 31
    assert await one.get_next_span_sequence_id(*ids) == 32


async def test_numbers_given_out_and_stored_by_different_processes(stores: Stores) -> None:
    one, two = stores
    rollout = await one.start_rollout(1)
    for number in range(1, 6):
        assert await one.get_next_span_sequence_id(rollout.rollout_id, "x") == number
        await two.add_span(make_span(rollout, number))
    await two.add_span(make_span(rollout, 17))
    assert await one.get_next_span_sequence_id(rollout.rollout_id, "x") == 18


async def test_spans_that_are_not_stored_count(stores: Stores) -> None:
    one, two = stores
    rollout = await one.start_rollout(1)
    await one.add_span(make_span(rollout, 2))
    with pytest.raises(AttemptNotFoundError):
        await one.add_span(make_span(rollout, 5, attempt_id="at-none"))
    assert await two.get_next_span_sequence_id(rollout.rollout_id, "x") == 6
    twice = make_span(rollout, 8, span_id=f"{2:016x}")
    assert await one.add_span(twice) is None
    assert await two.get_next_span_sequence_id(rollout.rollout_id, "x") == 9


async def test_numbers_are_given_out_once(stores: Stores) -> None:
    rollout = await stores[0].start_rollout(1)
    await stores[0].add_span(make_span(rollout, 100))

    async def ask(number: int) -> list[int]:
        store = stores[number % 2]
        return list(
            await store.get_many_span_sequence_ids([(rollout.rollout_id, "x")] * (1 + number % 3))
        )

    found = [n for numbers in await asyncio.gather(*map(ask, range(30))) for n in numbers]
    assert len(set(found)) == len(found) == 60
    assert min(found) > 100
