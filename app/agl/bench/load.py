"""A load of rollouts over HTTP, measured in rounds beside the loader's own ceiling."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.bench.histogram import RELATIVE_ERROR, Histogram
from agl.bench.interrupts import Interruption
from agl.bench.loader import (
    BUSY_SHARE,
    KINDS,
    REQUESTS_PER_ROLLOUT,
    ROLLOUT,
    Load,
    Loader,
    LoadRun,
    ceiling,
)
from agl.bench.results import Better, Figure, Result
from agl.bench.target import redacted

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
_CEILING_SECONDS = 2.0
_CEILING_WARMUP_SECONDS = 0.2
_LATE_SHARE = 0.01
_OF_A_KIND = (("p50", 0.5), ("p99", 0.99))


@dataclass(frozen=True)
class LoadOptions:
    """What to play, how often, and whose CPU to count."""

    store_url: str
    load: Load
    rounds: int
    server_pids: Sequence[int] = ()


@dataclass
class LoadReport:
    """What was measured so far."""

    options: LoadOptions
    started: float = field(default_factory=time.time)
    ceiling: float = 0.0
    """Requests a second that the loader reaches against the least that a server can do."""

    runs: list[LoadRun] = field(default_factory=list[LoadRun])

    @property
    def latencies(self) -> dict[str, Histogram]:
        """All rounds together, by kind of request and ``all``."""
        sums = {kind: Histogram() for kind in ("all", *KINDS)}
        for run in self.runs:
            for kind, histogram in sums.items():
                histogram.add(run.latencies[kind])
        return sums

    def problems(self) -> list[str]:
        """Return the reasons to distrust the figures."""
        found: list[str] = []
        for number, run in enumerate(self.runs, start=1):
            found += [f"round {number}: {line}" for line in self._problems_of(run)]
        return found

    def _problems_of(self, run: LoadRun) -> list[str]:
        found: list[str] = []
        if run.failures:
            found.append(f"{run.failures} requests failed, the first: {_brief(run.first_failure)}")
        if run.away or run.broken:
            found.append(
                f"the store was away for {run.away:.1f} s; {run.broken} requests lost their answer"
            )
        if self.options.server_pids and run.server_cpu is None:
            found.append("a process of --server-pid ended, so the server's CPU is unknown")
        if run.interrupted:
            return found
        if not run.requests:
            found.append("no request was answered")
        share = run.requests_per_second / self.ceiling if self.ceiling else 0.0
        if share > BUSY_SHARE:
            found.append(f"the load is at {share:.0%} of the loader's own ceiling, which may limit")
        elif run.loader_cpu_share > BUSY_SHARE:
            found.append(f"the loader took {run.loader_cpu_share:.0%} of a core; it may limit")
        return found + self._problems_of_schedule(run)

    def _problems_of_schedule(self, run: LoadRun) -> list[str]:
        rate, found = self.options.load.rate, list[str]()
        due = rate * REQUESTS_PER_ROLLOUT * run.seconds
        if not rate or not due:
            return found
        if run.unanswered > _LATE_SHARE * due:
            found.append(
                f"{rate:g} rollouts/s were due, {run.rollouts_per_second:.1f} were finished: "
                f"{run.unanswered} requests had no answer at the end"
            )
        if run.late_loader > _LATE_SHARE * due:
            found.append(
                f"the loader sent {run.late_loader} requests more than 1 ms late, by up to "
                f"{run.largest_lateness * 1e3:.0f} ms; other programs take its CPU"
            )
        return found

    def to_result(self, partial: str | None) -> Result:
        """Return the document that every measurement leaves."""
        options = self.options
        return Result(
            kind="load",
            name="open" if options.load.rate else "closed",
            parameters={
                "store_url": redacted(options.store_url),
                "rollout": ROLLOUT,
                "clients": options.load.connections,
                "rate": options.load.rate or None,
                "seconds": options.load.seconds,
                "warmup": options.load.warmup,
            },
            figures=tuple(self._figures()),
            started=self.started,
            ended=time.time(),
            partial=partial or self._given_up(),
            problems=tuple(self.problems()),
            details=self._details(),
        )

    def _given_up(self) -> str | None:
        if not any(run.gave_up for run in self.runs):
            return None
        patience = self.options.load.patience
        return f"the store went away and did not come back within {patience:g} s"

    def _figures(self) -> list[Figure]:
        runs = [run for run in self.runs if run.seconds and (run.requests or not run.interrupted)]
        if not runs:
            return []
        found = [
            _figure("rollouts_per_second", "1/s", "higher", (r.rollouts_per_second for r in runs)),
            _figure("requests_per_second", "1/s", "higher", (r.requests_per_second for r in runs)),
        ]
        found += self._latency_figures()
        if all(run.server_cpu is not None for run in runs):
            values = [run.server_cpu_per_request for run in runs]
            found.append(_figure("server_cpu_per_request", "s", "lower", values))
        if self.ceiling:
            values = [run.requests_per_second / self.ceiling for run in runs]
            found.append(_figure("share_of_ceiling", "ratio", "neither", values))
        return found

    def _latency_figures(self) -> list[Figure]:
        found: list[Figure] = []
        for kind, wanted in (("all", PERCENTILES), *((kind, _OF_A_KIND) for kind in KINDS)):
            every = [run.latencies[kind] for run in self.runs if run.latencies[kind].count]
            prefix = "latency" if kind == "all" else kind
            for name, share in wanted if every else ():
                values = [histogram.percentile(share) for histogram in every]
                found.append(_figure(f"{prefix}_{name}", "s", "lower", values))
            if kind == "all" and every:
                values = [histogram.maximum for histogram in every]
                found.append(_figure("latency_max", "s", "lower", values))
        return found

    def _details(self) -> dict[str, Any]:
        return {
            "ceiling_requests_per_second": self.ceiling,
            "percentile_error": RELATIVE_ERROR,
            "latencies": {
                kind: {
                    "count": histogram.count,
                    **{name: histogram.percentile(share) for name, share in PERCENTILES},
                    "max": histogram.maximum,
                }
                for kind, histogram in self.latencies.items()
            },
            "rounds": [
                {
                    "seconds": run.seconds,
                    "requests": run.requests,
                    "failures": run.failures,
                    "broken": run.broken,
                    "away": run.away,
                    "unanswered": run.unanswered,
                    "late_no_connection_free": run.late_server,
                    "late_loader": run.late_loader,
                    "largest_lateness": run.largest_lateness,
                    "loader_cpu_share": run.loader_cpu_share,
                }
                for run in self.runs
            ],
        }

    def to_text(self) -> str:
        """Return the figures for people; latencies in milliseconds over all rounds."""
        names = [name for name, _ in PERCENTILES]
        lines = [
            f"{'milliseconds':16}{'requests':>10}" + "".join(f"{n:>9}" for n in [*names, "max"])
        ]
        for kind, histogram in self.latencies.items():
            values = [histogram.percentile(share) for _, share in PERCENTILES]
            cells = "".join(f"{1e3 * value:9.2f}" for value in [*values, histogram.maximum])
            lines.append(f"{kind:16}{histogram.count:10}{cells}")
        lines.append("")
        for number, run in enumerate(self.runs, start=1):
            lines.append(self._round_text(number, run))
        if self.ceiling:
            lines.append(f"ceiling   {self.ceiling:.0f} requests/s against a bare endpoint")
        return "\n".join(lines)

    def _round_text(self, number: int, run: LoadRun) -> str:
        text = (
            f"round {number}   {run.rollouts_per_second:.1f} rollouts/s, "
            f"{run.requests_per_second:.0f} requests/s"
        )
        if self.ceiling:
            text += f", {run.requests_per_second / self.ceiling:.0%} of the loader's ceiling"
        if self.options.load.rate:
            late = run.late_server + run.late_loader
            text += (
                f"; {self.options.load.rate:g} rollouts/s due, {late} requests sent late "
                f"(no connection free: {run.late_server}), at most {run.largest_lateness:.3f} s"
            )
        return text


def measure(
    options: LoadOptions, interruption: Interruption, say: Callable[[str], None]
) -> LoadReport:
    """Play all rounds, or until an interruption or a store that stays away.

    Raises:
        UsageError: the loader cannot speak such a URL.
        EnvironmentFault: the loader cannot be compiled, or does not understand the answers.
    """
    report = LoadReport(options)
    load = options.load
    bare = Load(load.connections, min(_CEILING_SECONDS, load.seconds), _CEILING_WARMUP_SECONDS)
    loader = Loader(options.store_url)
    report.ceiling = ceiling(bare, lambda started: interruption.stop_with(started.stop))
    say(f"the loader's own ceiling: {report.ceiling:.0f} requests/s")
    interruption.stop_with(loader.stop)
    for number in range(1, options.rounds + 1):
        if interruption.reason:
            break
        run = loader.play(load, options.server_pids)
        report.runs.append(run)
        say(f"round {number}: {run.rollouts_per_second:.1f} rollouts/s")
        if run.gave_up:
            break
    return report


def _figure(name: str, unit: str, better: Better, values: Sequence[float] | Any) -> Figure:
    return Figure(name=name, unit=unit, better=better, samples=tuple(values))


def _brief(answer: str) -> str:
    head, _, body = answer.partition("\r\n\r\n")
    return f"{head.partition(chr(13))[0]}: {' '.join(body.split())[:200]}"
