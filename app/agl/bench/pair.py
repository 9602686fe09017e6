"""Two servers under the same load, in turns within one run, so that the machine is the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agl.bench.contenders import Contender, Server, serving
from agl.bench.interrupts import Interruption
from agl.bench.loader import ROLLOUT, Load, Loader, LoadRun
from agl.bench.pages.units import spoken
from agl.bench.results import Better, Figure, Result
from agl.errors import EnvironmentFault

_DYING_SECONDS = 2.0
"""Connections of a server that dies are lost before its process is gone."""


@dataclass(frozen=True)
class PairOptions:
    """Both servers, the load for each, and how often; ``ready_timeout`` in seconds."""

    a: Contender
    b: Contender
    load: Load
    rounds: int
    ready_path: str
    ready_timeout: float


@dataclass(frozen=True)
class Turn:
    """One server's part of a round; ``ready`` in seconds, ``memory`` in bytes after the load."""

    run: LoadRun
    ready: float
    memory: int


Figures = dict[str, tuple[str, Better, Callable[[Turn], float]]]
FIGURES: Figures = {
    "rollouts a second": ("1/s", "higher", lambda turn: turn.run.rollouts_per_second),
    "p50": ("s", "lower", lambda turn: turn.run.latencies["all"].percentile(0.5)),
    "p99": ("s", "lower", lambda turn: turn.run.latencies["all"].percentile(0.99)),
    "CPU a request": ("s", "lower", lambda turn: turn.run.server_cpu_per_request),
    "ready after": ("s", "lower", lambda turn: turn.ready),
    "memory after the load": ("bytes", "lower", lambda turn: float(turn.memory)),
}


@dataclass
class Pair:
    """What was measured so far: whole rounds, each A and B."""

    options: PairOptions
    started: float = field(default_factory=time.time)
    rounds: list[tuple[Turn, Turn]] = field(default_factory=list[tuple[Turn, Turn]])
    partial: str | None = None
    problems: list[str] = field(default_factory=list[str])

    def to_result(self) -> Result:
        """Ratios of B to A, taken within each round, then the figures of either."""
        options = self.options
        return Result(
            kind="pair",
            name="load",
            parameters={
                "a": " ".join(options.a.words),
                "b": " ".join(options.b.words),
                "rollout": ROLLOUT,
                "clients": options.load.connections,
                "seconds": options.load.seconds,
                "warmup": options.load.warmup,
                "rounds": options.rounds,
            },
            figures=(*self._ratios(), *self._figures()) if self.rounds else (),
            started=self.started,
            ended=time.time(),
            partial=self.partial,
            problems=tuple(self.problems),
        )

    def _ratios(self) -> list[Figure]:
        found: list[Figure] = []
        for name, (_, better, of) in FIGURES.items():
            pairs = [(of(a), of(b)) for a, b in self.rounds]
            if all(a > 0 for a, _ in pairs):
                samples = tuple(b / a for a, b in pairs)
                found.append(
                    Figure(name=f"{name}, B / A", unit="ratio", better=better, samples=samples)
                )
        return found

    def _figures(self) -> list[Figure]:
        return [
            Figure(
                name=f"{letter}: {name}",
                unit=unit,
                better=better,
                samples=tuple(of(turns[at]) for turns in self.rounds),
            )
            for at, letter in enumerate("AB")
            for name, (unit, better, of) in FIGURES.items()
        ]


def measure(options: PairOptions, interruption: Interruption, say: Callable[[str], None]) -> Pair:
    """Run all rounds, the order of A and B alternating, or until one of the servers fails.

    What whole rounds gave is kept then.
    """
    pair = Pair(options)
    for number in range(options.rounds):
        try:
            turns = _round(options, number, interruption, pair.problems)
        except EnvironmentFault as fault:
            failed = f"round {number + 1} of {options.rounds}: {fault}"
            pair.partial = interruption.reason or failed
            return pair
        if turns is None:
            pair.partial = interruption.reason
            return pair
        pair.rounds.append(turns)
        say(_told(number + 1, turns))
    return pair


def as_text(pair: Pair) -> str:
    """Ratios with their spread, and the medians of both."""
    from agl.bench.analysis.text import grid

    result = pair.to_result()
    if not pair.rounds:
        return "no round was completed"
    rows: list[tuple[str, ...]] = []
    for name in FIGURES:
        ratio, a, b = (result.figure(n) for n in (f"{name}, B / A", f"A: {name}", f"B: {name}"))
        if a is not None and b is not None:
            samples = ratio.samples if ratio else ()
            told = (
                spoken(value, "ratio")
                for value in ((ratio.median, min(samples), max(samples)) if ratio else (None,) * 3)
            )
            rows.append((name, spoken(a.median, a.unit), spoken(b.median, b.unit), *told))
    head = (f"median of {len(pair.rounds)} rounds", "A", "B", "B / A", "least", "largest")
    return grid(head, rows)


def _round(
    options: PairOptions, number: int, interruption: Interruption, problems: list[str]
) -> tuple[Turn, Turn] | None:
    """One round; ``None`` when somebody ended it."""
    order = (options.a, options.b) if number % 2 == 0 else (options.b, options.a)
    turns: dict[str, Turn] = {}
    for contender in order:
        with serving(
            contender, options.ready_path, options.ready_timeout, interruption.wished
        ) as server:
            turn = turns[contender.name] = _turn(options.load, server, interruption)
        if interruption.reason is not None:
            return None
        name = f"round {number + 1}, {contender.name}"
        problems += [f"{name}: {line}" for line in _problems(turn.run)]
    return turns["A"], turns["B"]


def _turn(load: Load, server: Server, interruption: Interruption) -> Turn:
    loader = Loader(server.url)
    interruption.stop_with(loader.stop)
    run = loader.play(load, server.pids())
    if run.broken or run.gave_up:
        server.wait_for_its_end(_DYING_SECONDS)
    if fate := server.fate("under load"):
        raise EnvironmentFault(fate)
    return Turn(run, server.ready, server.memory())


def _problems(run: LoadRun) -> Sequence[str]:
    found: list[str] = []
    if run.failures:
        found.append(f"{run.failures} requests failed, the first: {run.first_failure}")
    if run.broken:
        found.append(f"{run.broken} requests lost their connection")
    if not run.rollouts and not run.interrupted:
        found.append("no rollout was finished")
    return found


def _told(number: int, turns: tuple[Turn, Turn]) -> str:
    rates = [turn.run.rollouts_per_second for turn in turns]
    return f"round {number}: A {rates[0]:.0f}, B {rates[1]:.0f} rollouts/s"
