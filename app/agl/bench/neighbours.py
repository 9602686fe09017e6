"""What a run owes to others on the same store: it marks, spares and tidies up."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import aiohttp
from pydantic import ValidationError

from agl.bench.target import DeadlinePassedError, Persistence, no_store, redacted, refusal
from agl.errors import EnvironmentFault, StoreError
from agl.store.client_server import LightningStoreClient
from agl.types import Worker

RUN_KEY = "agl_bench_run"
"""In the metadata of every rollout that a run enqueues: which run."""

AGENT_KEY = "agent"
"""Likewise: which agent is to play it, whichever run has the runner that takes it."""

_LOOKED_AT = 100
_RECENT_SECONDS = 10.0
_WORKER = re.compile(r"Worker-(\d+)")
_CLEANUP_SECONDS = 10.0
_CANCELLED_AT_ONCE = 8


def agent_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return which agent is to play a rollout; ``None`` when no benchmark has enqueued it."""
    known = metadata or {}
    return known.get(AGENT_KEY) if RUN_KEY in known else None


def first_free_number(workers: Iterable[Worker], now: float) -> int:
    """Return from where to number workers, so that none is one that was heard of lately."""
    recent = now - _RECENT_SECONDS
    taken = [
        int(match[1])
        for worker in workers
        if (worker.last_heartbeat_time or 0.0) >= recent
        and (match := _WORKER.fullmatch(worker.worker_id))
    ]
    return max(taken, default=-1) + 1


def others_since(workers: Iterable[Worker], mine: Collection[str], since: float) -> list[str]:
    """Return the workers that are not mine and were heard of since then."""
    return [
        worker.worker_id
        for worker in workers
        if worker.worker_id not in mine and (worker.last_heartbeat_time or 0.0) >= since
    ]


async def require_idle(client: LightningStoreClient, url: str, beside: Collection[str]) -> None:
    """Make sure that nothing waits in the queue but rollouts for these agents.

    Raises:
        EnvironmentFault: something else waits, or the store does not answer.
    """
    try:
        waiting = await client.query_rollouts(
            status_in=["queuing", "requeuing"], limit=_LOOKED_AT, sort_by="start_time"
        )
    except (StoreError, aiohttp.ClientError, TimeoutError) as error:
        raise refusal(url, error) from error
    except ValidationError:
        raise no_store(url) from None
    if all(agent_of(rollout.metadata) in beside for rollout in waiting):
        return
    raise EnvironmentFault(
        f"the store at {redacted(url)} has {waiting.total} rollouts waiting that are not part of "
        "this run",
        remedy="let them finish first, or use an idle store",
    )


async def unfinished_of(client: LightningStoreClient, run_id: str) -> list[str]:
    """Return the unfinished rollouts of a run, those too whose answer an interruption cut off.

    Raises:
        StoreError, aiohttp.ClientError, TimeoutError: the store does not tell.
    """
    found = await client.query_rollouts(status_in=["queuing", "requeuing", "preparing", "running"])
    return [one.rollout_id for one in found if (one.metadata or {}).get(RUN_KEY) == run_id]


async def cancel_rollouts(
    client: LightningStoreClient, ids: Collection[str], *, is_away: bool = False
) -> str:
    """Cancel what a run leaves behind; returns why some stay, or "".

    It takes at most 10 s, and is tried once where the store ``is_away`` already.
    """
    persistence = Persistence(time.time() + (0 if is_away else _CLEANUP_SECONDS))
    room = asyncio.Semaphore(_CANCELLED_AT_ONCE)

    async def cancel(rollout_id: str) -> None:
        async with room:
            await persistence.call(lambda: client.update_rollout(rollout_id, status="cancelled"))

    outcomes = await asyncio.gather(*map(cancel, ids), return_exceptions=True)
    failed = [one for one in outcomes if isinstance(one, Exception)]
    for error in failed:
        if not isinstance(error, (StoreError, aiohttp.ClientError, DeadlinePassedError)):
            raise error
    if not failed:
        return ""
    return f"{len(failed)} unfinished rollouts stay in the store: {failed[0] or 'no answer'}"
