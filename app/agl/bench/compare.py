"""Two results of the same measurement: what differs, and whether by more than they scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agl.bench.pages.units import spoken
from agl.bench.results import Figure, Machine, Result
from agl.errors import UsageError

Verdict = Literal["better", "worse", "changed", "same", "unknown"]
"""``changed``: more than it scatters, of a figure that is neither good nor bad; ``unknown``: there
is one sample only, so nothing is known of its scatter."""

WHERE = ("store_url", "prometheus", "prometheus_url")
"""Parameters that say where, not what."""


@dataclass(frozen=True)
class Row:
    """One figure of both; the ratio is B to A.

    Attributes:
        low: Least and
        high: largest ratio that a sample of B has to one of A.
        goodness: The ratio turned so that above 1 is better; ``None`` for what is neither.
    """

    a: Figure
    b: Figure
    ratio: float | None
    low: float | None
    high: float | None
    goodness: float | None
    verdict: Verdict

    def regressed(self, gate: float) -> bool:
        """Whether B is worse than the ``gate`` allows, and not just by scatter."""
        if self.goodness is None:  # it was nothing
            return self.verdict == "worse"
        return self.goodness < gate and self.verdict in ("worse", "unknown")


@dataclass(frozen=True)
class Comparison:
    """Both results, the figures they share, and what else differs (a line each)."""

    a: Result
    b: Result
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]

    def regressions(self, gate: float) -> list[Row]:
        """Figures that are worse than the ``gate`` allows."""
        return [row for row in self.rows if row.regressed(gate)]

    def failings(self, gate: float) -> list[str]:
        """Why B does not pass the ``gate``: regressions, and what cannot be held against A."""
        found = [told(row, gate) for row in self.regressions(gate)]
        compared = {row.a.name for row in self.rows}
        found += [
            f"{figure.name} of A has nothing in B to be held against it"
            for figure in self.a.figures
            if figure.better != "neither" and figure.name not in compared
        ]
        for letter, result in (("A", self.a), ("B", self.b)):
            if result.partial is not None:
                found.append(f"{letter} is partial: {result.partial}")
            found += [f"{letter} has a problem: {problem}" for problem in result.problems]
        return found


def compare(a: Result, b: Result) -> Comparison:
    """Compare figure by figure.

    Raises:
        UsageError: they are of different measurements, or share no figure.
    """
    if (a.kind, a.name) != (b.kind, b.name):
        raise UsageError(
            f"A is {a.kind} {a.name}, B is {b.kind} {b.name}: two runs of the same measurement are"
            " needed"
        )
    rows = [
        row(figure, other)
        for figure in a.figures
        if (other := b.figure(figure.name)) and _is_alike(figure, other)
    ]
    if not rows:
        raise UsageError("the results share no figure")
    return Comparison(a, b, tuple(rows), tuple(_remarks(a, b)))


def row(a: Figure, b: Figure) -> Row:
    """One figure of both."""
    ratio = _over(b.median, a.median)
    goodness = None
    if a.better != "neither" and ratio is not None:
        goodness = ratio if a.better == "higher" else _over(a.median, b.median)
    return Row(
        a=a,
        b=b,
        ratio=ratio,
        low=_over(min(b.samples), max(a.samples)),
        high=_over(max(b.samples), min(a.samples)),
        goodness=goodness,
        verdict=_verdict(a, b, goodness),
    )


def as_text(comparison: Comparison) -> str:
    """A table, and what else differs."""
    from agl.bench.analysis.text import grid

    lines = [grid(("figure", "A", "B", "B / A", "least", "largest", ""), _cells(comparison.rows))]
    lines += [f"note: {remark}" for remark in comparison.remarks]
    return "\n".join(lines)


def as_result(comparison: Comparison, gate: float | None) -> Result:
    """The comparison as a document: a ratio a figure, and what fails the gate as problems."""
    rows = [row for row in comparison.rows if row.ratio is not None]
    problems = [] if gate is None else comparison.failings(gate)
    return Result(
        kind="comparison",
        name=f"{comparison.a.kind} {comparison.a.name}",
        parameters={"gate": gate},
        figures=tuple(
            Figure(
                name=f"{row.a.name}, B / A",
                unit="ratio",
                better=row.a.better,
                samples=tuple(v for v in (row.low, row.ratio, row.high) if v is not None),
            )
            for row in rows
        ),
        started=min(comparison.a.started, comparison.b.started),
        ended=max(comparison.a.ended, comparison.b.ended),
        problems=tuple(problems),
        details={
            "remarks": list(comparison.remarks),
            "verdicts": {row.a.name: row.verdict for row in comparison.rows},
            "a": comparison.a.model_dump(mode="json", exclude={"details"}),
            "b": comparison.b.model_dump(mode="json", exclude={"details"}),
        },
    )


def told(row: Row, gate: float) -> str:
    """A regression in a line."""
    return (
        f"{row.a.name} is worse: {spoken(row.a.median, row.a.unit)} in A,"
        f" {spoken(row.b.median, row.b.unit)} in B, {row.goodness or 0:.3f} of A where at least"
        f" {gate:g} is wanted"
    )


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [
        (
            row.a.name,
            spoken(row.a.median, row.a.unit),
            spoken(row.b.median, row.b.unit),
            *(spoken(value, "ratio") for value in (row.ratio, row.low, row.high)),
            "one sample" if row.verdict == "unknown" else row.verdict,
        )
        for row in rows
    ]


def _verdict(a: Figure, b: Figure, goodness: float | None) -> Verdict:
    if min(len(a.samples), len(b.samples)) < 2:
        return "unknown"
    if max(a.samples) >= min(b.samples) and max(b.samples) >= min(a.samples):
        return "same"
    if goodness is None:
        rises = b.median > a.median
        return "changed" if a.better == "neither" else _judged(a, rises)
    return "better" if goodness > 1 else "worse"


def _is_alike(a: Figure, b: Figure) -> bool:
    return (a.unit, a.better) == (b.unit, b.better)


def _judged(a: Figure, rises: bool) -> Verdict:
    """Of a figure that has no ratio, since it was or became nothing."""
    return "better" if rises == (a.better == "higher") else "worse"


def _remarks(a: Result, b: Result) -> list[str]:
    found = [
        f"{name} is {a.parameters.get(name)!r} in A and {b.parameters.get(name)!r} in B"
        for name in dict.fromkeys((*a.parameters, *b.parameters))
        if name not in WHERE and a.parameters.get(name) != b.parameters.get(name)
    ]
    found += _machines(a.machine, b.machine)
    if a.version != b.version:
        found.append(f"version {a.version} in A and {b.version} in B")
    for letter, result in (("A", a), ("B", b)):
        if result.partial is not None:
            found.append(f"{letter} is partial: {result.partial}")
        found += [f"{letter} has a problem: {problem}" for problem in result.problems]
    for figure in a.figures:
        other = b.figure(figure.name)
        if other is not None and not _is_alike(figure, other):
            found.append(
                f"{figure.name} is not compared: it is in {figure.unit} ({figure.better}) in A and"
                f" in {other.unit} ({other.better}) in B"
            )
    for letter, one, other in (("A", a, b), ("B", b, a)):
        found += [
            f"only {letter} has {figure.name}"
            for figure in one.figures
            if other.figure(figure.name) is None
        ]
    return found


def _machines(a: Machine, b: Machine) -> list[str]:
    facts = ("processor", "cores", "memory", "python", "system")
    return [
        f"other machine, so absolute figures say little: {fact} is {getattr(a, fact)} in A and"
        f" {getattr(b, fact)} in B"
        for fact in facts
        if getattr(a, fact) != getattr(b, fact)
    ]


def _over(above: float, below: float) -> float | None:
    ratio = above / below if below else math.inf
    return ratio if math.isfinite(ratio) else None
