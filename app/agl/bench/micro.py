"""Micro workloads: one kind of operation, by many processes at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from agl.bench.histogram import percentile_of
from agl.bench.interrupts import Interruption
from agl.bench.neighbours import cancel_rollouts, require_idle
from agl.bench.operations import AGENT, MODES, Operation, request
from agl.bench.pool import Crew, Failure, Signals
from agl.bench.results import Figure, Result
from agl.bench.target import is_transient, redacted, require_access
from agl.store.client_server import LightningStoreClient
from agl.utils.metrics import ConsoleMetricsBackend, MultiMetricsBackend

_STOP_SECONDS = 40.0
_ASK_AGAIN_SECONDS = 0.2
_LOOK_EVERY = 4096
_SHOWN_IDS = 20


@dataclass(frozen=True)
class MicroOptions:
    """What to do how often, by how many; ``patience`` is seconds to wait for a store that left."""

    mode: str
    store_url: str
    processes: int
    operations: int
    rounds: int = 1
    reuse: bool = False
    """Whether a process keeps its connection; else each operation makes one of its own."""

    patience: float = 30.0


@dataclass(frozen=True)
class Share:
    """The part of one process: operations ``first``, ``first + step``, … below ``end``."""

    options: MicroOptions
    run_id: str
    first: int
    step: int
    end: int


@dataclass
class ShareReport:
    """What one process did; ``began`` and ``ended`` by the clock that all processes share."""

    began: float = 0.0
    ended: float = 0.0
    succeeded: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Of each operation that succeeded."""

    gave_up: bool = False
    """Whether the store stayed away."""

    @property
    def attempted(self) -> int:
        """Operations that were begun."""
        return self.succeeded + self.errors.total()


@dataclass
class MicroRound:
    """What all processes did together."""

    shares: list[ShareReport]
    lost: dict[str, str]
    """Processes that left no report, and why."""

    @property
    def began(self) -> float:
        """When the first operation began."""
        return min((share.began for share in self._working), default=0.0)

    @property
    def duration(self) -> float:
        """Seconds from the first operation to the end of the last."""
        return max((share.ended for share in self._working), default=0.0) - self.began

    @property
    def succeeded(self) -> int:
        """Operations that did."""
        return sum(share.succeeded for share in self.shares)

    @property
    def throughput(self) -> float:
        """Successes a second."""
        return self.succeeded / self.duration if self.duration > 0 else 0.0

    @property
    def errors(self) -> Counter[str]:
        """What went wrong, and how often."""
        return sum((share.errors for share in self.shares), Counter[str]())

    @property
    def seconds(self) -> list[float]:
        """Of each success, ascending."""
        return sorted(second for share in self.shares for second in share.seconds)

    @property
    def _working(self) -> list[ShareReport]:
        return [share for share in self.shares if share.attempted]


