"""A runner process: takes rollouts, plays the agent, exports its spans, reports the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Tracer

from agl.bench.agent import AgentError, AgentSettings, ArithmeticAgent
from agl.bench.heartbeat import snapshot
from agl.bench.neighbours import RUN_KEY, agent_of
from agl.bench.pool import Signals
from agl.bench.random_agent import TraceSettings, write_trace
from agl.bench.target import DeadlinePassedError, Persistence
from agl.bench.tracing import AttemptRecording, otlp_exporter
from agl.bench.workloads import AGENTS, LLM_NAME, PROMPT_NAME
from agl.errors import NotFoundError
from agl.store.client_server import LightningStoreClient
from agl.types import LLM, AttemptedRollout, AttemptStatus, PromptTemplate, ResourcesUpdate

_HEARTBEAT_SECONDS = 2.0
_SHORTEST_IDLE_SECONDS = 0.02
_LONGEST_IDLE_SECONDS = 0.5
_MOST_EXPORT_FAILURES = 8


@dataclass(frozen=True)
class RunnerSettings:
    """What a runner needs to know; ``deadline`` is seconds since the epoch."""

    store_url: str
    run_id: str
    worker_id: str
    deadline: float


@dataclass
class RunnerReport:
    """What a runner did."""

    worker_id: str
    attempts: int = 0
    spans: int = 0
    heartbeats: int = 0
    retries: int = 0
    lost: list[str] = field(default_factory=list[str])
    """Rollouts the store no longer knew when their outcome was to be reported."""

    error: str = ""
    """Why it gave up before it was told to stop; "" when it did not."""


class LostRolloutError(Exception):
    """The store no longer knows a rollout that it handed out."""


class _StoppedError(Exception):
    """The run is over, and nobody waits for this rollout any more."""


class ExportRefusedError(Exception):
    """The store answers, but keeps refusing the spans of an attempt it knows."""


def run_runner(settings: RunnerSettings, signals: Signals) -> RunnerReport:
    """Process entry: play rollouts until told to stop."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    signals.wait_to_begin()
    return asyncio.run(Runner(settings, signals).run())


