"""The rollouts of a run: submitted, under way, finished and verified, or lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agl.bench.neighbours import RUN_KEY
from agl.bench.prometheus import Outcome
from agl.bench.report import ProgressLine, Summary
from agl.bench.target import Persistence
from agl.bench.workloads import Workload
from agl.store.client_server import LightningStoreClient
from agl.types import EnqueueRolloutRequest, Rollout

_READERS = 8


@dataclass(frozen=True)
class _Flight:
    """A rollout under way."""

    index: int
    resources_id: str


class Ledger:
    """Enqueues rollouts of a workload, verifies what is finished, and keeps count of both."""

    def __init__(
        self,
        client: LightningStoreClient,
        persistence: Persistence,
        workload: Workload,
        run_id: str,
        summary: Summary,
        progress: ProgressLine,
    ) -> None:
        self._client = client
        self._persistence = persistence
        self._workload = workload
        self._run_id = run_id
        self._summary = summary
        self._progress = progress
        self._flights: dict[str, _Flight] = {}
        self._readers = asyncio.Semaphore(_READERS)
        self.played: Counter[Outcome] = Counter()

    @property
    def under_way(self) -> list[str]:
        """Rollouts that are neither finished nor lost."""
        return list(self._flights)

    async def submit(self, batch: int, indexes: Sequence[int], *, together: bool) -> list[str]:
        """Add the resources of a batch and enqueue its rollouts, in one call or one by one.

        Returns their ids.
        """
        client, call = self._client, self._persistence.call
        resources = self._workload.resources(batch)
        resources_id = (await call(lambda: client.add_resources(resources))).resources_id
        size = len(indexes) if together else 1
        ids: list[str] = []
        for first in range(0, len(indexes), size):
            part = indexes[first : first + size]
            requests = [self._request(batch, index, resources_id) for index in part]
            rollouts = await call(lambda some=requests: client.enqueue_many_rollouts(some))
            for index, rollout in zip(part, rollouts, strict=True):
                self._flights[rollout.rollout_id] = _Flight(index, resources_id)
            self._summary.enqueued += len(part)
            ids += [rollout.rollout_id for rollout in rollouts]
        return ids

    def _request(self, batch: int, index: int, resources_id: str) -> EnqueueRolloutRequest:
        request = self._workload.request(index, resources_id)
        marks = {RUN_KEY: self._run_id, "batch": batch, "task": index}
        return request.model_copy(update={"metadata": {**(request.metadata or {}), **marks}})

    async def settle(self, finished: Iterable[Rollout]) -> None:
        """Count rollouts that are finished, read them back and verify them."""
        flights = [
            (rollout, flight)
            for rollout in finished
            if (flight := self._flights.pop(rollout.rollout_id, None)) is not None
        ]
        for rollout, _ in flights:
            self._summary.count(rollout)
            self.played[(rollout.status, rollout.mode or "unknown")] += 1
        self._progress.advance(self._summary.finished)
        await asyncio.gather(*(self._verify(*one) for one in flights))

    async def _verify(self, rollout: Rollout, flight: _Flight) -> None:
        async with self._readers:
            evidence = await self._workload.read(self._client, self._persistence, rollout)
        summary = self._summary
        if evidence is None:
            summary.lost.append(rollout.rollout_id)
            return
        attempts = max(len(evidence.attempts), 1)
        summary.attempts += attempts
        summary.retries += attempts - 1
        summary.spans += len(evidence.spans)
        found = self._workload.problems(flight.index, flight.resources_id, evidence)
        summary.problems += found
        summary.verified += not found

    def lose(self, ids: Iterable[str]) -> None:
        """Note rollouts that the store does not know any more."""
        lost = [key for key in ids if self._flights.pop(key, None) is not None]
        if lost:
            self._summary.lost += sorted(lost)
            self._progress.say(f"the store lost {len(lost)} rollouts")
