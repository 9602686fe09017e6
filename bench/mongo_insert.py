"""The yardstick of ``scripts/bench mongo``: bare inserts, as many as the driver can make.

    python -m bench.mongo_insert URI DATABASE COLLECTION CLIENTS WARMUP_SECONDS SECONDS

Each client inserts a span, waits for the acknowledgement of the majority, and inserts the next one.
Begins when it reads a line, prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from pymongo import AsyncMongoClient

LETTERS = "abcdefghijklmnopqrstuvwxyz" * 5


def span(unique: int) -> dict[str, Any]:
    """What the loader's spans are in the database, but for the order of its fields."""
    return {
        "partition_id": "bench",
        "rollout_id": f"ro-{unique >> 2:012x}",
        "attempt_id": "at-12345678",
        "sequence_id": unique & 3,
        "trace_id": f"{unique:032x}",
        "span_id": f"{unique:016x}",
        "parent_id": None,
        "name": "llm.call",
        "status": {"status_code": "OK", "description": None},
        "attributes": {f"attribute.number.{n}": LETTERS[n : n + 80] for n in range(8)},
        "events": [],
        "links": [],
        "start_time": 1764000000.25,
        "end_time": 1764000001.5,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }


async def main(arguments: list[str]) -> None:
    uri, database, collection, clients = *arguments[:3], int(arguments[3])
    warmup, seconds = float(arguments[4]), float(arguments[5])
    async with AsyncMongoClient[dict[str, Any]](uri, w="majority", journal=True) as client:
        spans = client[database][collection]
        await client.admin.command("ping")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.monotonic()
        first, last = began + warmup, began + warmup + seconds
        latencies: list[float] = []
        cpu = [0.0]

        async def insert(unique: int) -> None:
            while True:
                unique += 1
                sent = time.monotonic()
                if sent >= last:
                    return
                await spans.insert_one(span(unique))
                now = time.monotonic()
                if first <= now < last:
                    cpu[0] = cpu[0] or time.process_time()
                    latencies.append(now - sent)

        first_number = random.getrandbits(16) << 44
        await asyncio.gather(*(insert(first_number + (n << 32)) for n in range(clients)))
        used = time.process_time() - cpu[0]
    latencies.sort()
    figures = {
        "inserts_per_second": len(latencies) / seconds,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[int(0.99 * (len(latencies) - 1))],
        "client_cpu_us": 1e6 * used / len(latencies),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
