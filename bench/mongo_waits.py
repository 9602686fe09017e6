"""How soon a wait ends after the finish of its rollout in another process.

A thousand calls wait in one store, each for a rollout of its own; another store on the same MongoDB
finishes one after the other. Time runs from the acknowledgement of the finish to the end of the
wait. With the change stream of the server, and with polling where it has none.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median, quantiles
from typing import Any

from pymongo import monitoring

from agl.store.mongo import MongoLightningStore
from agl.types import AttemptedRollout
from bench.mongo_servers import PARTITION, MongoServer

WAITERS = 1_000
_PAUSE_SECONDS = 0.005
"""Between two finishes; they would all come within a few polls otherwise."""

_SETTLE_SECONDS = 2.0


class _Commands(monitoring.CommandListener):
    """Counts the commands of one client."""

    def __init__(self) -> None:
        self.sent = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...
    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def waits(server: MongoServer) -> dict[str, Any]:
    """Both ways, on databases of their own."""
    return {
        "waiters": WAITERS,
        "change stream": asyncio.run(_in_new_database(server, streams=True)),
        "polling": asyncio.run(_in_new_database(server, streams=False)),
    }


async def _in_new_database(server: MongoServer, *, streams: bool) -> dict[str, float]:
    database = server.new_database()
    commands = _Commands()
    waiting = _store(server, database, event_listeners=[commands])
    finishing = _store(server, database)
    try:
        return await _measure(waiting, finishing, commands, streams=streams)
    finally:
        await waiting.close()
        await finishing.close()
        server.drop(database)


def _store(server: MongoServer, database: str, **options: Any) -> MongoLightningStore:
    return MongoLightningStore(
        mongo_uri=server.uri,
        database_name=database,
        partition_id=PARTITION,
        mongo_client_kwargs=options,
    )


async def _measure(
    waiting: MongoLightningStore,
    finishing: MongoLightningStore,
    commands: _Commands,
    *,
    streams: bool,
) -> dict[str, float]:
    running = [await finishing.start_rollout({"task": n}) for n in range(WAITERS)]
    await waiting.statistics()
    watcher = waiting._watcher()
    watcher.streams = streams
    ended: dict[str, float] = {}
    finished: dict[str, float] = {}

    async def wait(rollout_id: str) -> None:
        if not await waiting.wait_for_rollouts(rollout_ids=[rollout_id], timeout=600):
            raise RuntimeError("a wait ended without its rollout")
        ended[rollout_id] = time.perf_counter()

    tasks = [asyncio.create_task(wait(one.rollout_id)) for one in running]
    await asyncio.sleep(_SETTLE_SECONDS)
    before, started = commands.sent, time.perf_counter()
    for one in running:
        finished[one.rollout_id] = await _finish(finishing, one)
        await asyncio.sleep(_PAUSE_SECONDS)
    await asyncio.gather(*tasks)
    if watcher.streams is not streams:
        raise RuntimeError("the server has no change streams")
    delays = [1000 * (ended[key] - at) for key, at in finished.items()]
    return {
        "p50_ms": round(median(delays), 1),
        "p99_ms": round(quantiles(delays, n=100)[98], 1),
        "slowest_ms": round(max(delays), 1),
        "finishes_per_second": round(WAITERS / (max(finished.values()) - started), 1),
        "commands_per_wait": round((commands.sent - before) / WAITERS, 3),
    }


async def _finish(store: MongoLightningStore, running: AttemptedRollout) -> float:
    attempt_id = running.attempt.attempt_id
    await store.update_attempt(running.rollout_id, attempt_id, status="succeeded")
    return time.perf_counter()
