"""The training loop that is played: resources, batches, waiting, and a look at every rollout."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from agl.bench.pool import RunnerPool
from agl.bench.prometheus import Outcome, PrometheusWitness
from agl.bench.report import ProgressLine, Summary
from agl.bench.runner import LLM_NAME, PROMPT_NAME, RunnerReport
from agl.bench.target import (
    DeadlinePassedError,
    Persistence,
    redacted,
    refusal,
    store_instance,
)
from agl.bench.tasks import TOOL_BUDGET, Task, draw_task
from agl.bench.verify import Evidence, problems
from agl.errors import EnvironmentFault, StoreError
from agl.store.client_server import LightningStoreClient
from agl.types import (
    LLM,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    Rollout,
    RolloutConfig,
)

_WAIT_SECONDS = 0.1
_POLL_SECONDS = 0.2
_CENSUS_SECONDS = 2.0
_CLEANUP_SECONDS = 10.0
_READERS = 8
_VALIDATION_EVERY = 5


@dataclass(frozen=True)
class ScenarioOptions:
    """What to play, and against what; ``timeout`` is seconds for the whole run."""

    store_url: str
    rollouts: int
    batch_size: int
    runners: int
    seed: int
    timeout: float
    prometheus_url: str | None = None


@dataclass
class _Batch:
    """Rollouts in flight, by id, and the resources they use."""

    number: int
    resources_id: str
    tasks: dict[str, Task]
    finished: dict[str, Rollout]
    lost: set[str]

    @property
    def pending(self) -> list[str]:
        return [key for key in self.tasks if key not in self.finished and key not in self.lost]


class RunnersGoneError(Exception):
    """Runner processes ended although nobody told them to."""


class MinimalScenario:
    """An algorithm that enqueues batches of arithmetic and verifies what runners make of them."""

    def __init__(self, options: ScenarioOptions, progress: ProgressLine) -> None:
        self._options = options
        self._progress = progress
        self._run_id = uuid.uuid4().hex
        self._deadline = time.time() + options.timeout
        self._client = LightningStoreClient(options.store_url, retry_delays=())
        self._persistence = Persistence(self._deadline)
        self._summary = Summary(
            redacted(options.store_url), options.seed, options.runners, options.rollouts
        )
        self._played: Counter[Outcome] = Counter()
        self._pool: RunnerPool | None = None

    async def play(self) -> Summary:
        """Play the whole run and return what came of it.

        Raises:
            EnvironmentFault: the store or Prometheus does not answer, or the store is not idle.
        """
        options = self._options
        try:
            instance = await store_instance(options.store_url)
            await self._require_idle()
            witness = await self._witness()
            await self._play_with_runners()
            if not self._summary.complete:
                await self._explain(instance)
            elif witness is not None:
                await self._compare(witness)
        finally:
            await self._client.close()
        return self._summary

    async def _require_idle(self) -> None:
        try:
            waiting = await self._client.query_rollouts(status_in=["queuing", "requeuing"], limit=1)
        except (StoreError, aiohttp.ClientError, TimeoutError) as error:
            raise refusal(self._options.store_url, error) from error
        if waiting.total:
            raise EnvironmentFault(
                f"the store has {waiting.total} rollouts waiting that are not part of this run",
                remedy="let them finish first, or use an idle store",
            )

    async def _witness(self) -> PrometheusWitness | None:
        if self._options.prometheus_url is None:
            return None
        witness = PrometheusWitness(self._options.prometheus_url)
        self._progress.say("waiting for a scrape to start from")
        await witness.look_before()
        return witness

    async def _compare(self, witness: PrometheusWitness) -> None:
        self._progress.say("waiting for Prometheus to scrape the last of it")
        try:
            verdict = await witness.compare(self._played)
        except EnvironmentFault as fault:
            self._summary.problems.append(str(fault))
            return
        self._summary.prometheus = verdict
        self._summary.problems += verdict.problems

    async def _play_with_runners(self) -> None:
        options = self._options
        pool = RunnerPool(options.store_url, self._run_id, options.runners, self._deadline)
        self._pool = pool
        try:
            await pool.wait_ready()
            started = time.monotonic()
            try:
                await self._play_batches()
            except DeadlinePassedError:
                self._summary.problems.append(f"not done within {options.timeout:g} s")
            except RunnersGoneError as error:
                self._summary.problems.append(str(error))
            except (StoreError, aiohttp.ClientError) as error:
                self._summary.problems.append(f"the store refused a call: {error}")
            self._summary.duration = time.monotonic() - started
        finally:
            reports = await pool.stop()
            await self._cancel_unfinished()
        self._add_reports(reports)

    async def _cancel_unfinished(self) -> None:
        """Leave nothing behind that a later run would trip over, as far as the store lets us."""
        persistence = Persistence(time.time() + _CLEANUP_SECONDS)
        try:
            for rollout_id in self._summary.unfinished:
                await persistence.call(
                    lambda key=rollout_id: self._client.update_rollout(key, status="cancelled")
                )
        except (StoreError, aiohttp.ClientError, DeadlinePassedError) as error:
            self._progress.say(f"unfinished rollouts stay in the store: {error or 'no answer'}")

    async def _play_batches(self) -> None:
        options = self._options
        for number, first in enumerate(range(0, options.rollouts, options.batch_size), start=1):
            last = min(first + options.batch_size, options.rollouts)
            batch = await self._submit(
                number, [draw_task(options.seed, i) for i in range(first, last)]
            )
            try:
                await self._wait(batch)
                await self._verify(batch)
            finally:
                self._summary.unfinished += batch.pending
            self._progress.batch_done(number, self._summary.finished)

    async def _submit(self, number: int, tasks: Sequence[Task]) -> _Batch:
        resources = await self._persistence.call(
            lambda: self._client.add_resources(_resources(number))
        )
        requests = [self._request(number, task, resources.resources_id) for task in tasks]
        rollouts = await self._persistence.call(
            lambda: self._client.enqueue_many_rollouts(requests)
        )
        by_id = {rollout.rollout_id: task for rollout, task in zip(rollouts, tasks, strict=True)}
        self._summary.enqueued += len(by_id)
        return _Batch(number, resources.resources_id, by_id, {}, set())

    def _request(self, number: int, task: Task, resources_id: str) -> EnqueueRolloutRequest:
        return EnqueueRolloutRequest(
            input={"task": task.text, "answer": task.answer},
            mode="val" if task.index % _VALIDATION_EVERY == 0 else "train",
            resources_id=resources_id,
            config=RolloutConfig(max_attempts=task.max_attempts, retry_condition=["failed"]),
            metadata={"run": self._run_id, "batch": number, "task": task.index},
        )

    async def _wait(self, batch: _Batch) -> None:
        """Wait until every rollout of the batch is finished or lost."""
        census = time.monotonic() + _CENSUS_SECONDS
        while pending := batch.pending:
            finished = await self._persistence.call(
                lambda ids=pending: self._client.wait_for_rollouts(
                    rollout_ids=ids, timeout=_WAIT_SECONDS
                )
            )
            for rollout in finished:
                batch.finished[rollout.rollout_id] = rollout
                self._count(rollout)
            self._progress.advance(self._summary.finished)
            if self._persistence.is_over():
                raise DeadlinePassedError
            self._require_runners(batch)
            if time.monotonic() >= census:
                await self._take_census(batch)
                census = time.monotonic() + _CENSUS_SECONDS
            if batch.pending:
                await asyncio.sleep(_POLL_SECONDS)

    def _count(self, rollout: Rollout) -> None:
        statuses = self._summary.statuses
        statuses[rollout.status] = statuses.get(rollout.status, 0) + 1
        self._played[(rollout.status, rollout.mode or "unknown")] += 1

    def _require_runners(self, batch: _Batch) -> None:
        gone = self._pool.gone() if self._pool is not None else []
        if gone and batch.pending:
            raise RunnersGoneError(f"{', '.join(gone)} ended in the middle of batch {batch.number}")

    async def _take_census(self, batch: _Batch) -> None:
        """Find out which pending rollouts the store has forgotten."""
        pending = batch.pending
        known = await self._persistence.call(
            lambda: self._client.query_rollouts(rollout_id_in=pending)
        )
        lost = set(pending) - {rollout.rollout_id for rollout in known}
        if lost:
            batch.lost |= lost
            self._summary.lost += sorted(lost)
            self._progress.say(f"batch {batch.number}: the store lost {len(lost)} rollouts")

    async def _verify(self, batch: _Batch) -> None:
        readers = asyncio.Semaphore(_READERS)

        async def check(rollout: Rollout) -> None:
            task = batch.tasks[rollout.rollout_id]
            async with readers:
                evidence = await self._evidence(rollout)
            if evidence is None:
                batch.lost.add(rollout.rollout_id)
                self._summary.lost.append(rollout.rollout_id)
                return
            self._summary.attempts += len(evidence.attempts)
            self._summary.retries += max(len(evidence.attempts) - 1, 0)
            self._summary.spans += len(evidence.spans)
            found = problems(task, batch.resources_id, evidence)
            self._summary.problems += found
            self._summary.verified += not found

        await asyncio.gather(*(check(rollout) for rollout in batch.finished.values()))

    async def _evidence(self, rollout: Rollout) -> Evidence | None:
        """Read a rollout back; ``None`` when the store has lost it since it finished."""
        key = rollout.rollout_id
        attempts = await self._persistence.call(lambda: self._client.query_attempts(key))
        spans = await self._persistence.call(lambda: self._client.query_spans(key))
        if not attempts.total:
            return None
        return Evidence(rollout, attempts.items, spans.items)

    async def _explain(self, instance: str) -> None:
        """Say first what is missing, and what became of the store meanwhile."""
        summary = self._summary
        missing = (
            (len(summary.lost), "were lost"),
            (len(summary.unfinished), "did not finish"),
            (summary.rollouts - summary.enqueued, "were never enqueued"),
        )
        what = ", ".join(f"{count} rollouts {fate}" for count, fate in missing if count)
        cause = await self._fate_of(instance)
        summary.problems.insert(0, f"{what}: {cause}" if cause else what)

    async def _fate_of(self, instance: str) -> str:
        try:
            now = await store_instance(self._options.store_url)
        except EnvironmentFault as fault:
            return fault.message
        if now != instance:
            return "the store is another process than at the start, which took its memory along"
        return ""

    def _add_reports(self, reports: Sequence[RunnerReport]) -> None:
        summary = self._summary
        summary.connection_retries = self._persistence.retries
        for report in reports:
            summary.connection_retries += report.retries
            if report.error:
                summary.problems.append(f"runner {report.worker_id}: {report.error}")
            if not report.heartbeats and not report.error:
                summary.problems.append(f"runner {report.worker_id}: no heartbeat got through")


def _resources(number: int) -> NamedResources:
    return {
        LLM_NAME: LLM(
            endpoint="local",
            model="shunting-yard",
            sampling_parameters={"max_tool_calls": TOOL_BUDGET},
        ),
        PROMPT_NAME: PromptTemplate(
            template=f"Round {number}. Work out {{task}} step by step, one tool call a step.",
            engine="f-string",
        ),
    }
