"""Collection workloads on MongoDB: one process for each that works at the same time."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

from agl.bench.collection import (
    PRELOADED_AT_ONCE,
    CollectionOptions,
    CollectionReport,
    Operation,
    Round,
    Workings,
    new_rollout,
)
from agl.bench.interrupts import Interruption
from agl.bench.pool import Crew, Failure, Signals
from agl.config import MongoSettings
from agl.errors import BackendError, EnvironmentFault
from agl.store.collection.mongo import (
    MongoBasedQueue,
    MongoClientPool,
    MongoLightningCollections,
)
from agl.store.mongo_admin.connect import client_kwargs, connected

_STOP_SECONDS = 60.0
_QUEUE = "bench_queue"


@dataclass(frozen=True)
class _Share:
    """The part of one process."""

    options: CollectionOptions
    settings: MongoSettings
    partition_id: str
    first: int
    step: int


async def measure_mongo(
    options: CollectionOptions, settings: MongoSettings, interruption: Interruption
) -> CollectionReport:
    """Play all rounds in the database that the settings name, which is dropped at the end.

    Raises:
        EnvironmentFault: MongoDB cannot be reached, or refuses, before anything was measured.
    """
    report = CollectionReport(options)
    async with connected(settings) as client:
        await client.admin.command("ping")
    async with _pool(settings) as pool:
        try:
            while len(report.rounds) < options.rounds and not interruption.reason:
                await _play_in_processes(report, settings, pool, interruption)
                if report.is_away:
                    break
        except BackendError as error:
            if not report.rounds:
                raise EnvironmentFault(f"MongoDB: {error}") from error
            report.notes.append(f"MongoDB: {error}")
    try:
        async with connected(settings) as client:
            await client.drop_database(settings.database)
    except EnvironmentFault as fault:
        report.notes.append(f"the database {settings.database} could not be dropped: {fault}")
    return report


async def _play_in_processes(
    report: CollectionReport,
    settings: MongoSettings,
    pool: MongoClientPool,
    interruption: Interruption,
) -> None:
    options = report.options
    partition_id = f"partition-{uuid.uuid4().hex}"
    await MongoLightningCollections(pool, settings.database, partition_id).ensure_collections()
    if options.workload == "dequeue":
        queue = _queue(pool, settings, partition_id)
        await queue.ensure_collection()
        for first in range(0, options.total_tasks, PRELOADED_AT_ONCE):
            last = min(first + PRELOADED_AT_ONCE, options.total_tasks)
            await queue.enqueue([f"{options.task_prefix}-{n}" for n in range(first, last)])
    count = min(options.concurrency, options.total_tasks)
    shares = {
        f"collection-{first}": _Share(options, settings, partition_id, first, count)
        for first in range(count)
    }
    crew = Crew(_work, shares)
    try:
        await interruption.until(crew.wait_ready())
        if not interruption.reason:
            crew.go()
            await interruption.until(crew.wait_done())
    finally:
        outcomes = await crew.stop(_STOP_SECONDS)
    workings = [one for one in outcomes.values() if isinstance(one, Workings)]
    lost = [f"{name} {one.reason}" for name, one in outcomes.items() if isinstance(one, Failure)]
    report.rounds.append(Round(options.total_tasks, workings, lost))


def _work(share: _Share, signals: Signals) -> Workings:
    """Process entry: connect, wait for the others, do the share."""
    return asyncio.run(_do_share(share, signals))


async def _do_share(share: _Share, signals: Signals) -> Workings:
    options, own = share.options, Workings()
    async with _pool(share.settings) as pool:
        await pool.client().admin.command("ping")
        collections = MongoLightningCollections(pool, share.settings.database, share.partition_id)
        await collections.lane()
        numbers = range(share.first, options.total_tasks, share.step)
        if options.workload == "insert":
            operation = _insert(collections, options.task_prefix)
        else:
            operation = _dequeue(_queue(pool, share.settings, share.partition_id))
            numbers = range(options.total_tasks)
        await asyncio.to_thread(signals.wait_to_begin)
        await own.work(numbers, operation, signals.stopped)
        await collections.leave_loop()
    return own


def _insert(collections: MongoLightningCollections, prefix: str) -> Operation:
    async def insert(number: int) -> bool:
        async with collections.atomic(mode="rw", labels=["rollouts"]) as section:
            await section.rollouts.insert([new_rollout(prefix, number)])
        return True

    return insert


def _dequeue(queue: MongoBasedQueue[str]) -> Operation:
    async def dequeue(number: int) -> bool:
        return bool(await queue.dequeue(1))

    return dequeue


def _queue(
    pool: MongoClientPool, settings: MongoSettings, partition_id: str
) -> MongoBasedQueue[str]:
    return MongoBasedQueue(pool, settings.database, _QUEUE, partition_id, str)


def _pool(settings: MongoSettings) -> MongoClientPool:
    kwargs: dict[str, Any] = client_kwargs(settings)
    return MongoClientPool(mongo_uri=settings.uri, mongo_client_kwargs=kwargs)