@dataclass
class MicroReport:
    """What was measured so far."""

    options: MicroOptions
    started: float = field(default_factory=time.time)
    rounds: list[MicroRound] = field(default_factory=list[MicroRound])
    still_queuing: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def summaries(self) -> list[str]:
        """Return a line for each round, in the form that 0.3 used."""
        total = self.options.operations
        return [
            f"[summary] mode={self.options.mode} success_rate={one.succeeded / total:.3f} "
            f"throughput={one.throughput:.3f} ops/s duration={one.duration:.3f}s "
            f"success={one.succeeded}/{total}"
            for one in self.rounds
        ]

    def to_result(self, partial: str | None) -> Result:
        """Return the document that every measurement leaves."""
        options = self.options
        return Result(
            kind="micro",
            name=options.mode,
            parameters={
                "store_url": redacted(options.store_url),
                "processes": options.processes,
                "operations": options.operations,
                "connections": "reuse" if options.reuse else "fresh",
            },
            figures=tuple(self._figures()),
            started=self.started,
            ended=time.time(),
            partial=partial or self._given_up(),
            problems=tuple(self._problems()),
            details={
                "success": [one.succeeded for one in self.rounds],
                "duration_seconds": [one.duration for one in self.rounds],
                "still_queuing": self.still_queuing,
            },
        )

    def _figures(self) -> list[Figure]:
        done = [one for one in self.rounds if one.succeeded]
        if not done:
            return []
        rates = tuple(one.throughput for one in done)
        found = [Figure(name="throughput", unit="1/s", better="higher", samples=rates)]
        timed = [seconds for one in done if (seconds := one.seconds)]
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
            if timed:
                samples = tuple(percentile_of(seconds, share) for seconds in timed)
                found.append(
                    Figure(name=f"latency_{name}", unit="s", better="lower", samples=samples)
                )
        return found

    def _given_up(self) -> str | None:
        if not any(share.gave_up for one in self.rounds for share in one.shares):
            return None
        return f"the store went away and did not come back within {self.options.patience:g} s"

    def _problems(self) -> list[str]:
        found: list[str] = []
        for number, one in enumerate(self.rounds, start=1):
            missing = self.options.operations - one.succeeded
            if missing:
                found.append(
                    f"round {number}: {missing} of {self.options.operations} operations did not "
                    "succeed"
                )
            found += [f"{count} times {what}" for what, count in one.errors.most_common()]
            found += [f"process {name} {why}" for name, why in one.lost.items()]
        if self.still_queuing:
            shown = ", ".join(self.still_queuing[:_SHOWN_IDS])
            found.append(f"{len(self.still_queuing)} rollouts still queuing: {shown}")
        return found + self.notes

    def to_text(self) -> str:
        """Return the figures for people."""
        lines = self.summaries()
        for figure in self.to_result(None).figures:
            if figure.unit == "s":
                lines.append(f"{figure.name:12} {1e3 * figure.median:10.2f} ms")
        return "\n".join(lines)


async def measure(options: MicroOptions, interruption: Interruption) -> MicroReport:
    """Play all rounds, or until an interruption or a store that stays away.

    Raises:
        EnvironmentFault: the store does not answer, refuses, or has work of others.
    """
    report = MicroReport(options)
    mode = MODES[options.mode]
    if mode.operation is None:
        await _play_rounds(report, interruption, None)
        return report
    await require_access(options.store_url)
    client = LightningStoreClient(options.store_url, retry_delays=(), health_retry_delays=())
    try:
        await require_idle(client, options.store_url, (AGENT,) if mode.enqueues else ())
        await _play_rounds(report, interruption, client)
    finally:
        await client.close()
    return report


async def _play_rounds(
    report: MicroReport,
    interruption: Interruption,
    client: LightningStoreClient | None,
) -> None:
    options = report.options
    for _ in range(options.rounds):
        if interruption.reason or report.to_result(None).partial:
            return
        run_id = uuid.uuid4().hex
        crew = Crew(work, _shares(options, run_id))
        waiting: list[str] = []
        try:
            await interruption.until(crew.wait_ready())
            if client is not None and MODES[options.mode].enqueues and not interruption.reason:
                requests = [request(run_id, number) for number in range(options.operations)]
                enqueued = await client.enqueue_many_rollouts(requests)
                waiting = [rollout.rollout_id for rollout in enqueued]
            if not interruption.reason:
                crew.go()
                await interruption.until(crew.wait_done())
        finally:
            outcomes = await crew.stop(_STOP_SECONDS)
            report.rounds.append(_round(outcomes))
            if client is not None and waiting:
                await _tidy_up(report, client, waiting)


async def _tidy_up(report: MicroReport, client: LightningStoreClient, ids: list[str]) -> None:
    """Name the rollouts that nobody took, and cancel them."""
    try:
        waiting = await client.query_rollouts(rollout_id_in=ids, status_in=["queuing", "requeuing"])
    except Exception as error:
        if not is_transient(error):
            raise
        report.notes.append("what still queues is unknown: the store does not answer")
        return
    report.still_queuing = [rollout.rollout_id for rollout in waiting]
    if note := await cancel_rollouts(client, report.still_queuing):
        report.notes.append(note)


