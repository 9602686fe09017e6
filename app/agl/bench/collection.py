"""Collection workloads: inserts and dequeues without a store or HTTP around them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from agl.bench.histogram import percentile_of
from agl.bench.interrupts import Interruption
from agl.bench.pool import allow_many_files
from agl.bench.results import Figure, Result
from agl.errors import BackendUnavailableError, EnvironmentFault
from agl.store.collection import InMemoryLightningCollections
from agl.types import Rollout

Workload = Literal["insert", "dequeue"]
Backend = Literal["memory", "mongo"]
Operation = Callable[[int], Awaitable[bool]]
"""One operation with the number of its task; ``False`` when the queue is empty."""

PRELOADED_AT_ONCE = 512

_JOIN_SECONDS = 0.1


@dataclass(frozen=True)
class CollectionOptions:
    """What to do how often, by how many at once."""

    workload: Workload
    backend: Backend
    total_tasks: int
    concurrency: int
    task_prefix: str
    rounds: int = 1
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    """What to tell of the place: the name of the database."""


@dataclass
class Workings:
    """What one worker did; ``began`` and ``ended`` by the clock that all share."""

    began: float = 0.0
    ended: float = 0.0
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Of each success."""

    errors: Counter[str] = field(default_factory=Counter[str])
    away: bool = False
    """Whether it ended because the database was away."""

    async def work(
        self, numbers: Iterable[int], operation: Operation, stopped: Callable[[], bool]
    ) -> None:
        """Do one operation after the other, until they are done, or nothing is left to take."""
        self.began = time.monotonic()
        for number in numbers:
            if stopped():
                break
            before = time.monotonic()
            try:
                if not await operation(number):
                    break
            except Exception as error:
                self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                if isinstance(error, BackendUnavailableError):
                    self.away = True
                    break
            else:
                self.seconds.append(time.monotonic() - before)
        self.ended = time.monotonic()


@dataclass
class Round:
    """What all workers did together."""

    total: int
    workings: list[Workings]
    lost: list[str] = field(default_factory=list[str])
    """Workers that left no report, and why."""

    @property
    def successes(self) -> int:
        """Operations that succeeded."""
        return sum(len(one.seconds) for one in self.workings)

    @property
    def duration(self) -> float:
        """Seconds from the first operation to the end of the last one."""
        busy = [one for one in self.workings if one.seconds or one.errors]
        if not busy:
            return 0.0
        return max(one.ended for one in busy) - min(one.began for one in busy)

    def summary(self) -> dict[str, float]:
        """Return the figures under the names that 0.3 used; times in seconds."""
        ordered = sorted(itertools.chain.from_iterable(one.seconds for one in self.workings))
        count, duration = len(ordered), self.duration
        return {
            "successes": count,
            "failures": self.total - count,
            "duration": duration,
            "throughput": count / duration if duration > 0 else 0.0,
            "avg_latency": sum(ordered) / count if count else 0.0,
            "p50_latency": percentile_of(ordered, 0.5),
            "p95_latency": percentile_of(ordered, 0.95),
            "p99_latency": percentile_of(ordered, 0.99),
            "min_latency": percentile_of(ordered, 0.0),
            "max_latency": percentile_of(ordered, 1.0),
            "success_rate": count / self.total,
            "ops_per_worker": count / len(self.workings) if self.workings else 0.0,
        }

    def problems(self) -> list[str]:
        """Return the reasons to distrust it."""
        found: list[str] = []
        if missing := self.total - self.successes:
            found.append(f"{missing} of {self.total} operations did not succeed")
        errors = sum((one.errors for one in self.workings), Counter[str]())
        found += [f"{count} times {what}" for what, count in errors.most_common()]
        return found + self.lost


