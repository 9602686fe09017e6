"""Progress while a run goes on, and the summary at its end."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agl.bench.prometheus import Verdict
from agl.bench.results import Figure, Result


@dataclass
class Summary:
    """What was played and what came of it; durations in seconds."""

    store_url: str
    seed: int
    runners: int
    rollouts: int
    enqueued: int = 0
    verified: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    attempts: int = 0
    retries: int = 0
    """Attempts beyond the first of their rollout."""

    spans: int = 0
    connection_retries: int = 0
    duration: float = 0.0
    lost: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    prometheus: Verdict | None = None

    @property
    def finished(self) -> int:
        """Rollouts that ended, in whatever way."""
        return sum(self.statuses.values())

    @property
    def complete(self) -> bool:
        """Whether every rollout was enqueued, finished, and could be read back."""
        return self.enqueued == self.rollouts and not self.lost and not self.unfinished

    @property
    def ok(self) -> bool:
        """Whether every rollout was verified and nothing else was amiss."""
        return self.verified == self.rollouts and not self.problems

    def rate(self, count: int) -> float:
        """Return ``count`` per second of the run."""
        return count / self.duration if self.duration else 0.0

    def to_result(self) -> Result:
        """Return the summary as the document that every measurement leaves."""
        verdict = self.prometheus
        details: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("enqueued", "verified", "statuses", "attempts", "retries", "connection_retries"),
                *("spans", "lost", "unfinished"),
            )
        }
        if verdict is not None:
            details["prometheus"] = {
                "before": verdict.before,
                "after": verdict.after,
                "difference": verdict.difference,
                "played": verdict.played,
                "agrees": not verdict.problems,
            }
        ended = time.time()
        problems = list(self.problems)
        if self.verified < self.rollouts:
            missing = self.rollouts - self.verified
            problems.append(f"{missing} of {self.rollouts} rollouts not verified")
        return Result(
            kind="scenario",
            name="minimal",
            parameters={
                "store_url": self.store_url,
                "seed": self.seed,
                "runners": self.runners,
                "rollouts": self.rollouts,
            },
            figures=(
                _rate("rollouts_per_second", self.rate(self.finished)),
                _rate("spans_per_second", self.rate(self.spans)),
            ),
            started=ended - self.duration,
            ended=ended,
            problems=tuple(problems),
            details=details,
        )

    def to_text(self) -> str:
        """Return the summary for people, the first few problems included."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items()))
        lines = [
            f"rollouts    {self.enqueued} of {self.rollouts} enqueued for {self.runners} runners"
            + (f": {outcomes}" if outcomes else ""),
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
    """Shows how many rollouts are finished: a bar on a terminal, else one line a batch."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
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
        self._bar.update(self._task, completed=finished)

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def batch_done(self, number: int, finished: int) -> None:
        """Tell that a batch is over; silent on a terminal, where the bar says it."""
        if not self._console.is_terminal:
            self.say(f"batch {number}: {finished} of {self._total} rollouts finished")


def _rate(name: str, per_second: float) -> Figure:
    return Figure(name=name, unit="1/s", better="higher", samples=(per_second,))
