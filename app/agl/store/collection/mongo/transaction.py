"""Transactions, repeated as the specification of the drivers says."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from agl.store.collection.mongo.errors import TRANSIENT
from agl.store.collection.mongo.metrics import DriverMetrics

R = TypeVar("R")

UNKNOWN_RESULT = "UnknownTransactionCommitResult"
GIVE_UP_SECONDS = 120.0
_MOST_JITTER_SECONDS = 0.05
_MAX_TIME_EXPIRED = 50
_WRITES = WriteConcern("majority", j=True)

Work = Callable[[AsyncClientSession], Awaitable[R]]


async def in_transaction(
    client: AsyncMongoClient[Any],
    work: Work[R],
    *,
    snapshot: bool = False,
    metrics: DriverMetrics | None = None,
    give_up_seconds: float = GIVE_UP_SECONDS,
) -> R:
    """Run ``work`` in a transaction, which may happen several times, and commit.

    A failure that is labelled transient repeats the whole, an unknown outcome only the commit,
    until ``give_up_seconds`` have passed.

    Raises:
        PyMongoError: the last failure.
        Exception: what ``work`` raised; nothing was written.
    """
    deadline = time.monotonic() + give_up_seconds
    # All reads and writes go to the primary, and a stand-in's bulkWrite takes no read concern.
    async with client.start_session(causal_consistency=False) as session:
        while True:
            try:
                result = await _once(session, work, snapshot, metrics, deadline)
            except PyMongoError as error:
                _count(metrics, "aborted")
                if not error.has_error_label(TRANSIENT) or time.monotonic() > deadline:
                    raise
                await _pause(metrics, "transaction")
            except BaseException:
                _count(metrics, "aborted")
                raise
            else:
                _count(metrics, "committed")
                return result


async def _once(
    session: AsyncClientSession,
    work: Work[R],
    snapshot: bool,
    metrics: DriverMetrics | None,
    deadline: float,
) -> R:
    concern = ReadConcern("snapshot" if snapshot else None)
    await session.start_transaction(concern, _WRITES, ReadPreference.PRIMARY)
    try:
        result = await work(session)
    except BaseException:
        await session.abort_transaction()
        raise
    while True:
        try:
            await session.commit_transaction()
        except PyMongoError as error:
            if not _is_repeatable(error) or time.monotonic() > deadline:
                raise
            await _pause(metrics, "commit")
        else:
            return result


def _is_repeatable(error: PyMongoError) -> bool:
    expired = isinstance(error, OperationFailure) and error.code == _MAX_TIME_EXPIRED
    return error.has_error_label(UNKNOWN_RESULT) and not expired


async def _pause(metrics: DriverMetrics | None, what: Any) -> None:
    if metrics is not None:
        metrics.retried(what)
    await asyncio.sleep(random.uniform(0, _MOST_JITTER_SECONDS))  # noqa: S311 - not for secrets


def _count(metrics: DriverMetrics | None, outcome: Any) -> None:
    if metrics is not None:
        metrics.transaction(outcome)
