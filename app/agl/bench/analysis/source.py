"""Questions to Prometheus about one window, of which some may fail without taking the others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agl.ops.panels.prometheus import PrometheusError, PrometheusReader, Series
from agl.ops.panels.timerange import TimeRange

Labels = tuple[str, ...]
SLICES = 12
"""Parts that the window is cut into to see latency beside the store's size."""

COURSE_POINTS = 90


@dataclass
class Window:
    """A window of time, and what asking about it has run into.

    Attributes:
        reader: Whom to ask.
        span: The window.
        problems: Questions that failed, each in a line.
        present: Names of the series that have samples in it, once :meth:`look` was called.
    """

    reader: PrometheusReader
    span: TimeRange
    problems: list[str] = field(default_factory=list[str])
    present: frozenset[str] = frozenset()

    @property
    def seconds(self) -> int:
        """Whole seconds of the window, at least one."""
        return max(int(self.span.seconds), 1)

    async def look(self, names: Iterable[str]) -> None:
        """Find out which of these series have samples. Raises PrometheusError."""
        pattern = "|".join(sorted(names))
        query = f'count by (__name__) (last_over_time({{__name__=~"{pattern}"}}[{self.seconds}s]))'
        answer = await self.reader.instant(query, self.span.end)
        self.present = frozenset(series.labels["__name__"] for series in answer.series)

    async def ask(self, query: str, at: float | None = None) -> list[Series]:
        """The series of a query at the window's end; none, and a problem, when it fails."""
        try:
            answer = await self.reader.instant(query, self.span.end if at is None else at)
        except PrometheusError as error:
            self._note(query, error)
            return []
        self.problems += [f"{query}: {warning}" for warning in answer.warnings if _is_news(warning)]
        return answer.series

    async def values(self, query: str, by: Labels, at: float | None = None) -> dict[Labels, float]:
        """Values by their labels; what is no number is left out."""
        found: dict[Labels, float] = {}
        for series in await self.ask(query, at):
            value = series.values[0]
            if value is not None and math.isfinite(float(value)):
                found[tuple(series.labels.get(name, "") for name in by)] = float(value)
        return found

    async def number(self, query: str, at: float | None = None) -> float | None:
        """The one value of a query; ``None`` where it has none."""
        return next(iter((await self.values(query, (), at)).values()), None)

    async def course(self, query: str, step: float) -> list[Series]:
        """The series of a query over the window; none, and a problem, when it fails."""
        try:
            return (await self.reader.range(query, self.span, step)).series
        except PrometheusError as error:
            self._note(query, error)
            return []

    def _note(self, query: str, error: PrometheusError) -> None:
        line = f"the query failed: {query}: {error}"
        if line not in self.problems:
            self.problems.append(line)


async def ahead(reader: PrometheusReader) -> tuple[float, float]:
    """Seconds that Prometheus' clock is ahead of ours, and the largest error of that.

    Raises PrometheusError.
    """
    asked = time.time()
    told = await reader.clock()
    answered = time.time()
    return told - (asked + answered) / 2, (answered - asked) / 2


def _is_news(warning: str) -> bool:
    """Remarks on a query's wording are for who wrote it."""
    return not warning.startswith("PromQL info")