@dataclass
class CollectionReport:
    """What was measured so far."""

    options: CollectionOptions
    started: float = field(default_factory=time.time)
    rounds: list[Round] = field(default_factory=list[Round])
    notes: list[str] = field(default_factory=list[str])
    """What else went wrong."""

    @property
    def is_away(self) -> bool:
        """Whether the database went away."""
        return any(one.away for each in self.rounds for one in each.workings)

    def summaries(self) -> list[dict[str, Any]]:
        """Return one object for each round, for a file of JSON lines."""
        options = self.options
        head = {
            "backend": options.backend,
            "name": f"collection-{options.workload}",
            "total_tasks": options.total_tasks,
            "concurrency": options.concurrency,
        }
        return [{**head, **one.summary()} for one in self.rounds]

    def to_result(self, partial: str | None) -> Result:
        """Return the document that every measurement leaves."""
        options = self.options
        if partial is None and self.is_away:
            partial = "the database went away"
        problems = [
            f"round {number}: {line}"
            for number, one in enumerate(self.rounds, start=1)
            for line in one.problems()
        ]
        return Result(
            kind="collection",
            name=f"{options.backend}-{options.workload}",
            parameters={
                "total_tasks": options.total_tasks,
                "concurrency": options.concurrency,
                **options.where,
            },
            figures=tuple(self._figures()),
            started=self.started,
            ended=time.time(),
            partial=partial,
            problems=(*problems, *self.notes),
            details={"rounds": self.summaries()},
        )

    def _figures(self) -> list[Figure]:
        done = [one.summary() for one in self.rounds if one.successes]
        if not done:
            return []
        rates = tuple(one["throughput"] for one in done)
        found = [Figure(name="throughput", unit="1/s", better="higher", samples=rates)]
        for name in ("avg", "p50", "p95", "p99", "max"):
            samples = tuple(one[f"{name}_latency"] for one in done)
            found.append(Figure(name=f"latency_{name}", unit="s", better="lower", samples=samples))
        return found

    def to_text(self) -> str:
        """Return the table of 0.3: requests a second, milliseconds, per cent."""
        columns = ("req/s", "average", "P95", "P99", "success")
        head = "".join(f"{column:>12}" for column in columns)
        lines = [f"{'collection-' + self.options.workload:22}{head}"]
        for number, one in enumerate(self.rounds, start=1):
            figures = one.summary()
            label = f"{self.options.backend}, round {number}"
            times = (1e3 * figures[f"{name}_latency"] for name in ("avg", "p95", "p99"))
            cells = "".join(f"{value:9.3f} ms" for value in times)
            rate, share = figures["throughput"], 100 * figures["success_rate"]
            lines.append(f"{label:22}{rate:12.1f}{cells}{share:10.2f} %")
        return "\n".join(lines)


def measure_memory(options: CollectionOptions, interruption: Interruption) -> CollectionReport:
    """Play all rounds with threads that share collections in memory."""
    report = CollectionReport(options)
    while len(report.rounds) < options.rounds and not interruption.reason:
        report.rounds.append(_play_in_threads(options, interruption))
    return report


def new_rollout(prefix: str, number: int) -> Rollout:
    """Return the rollout that task ``number`` inserts."""
    return Rollout(
        rollout_id=f"{prefix}-{number}", input={"number": number}, start_time=time.time()
    )


def _play_in_threads(options: CollectionOptions, interruption: Interruption) -> Round:
    collections = InMemoryLightningCollections(lock_type="thread")
    prefix = f"{options.task_prefix}-{uuid.uuid4().hex[:8]}"
    if options.workload == "dequeue":
        asyncio.run(_preload(collections, prefix, options.total_tasks))
    workings = [Workings() for _ in range(min(options.concurrency, options.total_tasks))]
    barrier, stop = threading.Barrier(len(workings)), threading.Event()
    # Its next() is one step of the interpreter, so threads may share it.
    numbers = iter(range(options.total_tasks))
    operation = _memory_operation(collections, options.workload, prefix)

    def work(own: Workings) -> None:
        with asyncio.Runner() as runner:
            runner.get_loop()
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait()
                runner.run(own.work(numbers, operation, stop.is_set))

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in workings]
    interruption.stop_with(stop.set)
    allow_many_files()
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        barrier.abort()
        raise EnvironmentFault(
            f"the system gives no {len(threads)} threads", remedy="use a lower --concurrency"
        ) from error
    for thread in threads:
        while thread.is_alive():
            # In slices, so that signals are heard.
            thread.join(_JOIN_SECONDS)
    return Round(options.total_tasks, workings)


async def _preload(collections: InMemoryLightningCollections, prefix: str, total: int) -> None:
    for first in range(0, total, PRELOADED_AT_ONCE):
        last = min(first + PRELOADED_AT_ONCE, total)
        await collections.rollout_queue.enqueue([f"{prefix}-{n}" for n in range(first, last)])


def _memory_operation(
    collections: InMemoryLightningCollections, workload: Workload, prefix: str
) -> Operation:
    async def insert(number: int) -> bool:
        async with collections.atomic(mode="rw", labels=["rollouts"]) as section:
            await section.rollouts.insert([new_rollout(prefix, number)])
        return True

    async def dequeue(number: int) -> bool:
        async with collections.atomic(mode="rw", labels=["rollout_queue"]) as section:
            return bool(await section.rollout_queue.dequeue(1))

    return insert if workload == "insert" else dequeue
