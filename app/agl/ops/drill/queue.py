"""Rollouts that nobody runs, for the drill of the queue; runs in the store's own container."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops.options import LineParser
from agl.store.client_server import LightningStoreClient
from agl.types import EnqueueRolloutRequest

TOKEN = Path("/run/agl/secrets/api-token")
MARK = {"agl_drill": True}
"""Metadata of the rollouts."""
ALIVE_SECONDS = 120.0


def main(argv: list[str], prog: str) -> int:
    """``fill`` puts rollouts into the queue and prints their ids; ``cancel`` ends those ids.

    Raises EnvironmentFault where workers are at work, who would run what is no task of theirs.
    """
    parser = LineParser(prog=prog, description="Fill the queue for a drill, and empty it again.")
    parser.add_argument("action", choices=["fill", "cancel"])
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--scheme", choices=["http", "https"], default="http")
    options = parser.parse_args(argv)
    token = TOKEN.read_text("ascii").strip() if TOKEN.is_file() else ""
    login = f"agl:{token}@" if token else ""
    url = f"{options.scheme}://{login}127.0.0.1:4747"
    print(" ".join(asyncio.run(_act(url, options.action, options.ids))))
    return 0


async def _act(url: str, action: str, ids: list[str]) -> list[str]:
    client = LightningStoreClient(url, retry_delays=(), request_timeout=10)
    try:
        if action == "cancel":
            for rollout_id in ids:
                await client.update_rollout(rollout_id, status="cancelled")
            return ids
        since = time.time() - ALIVE_SECONDS
        workers = await client.query_workers(sort_by="last_heartbeat_time", sort_order="desc")
        if any((worker.last_heartbeat_time or 0) > since for worker in workers):
            raise EnvironmentFault(
                "workers are at work, and would run the drill's rollouts",
                remedy="drill the queue while no training runs",
            )
        task = EnqueueRolloutRequest(input={"drill": "nobody runs this"}, metadata=MARK)
        return [made.rollout_id for made in await client.enqueue_many_rollouts([task] * 3)]
    finally:
        await client.close()
