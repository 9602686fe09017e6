"""What one process knows of a rollout holds only until another has decided something about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from mongo import MongoServer, mongo_database, mongo_server  # noqa: F401 - fixtures
from mongo_support import Commands, make_span

from agl.errors import AttemptNotFoundError
from agl.store.collection.mongo.combine import MANY_GUARDS
from agl.store.mongo import MongoLightningStore
from agl.types import AttemptedRollout, RolloutConfig

Change = Callable[[MongoLightningStore, AttemptedRollout], Awaitable[object]]


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
async def stores(
    mongo_server: MongoServer,  # noqa: F811
    mongo_database: str,  # noqa: F811
    commands: Commands,
) -> AsyncGenerator[tuple[MongoLightningStore, MongoLightningStore]]:
    """Two on one partition, the watchdogs quiet; the commands of the second are noted."""
    async with AsyncExitStack() as stack:

        async def opened(*listeners: Commands) -> MongoLightningStore:
            store = MongoLightningStore(
                mongo_uri=mongo_server.uri,
                mongo_client_kwargs={"event_listeners": list(listeners)},
                database_name=mongo_database,
                partition_id="pt",
                scan_debounce_seconds=1e9,
                heartbeat_seconds=60.0,  # so that only what is tested here can revive anything
            )
            return await stack.enter_async_context(store)

        yield await opened(), await opened(commands)


async def _known_to(store: MongoLightningStore, other: MongoLightningStore) -> AttemptedRollout:
    """A running rollout that ``other`` has made, and ``store`` has a span of."""
    config = RolloutConfig(max_attempts=3, retry_condition=["unresponsive"])
    rollout = await other.start_rollout({"q": 1}, worker_id="w", config=config)
    assert await store.add_span(make_span(rollout, 1)) is not None
    return rollout


def _status(status: str) -> Change:
    async def change(store: MongoLightningStore, rollout: AttemptedRollout) -> None:
        attempt_id = rollout.attempt.attempt_id
        await store.update_attempt(rollout.rollout_id, attempt_id, status=status)  # type: ignore[arg-type]

    return change


async def _metadata(store: MongoLightningStore, rollout: AttemptedRollout) -> None:
    await store.update_attempt(rollout.rollout_id, "latest", metadata={"by": "another"})


async def _sees_running(store: MongoLightningStore, rollout: AttemptedRollout) -> None:
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(found, AttemptedRollout)
    assert (found.status, found.attempt.status) == ("running", "running")


@pytest.mark.parametrize("status", ["unresponsive", "preparing"])
async def test_a_span_revives_what_another_process_has_given_up(
    stores: tuple[MongoLightningStore, MongoLightningStore], status: str
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    await _status(status)(one, rollout)
    assert await other.add_span(make_span(rollout, 2)) is not None
    await _sees_running(one, rollout)
    spans = await one.query_spans(rollout.rollout_id)
    assert [span.span_id for span in spans] == [make_span(rollout, n).span_id for n in (1, 2)]


async def test_of_many_at_once_those_are_revived_that_were_given_up(
    stores: tuple[MongoLightningStore, MongoLightningStore], commands: Commands
) -> None:
    one, other = stores
    rollouts = [await _known_to(other, one) for _ in range(2 * MANY_GUARDS)]
    for rollout in rollouts[::2]:
        await _status("unresponsive")(one, rollout)
    with commands.counted() as sent:
        spans = [other.add_span(make_span(rollout, 2)) for rollout in rollouts]
        assert None not in await asyncio.gather(*spans)
    assert len(sent) < 2 * len(rollouts) / 4
    for rollout in rollouts:
        await _sees_running(one, rollout)
        assert (await one.query_spans(rollout.rollout_id)).total == 2


@pytest.mark.parametrize("change", [_status("failed"), _status("running"), _metadata])
async def test_who_is_beaten_reads_once_and_knows_again(
    stores: tuple[MongoLightningStore, MongoLightningStore], commands: Commands, change: Change
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    with commands.counted() as sent:
        await other.add_span(make_span(rollout, 2))
    assert sent == ["bulkWrite"]
    await change(one, rollout)
    with commands.counted() as sent:
        await other.add_span(make_span(rollout, 3))
    assert "find" in sent
    assert (await one.query_spans(rollout.rollout_id)).total == 3


async def test_an_update_that_changes_nothing_is_not_answered_from_memory(
    stores: tuple[MongoLightningStore, MongoLightningStore],
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    await _status("failed")(one, rollout)
    assert (await other.update_attempt(rollout.rollout_id, "latest")).status == "failed"


async def test_a_section_that_only_reads_reads(
    stores: tuple[MongoLightningStore, MongoLightningStore],
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    await _status("failed")(one, rollout)
    attempt = await other.collections.execute(
        lambda c: c.attempts.find(rollout.rollout_id, rollout.attempt.attempt_id),
        labels=("attempts", "spans"),
    )
    assert attempt is not None
    assert attempt.status == "failed"


async def test_an_attempt_begun_elsewhere_is_found(
    stores: tuple[MongoLightningStore, MongoLightningStore],
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    again = await one.start_attempt(rollout.rollout_id)
    assert await other.add_span(make_span(again, 2)) is not None
    await _sees_running(one, rollout)
    latest = await other.update_attempt(rollout.rollout_id, "latest", metadata={"seen": True})
    assert latest.attempt_id == again.attempt.attempt_id
    unknown = make_span(again, 3, attempt_id="at-none")
    with pytest.raises(AttemptNotFoundError):
        await other.add_span(unknown)
    assert (await one.query_spans(rollout.rollout_id)).total == 2


async def test_a_span_after_the_end_counts_as_late_wherever_it_came(
    stores: tuple[MongoLightningStore, MongoLightningStore],
) -> None:
    one, other = stores
    rollout = await _known_to(other, one)
    await _status("succeeded")(one, rollout)
    assert await other.add_span(make_span(rollout, 2)) is not None
    found = await one.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    assert found.status == "succeeded"
    assert await other.reconcile() == {}
