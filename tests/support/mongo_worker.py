"""A process that claims rollouts from a store in MongoDB and works on them until none is left.

    python mongo_worker.py URI DATABASE PARTITION NAME

Prints the ids it has claimed, one a line. It begins when it reads a line.
"""

from __future__ import annotations

import asyncio
import sys

from mongo_support import make_span

from agl.store.mongo import MongoLightningStore

TASKS = 4


async def main(uri: str, database: str, partition: str, name: str) -> None:
    claimed: list[str] = []
    async with MongoLightningStore(
        mongo_uri=uri, database_name=database, partition_id=partition
    ) as store:
        await store.statistics()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def work(number: int) -> None:
            worker_id = f"{name}-{number}"
            while batch := await store.dequeue_many_rollouts(
                limit=1 + number % 3, worker_id=worker_id
            ):
                for rollout in batch:
                    claimed.append(rollout.rollout_id)
                    await store.add_span(make_span(rollout, 1))
                    status = "failed" if number % 2 else "succeeded"
                    await store.update_attempt(
                        rollout.rollout_id, rollout.attempt.attempt_id, status=status
                    )

        await asyncio.gather(*(work(number) for number in range(TASKS)))
    print(*claimed, sep="\n", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
