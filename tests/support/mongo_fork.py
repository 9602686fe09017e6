"""A process that forks while its store is in use; parent and child go on, each for itself.

    python mongo_fork.py URI DATABASE PARTITION

Prints two lines of JSON: what parent and child have enqueued, and how many connections they made
and borrowed. A second child only closes what it got.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from pymongo import monitoring

from agl.store.mongo import MongoLightningStore

CALLS = 20
SECONDS = 60


class Connections(monitoring.ConnectionPoolListener):
    """Those that this process has made and used."""

    def __init__(self) -> None:
        self.made = set[int]()
        self.used = set[int]()

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        self.made.add(event.connection_id)

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None:
        self.used.add(event.connection_id)

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...
    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...
    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...
    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...
    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None: ...
    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None: ...
    def connection_check_out_started(
        self, event: monitoring.ConnectionCheckOutStartedEvent
    ) -> None: ...
    def connection_check_out_failed(
        self, event: monitoring.ConnectionCheckOutFailedEvent
    ) -> None: ...
    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...


async def enqueue(store: MongoLightningStore, name: str) -> list[str]:
    return [(await store.enqueue_rollout(f"{name}-{n}")).rollout_id for n in range(CALLS)]


def tell(enqueued: list[str], connections: Connections) -> None:
    borrowed = connections.used - connections.made
    line = {"enqueued": enqueued, "made": len(connections.made), "borrowed": len(borrowed)}
    print(json.dumps(line), flush=True)


def in_a_fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run something in a child, in an event loop of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        asyncio.run(asyncio.wait_for(work(), SECONDS))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(uri: str, database: str, partition: str) -> None:
    connections = Connections()
    store = MongoLightningStore(
        mongo_uri=uri,
        mongo_client_kwargs={"event_listeners": [connections]},
        database_name=database,
        partition_id=partition,
    )
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def use() -> None:
        connections.made.clear()
        connections.used.clear()
        tell(await enqueue(store, "child"), connections)
        await store.close()

    def run(name: str) -> Any:
        return asyncio.run_coroutine_threadsafe(enqueue(store, name), loop)

    enqueued = run("before").result(SECONDS)
    meanwhile = run("meanwhile")
    children = [in_a_fork(use), in_a_fork(store.close)]
    enqueued += meanwhile.result(SECONDS)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    enqueued += run("after").result(SECONDS)
    tell(enqueued, connections)
    asyncio.run_coroutine_threadsafe(store.close(), loop).result(SECONDS)
    sys.exit(max(ended))


if __name__ == "__main__":
    main(*sys.argv[1:4])