class Runner:
    """Plays the arithmetic agent against the store, one rollout at a time."""

    def __init__(self, settings: RunnerSettings, signals: Signals) -> None:
        self._settings = settings
        self._signals = signals
        # Retries are ours: they go on for as long as the run may last.
        self._client = LightningStoreClient(settings.store_url, retry_delays=())
        self._exporter = otlp_exporter(settings.store_url)
        self._persistence = Persistence(settings.deadline, signals.stopped)
        self._report = RunnerReport(settings.worker_id)

    async def run(self) -> RunnerReport:
        """Play until told to stop and return what was done."""
        heartbeat = asyncio.create_task(self._beat())
        try:
            with contextlib.suppress(DeadlinePassedError):
                await self._take_rollouts()
        except Exception as error:
            self._report.error = f"{type(error).__name__}: {error}"
        finally:
            heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeat
            await self._client.close()
            self._exporter.shutdown()
        self._report.retries = self._persistence.retries
        return self._report

    async def _take_rollouts(self) -> None:
        idle = _SHORTEST_IDLE_SECONDS
        while not self._persistence.is_over():
            rollout = await self._client.dequeue_rollout(worker_id=self._settings.worker_id)
            if rollout is None:
                await asyncio.sleep(idle)
                idle = min(idle * 2, _LONGEST_IDLE_SECONDS)
                continue
            idle = _SHORTEST_IDLE_SECONDS
            try:
                await self._play(rollout)
            except (LostRolloutError, NotFoundError):
                self._report.lost.append(rollout.rollout_id)

    async def _play(self, rollout: AttemptedRollout) -> None:
        if agent_of(rollout.metadata) not in AGENTS:
            await self._hand_back(rollout)
            return
        resources = await self._fetch_resources(rollout)
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        recording = AttemptRecording(rollout_id, attempt_id, self._numbering(rollout))
        status: AttemptStatus = "succeeded"
        try:
            await asyncio.to_thread(self._play_agent, rollout, resources, recording.tracer)
        except AgentError:
            status = "failed"
        except _StoppedError:
            return
        await self._export(rollout_id, recording.spans)
        await self._persistence.call(
            lambda: self._client.update_attempt(rollout_id, attempt_id, status=status)
        )
        self._report.attempts += 1

    def _play_agent(
        self, rollout: AttemptedRollout, resources: ResourcesUpdate, tracer: Tracer
    ) -> None:
        """Play whichever agent the rollout asks for; that of another run is played to its end."""
        if agent_of(rollout.metadata) == "arithmetic":
            agent = ArithmeticAgent(tracer, _agent_settings(rollout, resources))
            agent.run(rollout.input["task"], rollout.input["answer"])
            return
        ours = (rollout.metadata or {})[RUN_KEY] == self._settings.run_id
        settings = TraceSettings(
            **{field.name: rollout.input[field.name] for field in dataclasses.fields(TraceSettings)}
        )
        write_trace(tracer, settings, self._sleep_unless_stopped if ours else time.sleep)

    def _sleep_unless_stopped(self, seconds: float) -> None:
        if self._signals.stopped(seconds):
            raise _StoppedError

    async def _hand_back(self, rollout: AttemptedRollout) -> None:
        """Put a rollout that somebody else enqueued back into the queue, and let them have it."""
        await self._persistence.call(
            lambda: self._client.update_rollout(rollout.rollout_id, status="requeuing")
        )
        await asyncio.sleep(_LONGEST_IDLE_SECONDS)

    async def _fetch_resources(self, rollout: AttemptedRollout) -> ResourcesUpdate:
        failures = 0
        while True:
            resources = await self._persistence.call(
                lambda: self._client.get_resources_by_id(rollout.resources_id or "")
            )
            if resources is not None:
                return resources
            await self._require_known(rollout.rollout_id)
            failures += 1
            await self._persistence.pause(failures)

    def _numbering(self, rollout: AttemptedRollout) -> Callable[[], int]:
        """Return a function, for use outside the event loop, that asks the store for a number."""
        loop = asyncio.get_running_loop()

        async def ask() -> int:
            return await self._persistence.call(
                lambda: self._client.get_next_span_sequence_id(
                    rollout.rollout_id, rollout.attempt.attempt_id
                )
            )

        return lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result()

    async def _export(self, rollout_id: str, spans: Sequence[ReadableSpan]) -> None:
        failures = 0
        while True:
            result = await asyncio.to_thread(self._exporter.export, spans)
            if result is SpanExportResult.SUCCESS:
                self._report.spans += len(spans)
                return
            await self._require_known(rollout_id)
            failures += 1
            if failures == _MOST_EXPORT_FAILURES:
                raise ExportRefusedError(f"the spans of {rollout_id} were refused {failures} times")
            await self._persistence.pause(failures)

    async def _require_known(self, rollout_id: str) -> None:
        found = await self._persistence.call(
            lambda: self._client.query_rollouts(rollout_id_in=[rollout_id])
        )
        if not found.total:
            raise LostRolloutError(rollout_id)

    async def _beat(self) -> None:
        process = psutil.Process()
        while True:
            try:
                await self._client.update_worker(self._settings.worker_id, snapshot(process))
                self._report.heartbeats += 1
            except Exception as error:
                logging.getLogger(__name__).debug("heartbeat not delivered: %s", error)
            await asyncio.sleep(_HEARTBEAT_SECONDS)


def _agent_settings(rollout: AttemptedRollout, resources: ResourcesUpdate) -> AgentSettings:
    llm, prompt = resources.resources[LLM_NAME], resources.resources[PROMPT_NAME]
    if not isinstance(llm, LLM) or not isinstance(prompt, PromptTemplate):
        raise TypeError(f"{resources.resources_id} lacks a language model or a prompt template")
    attempt = rollout.attempt.sequence_id
    return AgentSettings(
        model=llm.model,
        prompt=prompt.template,
        max_tool_calls=llm.sampling_parameters["max_tool_calls"] * attempt,
        resources_id=resources.resources_id,
        attempt=attempt,
    )
