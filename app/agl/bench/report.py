"""Progress while a run goes on, and the summary at its end."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agl.bench.prometheus import Verdict

_SHOWN_PROBLEMS = 10


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

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-ready values."""
        verdict = self.prometheus
        return {
            "scenario": "minimal",
            "ok": self.ok,
            "store_url": self.store_url,
            "seed": self.seed,
            "runners": self.runners,
            "rollouts": self.rollouts,
            "enqueued": self.enqueued,
            "verified": self.verified,
            "statuses": dict(sorted(self.statuses.items())),
            "attempts": self.attempts,
            "retries": self.retries,
            "connection_retries": self.connection_retries,
            "spans": self.spans,
            "duration_seconds": round(self.duration, 3),
            "rollouts_per_second": round(self.rate(self.finished), 3),
            "spans_per_second": round(self.rate(self.spans), 3),
            "lost": self.lost,
            "unfinished": self.unfinished,
            "problems": self.problems,
            "prometheus": None
            if verdict is None
            else {
                "before": verdict.before,
                "after": verdict.after,
                "difference": verdict.difference,
                "played": verdict.played,
                "agrees": not verdict.problems,
            },
        }

    def to_json(self) -> str:
        """Return the summary as one indented JSON object."""
        return json.dumps(self.to_dict(), indent=2)

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
        lines += [f"  {problem}" for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"  ... and {len(self.problems) - _SHOWN_PROBLEMS} more")
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
