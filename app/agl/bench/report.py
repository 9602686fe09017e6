"""Progress while a run goes on, and the summary at its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agl.bench.histogram import percentile_of
from agl.bench.presets import Preset
from agl.bench.prometheus import Verdict
from agl.bench.results import Figure, Result
from agl.types import Rollout

_TENTHS = 10


@dataclass
class Summary:
    """What was played and what came of it; durations in seconds."""

    name: str
    store_url: str
    seed: int
    preset: Preset
    started: float = field(default_factory=time.time)
    enqueued: int = 0
    verified: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    attempts: int = 0
    retries: int = 0
    """Attempts beyond the first of their rollout."""

    spans: int = 0
    connection_retries: int = 0
    duration: float = 0.0
    rollout_seconds: list[float] = field(default_factory=list[float])
    """From the moment a rollout was enqueued to its end, by the store's clock."""

    lost: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    partial: str | None = None
    prometheus: Verdict | None = None

    @property
    def rollouts(self) -> int:
        """How many were to be played."""
        return self.preset.rollouts

    def count(self, rollout: Rollout) -> None:
        """Count a rollout that has ended."""
        self.statuses[rollout.status] = self.statuses.get(rollout.status, 0) + 1
        if rollout.end_time is not None:
            self.rollout_seconds.append(rollout.end_time - rollout.start_time)

    @property
    def finished(self) -> int:
        """Rollouts that ended, in whatever way."""
        return sum(self.statuses.values())

    @property
    def complete(self) -> bool:
        """Whether every rollout was enqueued, finished, and could be read back."""
        return self.enqueued == self.rollouts and not self.lost and not self.unfinished

    def rate(self, count: int) -> float:
        """Return ``count`` per second of the run."""
        return count / self.duration if self.duration else 0.0

    def to_result(self) -> Result:
        """Return the summary as the document that every measurement leaves."""
        problems = list(self.problems)
        if self.verified < self.rollouts:
            missing = self.rollouts - self.verified
            problems.append(f"{missing} of {self.rollouts} rollouts not verified")
        return Result(
            kind="scenario",
            name=self.name,
            parameters={
                "store_url": self.store_url,
                "seed": self.seed,
                **{k: v for k, v in dataclasses.asdict(self.preset).items() if k != "what"},
            },
            figures=tuple(self._figures()),
            started=self.started,
            ended=time.time(),
            partial=self.partial,
            problems=tuple(problems),
            details=self._details(),
        )

    def _figures(self) -> list[Figure]:
        if not self.finished or not self.duration:
            return []
        rates = (
            ("rollouts_per_second", self.rate(self.finished)),
            ("spans_per_second", self.rate(self.spans)),
        )
        found = [Figure(name=n, unit="1/s", better="higher", samples=(v,)) for n, v in rates]
        ordered = sorted(self.rollout_seconds)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            samples = (percentile_of(ordered, share),)
            found.append(Figure(name=f"rollout_{name}", unit="s", better="lower", samples=samples))
        return found

    def _details(self) -> dict[str, Any]:
        verdict = self.prometheus
        names = (
            *("enqueued", "verified", "statuses", "attempts", "retries", "connection_retries"),
            *("spans", "duration", "lost", "unfinished"),
        )
        details: dict[str, Any] = {name: getattr(self, name) for name in names}
        if verdict is not None:
            details["prometheus"] = {
                "before": verdict.before,
                "after": verdict.after,
                "difference": verdict.difference,
                "played": verdict.played,
                "agrees": not verdict.problems,
            }
        return details

    def to_text(self) -> str:
        """Return the summary for people, the first few problems included."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items()))
        lines = [
            f"rollouts    {self.enqueued} of {self.rollouts} enqueued for {self.preset.runners} "
            "runners" + (f": {outcomes}" if outcomes else ""),
            f"verified    {self.verified}",
            f"retries     {self.retries} attempts, {self.connection_retries} calls",
            f"spans       {self.spans}",
            f"duration    {self.duration:.2f} s",
            f"throughput  {self.rate(self.finished):.1f} rollouts/s, "
            f"{self.rate(self.spans):.1f} spans/s",
        ]
        if self.prometheus is not None:
            verdict = self.prometheus
            lines.append(
                f"prometheus  {verdict.before:g} -> {verdict.after:g}: "
                f"{verdict.difference:g} finished, {verdict.played} played"
            )
        lines.append(f"failures    {len(self.problems)}")
        return "\n".join(lines)


class ProgressLine:
    """Shows how many rollouts are finished: a bar on a terminal, else lines now and then."""

    def __init__(self, console: Console, total: int, *, by_batches: bool) -> None:
        self._console = console
        self._total = total
        self._by_batches = by_batches
        self._finished = self._tenth = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("rollouts", total=total)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Keep the bar on screen while the body runs."""
        with self._bar:
            yield

    def advance(self, finished: int) -> None:
        """Tell how many rollouts are finished so far."""
        self._finished = finished
        self._bar.update(self._task, completed=finished)
        tenth = _TENTHS * finished // self._total
        if not self._by_batches and tenth > self._tenth:
            self._say_finished("")
        self._tenth = tenth

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def batch_done(self, number: int) -> None:
        """Tell that a batch is over."""
        self._say_finished(f"batch {number}: ")

    def _say_finished(self, prefix: str) -> None:
        """Say it in a line; silent on a terminal, where the bar says it."""
        if not self._console.is_terminal:
            self.say(f"{prefix}{self._finished} of {self._total} rollouts finished")
