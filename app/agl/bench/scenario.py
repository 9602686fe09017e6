"""The training loop that is played: an algorithm, its runners, and a look at every rollout."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from agl.bench.interrupts import Interruption
from agl.bench.ledger import Ledger
from agl.bench.modes import Algorithm
from agl.bench.neighbours import (
    cancel_rollouts,
    first_free_number,
    others_since,
    require_idle,
    unfinished_of,
)
from agl.bench.pool import Crew, Failure
from agl.bench.presets import Preset
from agl.bench.prometheus import PrometheusWitness
from agl.bench.report import ProgressLine, Summary
from agl.bench.runner import RunnerReport, RunnerSettings, run_runner
from agl.bench.stall import StallGuard, describe_workers, names_of
from agl.bench.target import DeadlinePassedError, Persistence, redacted, store_instance
from agl.bench.workloads import AGENTS, workload_of
from agl.errors import EnvironmentFault, StoreError
from agl.store.client_server import LightningStoreClient
from agl.types import Worker

_WATCH_SECONDS = 1.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class ScenarioOptions:
    """What to play, and against what."""

    name: str
    preset: Preset
    store_url: str
    seed: int
    stall_seconds: float
    """Without a finished rollout for so long the run is given up."""

    prometheus_url: str | None = None


class CutShortError(Exception):
    """The run cannot go on; the message says why."""


class Scenario:
    """Plays a preset against a store; whatever ends it, what was done until then is told."""

    def __init__(
        self, options: ScenarioOptions, progress: ProgressLine, interruption: Interruption
    ) -> None:
        self._options = options
        self._preset = options.preset
        self._progress = progress
        self._interruption = interruption
        self._run_id = uuid.uuid4().hex
        self._deadline = time.time() + self._preset.timeout
        self._client = LightningStoreClient(options.store_url, retry_delays=())
        self._persistence = Persistence(self._deadline, tell=progress.say)
        self._summary = Summary(
            options.name, redacted(options.store_url), options.seed, self._preset
        )
        self._ledger = Ledger(
            self._client,
            self._persistence,
            workload_of(self._preset, options.seed),
            self._run_id,
            self._summary,
            progress,
        )
        self._workers: list[str] = []

    async def play(self) -> Summary:
        """Play the whole run and return what came of it.

        Raises:
            EnvironmentFault: the store or Prometheus does not answer, or the store is not idle.
        """
        try:
            await self._interruption.until(self._play())
        finally:
            await self._client.close()
        self._summary.partial = self._interruption.reason or self._summary.partial
        return self._summary

    async def _play(self) -> None:
        options = self._options
        instance = await store_instance(options.store_url)
        await require_idle(self._client, options.store_url, AGENTS)
        witness = await self._witness()
        await self._play_with_runners()
        if not self._summary.complete:
            await self._explain(instance)
        elif witness is not None:
            await self._compare(witness)

    async def _witness(self) -> PrometheusWitness | None:
        if self._options.prometheus_url is None:
            return None
        witness = PrometheusWitness(self._options.prometheus_url)
        self._progress.say("waiting for a scrape to start from")
        await witness.look_before()
        return witness

    async def _compare(self, witness: PrometheusWitness) -> None:
        self._progress.say("waiting for Prometheus to scrape the last of it")
        others = await self._others()
        if others:
            self._progress.say(f"others worked on this store, too: {names_of(others)}")
        try:
            verdict = await witness.compare(self._ledger.played, alone=not others)
        except EnvironmentFault as fault:
            self._summary.problems.append(str(fault))
            return
        self._summary.prometheus = verdict
        self._summary.problems += verdict.problems

    async def _others(self) -> list[str]:
        """Return the workers of others that were there since this run began."""
        workers = await self._persistence.call(self._client.query_workers)
        return others_since(workers, self._workers, self._summary.started)

    async def _play_with_runners(self) -> None:
        first = await self._first_free_number()
        self._workers = [f"Worker-{first + n}" for n in range(self._preset.runners)]
        url, run_id = self._options.store_url, self._run_id
        crew = Crew(
            run_runner,
            {name: RunnerSettings(url, run_id, name, self._deadline) for name in self._workers},
        )
        began = None
        try:
            await crew.wait_ready()
            crew.go()
            began = time.monotonic()
            await self._play_until_cut_short(crew)
        finally:
            if began is not None:
                self._summary.duration = time.monotonic() - began
            reports = await crew.stop(_STOP_SECONDS + self._preset.longest_rollout)
            self._summary.unfinished = self._ledger.under_way
            await self._tidy_up()
            self._add_reports(reports)

    async def _tidy_up(self) -> None:
        """Leave nothing behind that a later run would trip over, as far as the store lets us."""
        if self._summary.finished == self._preset.rollouts:
            return
        away = self._persistence.is_away
        left = set(self._summary.unfinished)
        with contextlib.suppress(StoreError, aiohttp.ClientError, OSError, TimeoutError):
            left |= set(await unfinished_of(self._client, self._run_id))
        if note := await cancel_rollouts(self._client, left, is_away=away):
            self._progress.say(note)

    async def _first_free_number(self) -> int:
        """Return from where to number our workers, so that they are nobody else's."""
        workers = await self._persistence.call(
            lambda: self._client.query_workers(worker_id_contains="Worker-")
        )
        return first_free_number(workers, time.time())

    async def _play_until_cut_short(self, crew: Crew[RunnerSettings, RunnerReport]) -> None:
        algorithm = Algorithm(
            self._preset, self._client, self._persistence, self._ledger, self._progress
        )
        playing = asyncio.ensure_future(algorithm.run())
        watching = asyncio.ensure_future(self._watch(crew))
        summary = self._summary
        try:
            await asyncio.wait((playing, watching), return_when=asyncio.FIRST_COMPLETED)
            await (playing if playing.done() else watching)
        except DeadlinePassedError:
            away = ": the store is away" if self._persistence.is_away else ""
            summary.partial = f"not done within {self._preset.timeout:g} s{away}"
        except CutShortError as error:
            summary.partial = str(error)
        except (StoreError, aiohttp.ClientError) as error:
            summary.partial = f"the store refused a call: {error}"
        finally:
            for task in (playing, watching):
                task.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)

    async def _watch(self, crew: Crew[RunnerSettings, RunnerReport]) -> None:
        """Look after the run until it has to be ended.

        Raises:
            DeadlinePassedError: its time is over.
            CutShortError: runners are gone, or nothing was finished for too long.
        """
        guard = StallGuard(self._options.stall_seconds)
        while not self._persistence.is_over():
            await asyncio.sleep(_WATCH_SECONDS)
            if gone := crew.gone():
                raise CutShortError(f"runners ended in the middle of the run: {names_of(gone)}")
            verdict = guard.look(self._summary.finished)
            if verdict != "on":
                said = await self._stalled(self._options.stall_seconds)
                if verdict == "over":
                    raise CutShortError(said)
                self._progress.say(f"warning: {said}")
        raise DeadlinePassedError

    async def _stalled(self, seconds: float) -> str:
        """Return who is to blame for a stall: what is pending, and what the workers do."""
        pending = self._ledger.under_way
        try:
            known = await self._client.query_workers(worker_id_contains="Worker-")
            told = describe_workers(self._mine(list(known)), time.time())
        except (StoreError, aiohttp.ClientError, OSError, TimeoutError) as error:
            told = f"unknown, the store does not answer: {error}"
        return (
            f"no rollout was finished for a long time (limit {seconds:g} s); "
            f"{len(pending)} pending: {names_of(pending)}; workers: {told}"
        )

    def _mine(self, workers: list[Worker]) -> list[Worker]:
        names = set(self._workers)
        return [worker for worker in workers if worker.worker_id in names]

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

    def _add_reports(self, reports: Mapping[str, RunnerReport | Failure]) -> None:
        summary = self._summary
        summary.connection_retries = self._persistence.retries
        for name, report in reports.items():
            if isinstance(report, Failure):
                summary.problems.append(f"runner {name}: {report.reason}")
                continue
            summary.connection_retries += report.retries
            if report.error:
                summary.problems.append(f"runner {name}: {report.error}")
            if not report.heartbeats and not report.error:
                summary.problems.append(f"runner {name}: no heartbeat got through")
