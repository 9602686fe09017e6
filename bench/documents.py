"""What the measurements here found, as the one document that comparing and reports read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agl.bench.results import Better, Figure, Result

Report = Mapping[str, Any]
_UNITS: dict[str, tuple[str, float]] = {
    "_ms": ("s", 1e-3),
    "_us": ("s", 1e-6),
    "_us_per_request": ("s", 1e-6),
    "_us_per_span": ("s", 1e-6),
    "_seconds": ("s", 1.0),
    "_per_second": ("1/s", 1.0),
    "_mib": ("bytes", 1 << 20),
    "_share": ("share", 1.0),
    "bytes_per_rollout": ("bytes", 1.0),
}
"""By the end of a name: the document's unit, and what a value is worth in it."""

_HIGHER = ("_per_second",)


def figure(name: str, values: Iterable[float], better: Better | None = None) -> Figure:
    """A figure whose unit, and whether more of it is better, its name says."""
    unit, factor = unit_of(name)
    good: Better = better or ("higher" if name.endswith(_HIGHER) else "lower")
    return Figure(
        name=_without_unit(name), unit=unit, better=good, samples=tuple(v * factor for v in values)
    )


def unit_of(name: str) -> tuple[str, float]:
    """The unit that a name ends with, and the factor to it; a plain ratio when it names none."""
    ends = [end for end in _UNITS if name.endswith(end)]
    return _UNITS[max(ends, key=len)] if ends else ("ratio", 1.0)


def document(
    kind: str,
    parameters: Mapping[str, Any],
    figures: Sequence[Figure],
    started: float,
    report: Report,
    problems: Sequence[str] = (),
) -> Result:
    """The document around what was measured; ``report`` is kept as its details."""
    return Result(
        kind=kind,
        name=kind,
        parameters=dict(parameters),
        figures=tuple(f for f in figures if all(map(math.isfinite, f.samples))),
        started=started,
        ended=time.time(),
        problems=tuple(problems),
        details=dict(report),
    )


def in_rounds(
    rounds: Sequence[Mapping[str, Report]],
    variants: Iterable[str],
    wanted: Mapping[str, Any],
    ratios: Mapping[str, tuple[str, str, str]],
    lower: Iterable[str] = (),
) -> list[Figure]:
    """Figures of servers measured in turns: ratios within a round first, then those of each.

    Args:
        rounds: For each variant what a run of it gave.
        variants: Their names.
        wanted: What gives a figure from a run, by the figure's name.
        ratios: By name: a figure, the variant above and the variant below.
        lower: Ratios of which less is better.
    """
    found: list[Figure] = []
    for name, (which, over, under) in ratios.items():
        if {over, under} <= rounds[0].keys():
            pairs = [(wanted[which](runs[over]), wanted[which](runs[under])) for runs in rounds]
            found.append(
                Figure(
                    name=name,
                    unit="ratio",
                    better="lower" if name in lower else "higher",
                    samples=tuple(above / below for above, below in pairs),
                )
            )
    for variant in variants:
        for name, of in wanted.items():
            values = [value for runs in rounds if (value := of(runs[variant])) is not None]
            if values:
                made = figure(name, values, "neither" if name.startswith("loader") else None)
                found.append(made.model_copy(update={"name": f"{variant}: {made.name}"}))
    return found


def flat(prefix: str, report: Report) -> list[Figure]:
    """A figure for each number of a nested report, named by its path."""
    found: list[Figure] = []
    for name, value in report.items():
        path = f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            found += flat(path, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(figure(path, [float(value)]))
    return found


def _without_unit(name: str) -> str:
    for end in sorted(("_ms", "_us", "_mib", "_seconds"), key=len, reverse=True):
        if name.endswith(end):
            return name.removesuffix(end)
    return name.replace("_us_per_", " per ").replace("_per_second", " a second")