def _round(outcomes: Mapping[str, ShareReport | Failure]) -> MicroRound:
    shares = [one for one in outcomes.values() if isinstance(one, ShareReport)]
    lost = {name: one.reason for name, one in outcomes.items() if isinstance(one, Failure)}
    return MicroRound(shares, lost)


def _shares(options: MicroOptions, run_id: str) -> dict[str, Share]:
    count = min(options.processes, options.operations)
    return {
        f"micro-{first}": Share(options, run_id, first, count, options.operations)
        for first in range(count)
    }


def work(share: Share, signals: Signals) -> ShareReport:
    """Process entry: do the share, operation after operation."""
    signals.wait_to_begin()
    report = ShareReport(began=time.monotonic())
    operation = MODES[share.options.mode].operation
    if operation is None:
        _count(share, signals, report)
    elif share.options.reuse:
        asyncio.run(_with_one_client(share, signals, report, operation))
    else:
        for number in range(share.first, share.end, share.step):
            if signals.stopped() or report.gave_up:
                break
            asyncio.run(_with_own_client(share, signals, report, operation, number))
    report.ended = time.monotonic()
    return report


async def _with_one_client(
    share: Share, signals: Signals, report: ShareReport, operation: Operation
) -> None:
    client = _client(share)
    try:
        for number in range(share.first, share.end, share.step):
            if signals.stopped() or report.gave_up:
                break
            began = time.monotonic()
            if await _operate(share, signals, report, operation(client, number, share.run_id)):
                report.seconds.append(time.monotonic() - began)
    finally:
        await client.close()


async def _with_own_client(
    share: Share, signals: Signals, report: ShareReport, operation: Operation, number: int
) -> None:
    """The operation with connecting and closing, all of which counts."""
    began = time.monotonic()
    client = _client(share)
    try:
        done = await _operate(share, signals, report, operation(client, number, share.run_id))
    finally:
        await client.close()
    if done:
        report.seconds.append(time.monotonic() - began)


async def _operate(share: Share, signals: Signals, report: ShareReport, operation: Any) -> bool:
    """Whether it succeeded; after a failure that may pass, waits until the store is back."""
    try:
        await operation
    except Exception as error:
        report.errors[f"{type(error).__name__}: {error}"[:200]] += 1
        if is_transient(error):
            report.gave_up = not await _is_back(share, signals)
        return False
    report.succeeded += 1
    return True


async def _is_back(share: Share, signals: Signals) -> bool:
    limit = time.monotonic() + share.options.patience
    while not signals.stopped():
        try:
            await require_access(share.options.store_url)
        except Exception:
            if time.monotonic() >= limit:
                return False
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        else:
            return True
    return True


def _client(share: Share) -> LightningStoreClient:
    return LightningStoreClient(share.options.store_url, retry_delays=(), health_retry_delays=())


def _count(share: Share, signals: Signals, report: ShareReport) -> None:
    """Count and observe, which are two operations, through two console backends."""
    backend = MultiMetricsBackend(
        [
            ConsoleMetricsBackend(window_seconds=0.5, log_interval_seconds=0.1),
            ConsoleMetricsBackend(window_seconds=None, log_interval_seconds=1e6),
        ]
    )
    backend.register_counter("micro_operations", ["kind"])
    backend.register_histogram("micro_seconds", ["kind"])
    labels = {"kind": "micro"}
    mine = len(range(share.first, share.end, share.step))
    for number in range(mine // 2):
        if not number % _LOOK_EVERY and signals.stopped():
            return
        backend.inc("micro_operations", labels)
        backend.observe("micro_seconds", number * 1e-6, labels)
        report.succeeded += 2
    if mine % 2:
        backend.inc("micro_operations", labels)
        report.succeeded += 1


def memory_for(processes: int) -> str | None:
    """Return a warning when so many processes may not fit into this machine's memory."""
    needed = processes * _PROCESS_BYTES
    free = psutil.virtual_memory().available
    if needed < free:
        return None
    return f"{processes} processes may take {needed >> 20} MiB, {free >> 20} MiB are free"


_PROCESS_BYTES = 12 << 20
