"""The operations of the micro workloads: what one of them asks of a store, and what must come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

import psutil

from agl.bench.heartbeat import snapshot
from agl.bench.neighbours import AGENT_KEY, RUN_KEY, agent_of
from agl.store.client_server import LightningStoreClient
from agl.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    OtelResource,
    RolloutConfig,
    Span,
    TraceStatus,
)

AGENT = "none"
"""Nobody plays the rollouts of micro workloads: what counts is taking them."""

_SPANS = 4
_WIDE = 32
"""Attributes of a span where they are many."""

_LEFT_ALONE_SECONDS = 300.0


class FailedOperationError(Exception):
    """The store answered, but not with what it had to."""


Operation = Callable[[LightningStoreClient, int, str], Awaitable[None]]
"""One operation: client, its number, the id of the run. Raises when it did not succeed."""


@dataclass(frozen=True)
class Mode:
    """A micro workload; the numbers are the reference's and only defaults here."""

    what: str
    processes: int
    operations: int
    operation: Operation | None
    """``None``: no store takes part."""

    enqueues: bool = False
    """Whether a rollout for each operation is enqueued beforehand, in one call."""


def request(run_id: str, number: int) -> EnqueueRolloutRequest:
    """Return a rollout to enqueue. What takes it and forgets it is ended by the watchdog."""
    return EnqueueRolloutRequest(
        input={"number": number},
        config=RolloutConfig(timeout_seconds=_LEFT_ALONE_SECONDS),
        metadata={RUN_KEY: run_id, AGENT_KEY: AGENT},
    )


async def _worker(client: LightningStoreClient, number: int, run_id: str) -> None:
    await client.update_worker(f"Worker-{number}", snapshot(_this_process()))


async def _dequeue_empty(client: LightningStoreClient, number: int, run_id: str) -> None:
    worker = f"Worker-{number}"
    rollout = await client.dequeue_rollout(worker_id=worker)
    if rollout is not None:
        await _hand_back(client, rollout)
    await client.update_worker(worker, snapshot(_this_process()))


async def _rollout(client: LightningStoreClient, number: int, run_id: str) -> None:
    rollout = await client.start_rollout({"number": number}, metadata={RUN_KEY: run_id})
    for sequence_id in range(1, _SPANS + 1):
        if await client.add_span(_span(rollout, sequence_id, attributes=1)) is None:
            raise FailedOperationError("a new span was taken for one that is there")
    await _finish(client, rollout)


async def _dequeue(client: LightningStoreClient, number: int, run_id: str) -> None:
    await _claim(client, None)


async def _dequeue_update(client: LightningStoreClient, number: int, run_id: str) -> None:
    rollout = await _claim(client, f"Worker-{number}")
    pair = (rollout.rollout_id, rollout.attempt.attempt_id)
    numbers = await client.get_many_span_sequence_ids([pair] * _SPANS)
    if len(set(numbers)) != _SPANS:
        raise FailedOperationError(f"asked for {_SPANS} span numbers, got {list(numbers)}")
    stored = await client.add_many_spans([_span(rollout, n, attributes=_WIDE) for n in numbers])
    if len(stored) != _SPANS:
        raise FailedOperationError(f"sent {_SPANS} spans, {len(stored)} were stored")
    await _finish(client, rollout)


MODES: Mapping[str, Mode] = {
    "worker": Mode("a heartbeat with the machine's figures", 1024, 10_240, _worker),
    "dequeue-empty": Mode(
        "dequeue from an empty queue, then a heartbeat", 1024, 10_240, _dequeue_empty
    ),
    "rollout": Mode("start, 4 spans one at a time, finish", 256, 4096, _rollout),
    "dequeue-only": Mode("dequeue one of as many as there are", 512, 8192, _dequeue, enqueues=True),
    "dequeue-update-attempt": Mode(
        "dequeue, 4 span numbers, 4 spans of 32 attributes in one call, finish",
        *(512, 8192, _dequeue_update),
        enqueues=True,
    ),
    "metrics": Mode("a count and a value for two console backends, no store", 1, 20_000_000, None),
}


async def _finish(client: LightningStoreClient, rollout: AttemptedRollout) -> None:
    attempt = await client.update_attempt(
        rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
    )
    if attempt.status != "succeeded":
        raise FailedOperationError(f"a finished attempt is {attempt.status}")


async def _claim(client: LightningStoreClient, worker_id: str | None) -> AttemptedRollout:
    rollout = await client.dequeue_rollout(worker_id=worker_id)
    if rollout is None:
        raise FailedOperationError("the queue is empty although enough was enqueued")
    if agent_of(rollout.metadata) != AGENT:
        await _hand_back(client, rollout)
    return rollout


async def _hand_back(client: LightningStoreClient, rollout: AttemptedRollout) -> NoReturn:
    await client.update_rollout(rollout.rollout_id, status="requeuing")
    raise FailedOperationError("somebody else enqueues; their rollout was handed back")


def _span(rollout: AttemptedRollout, sequence_id: int, attributes: int) -> Span:
    now = time.time()
    return Span(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        trace_id=f"{sequence_id:032x}",
        span_id=f"{sequence_id:016x}",
        parent_id=None,
        name="micro",
        status=TraceStatus(status_code="OK"),
        attributes={f"attribute.{number}": f"value-{number}" for number in range(attributes)},
        events=[],
        links=[],
        start_time=now,
        end_time=now,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


@cache
def _this_process() -> psutil.Process:
    return psutil.Process()
