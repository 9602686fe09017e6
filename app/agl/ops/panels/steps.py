"""The step of a query and the windows in it, computed as Grafana's Prometheus datasource does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agl.ops.panels.timerange import TimeRange, parse_duration

DEFAULT_SCRAPE = 15.0
MAX_POINTS = 11_000
"""Prometheus refuses more points of one series."""

_RATE = {"$__rate_interval", "${__rate_interval}"}
_AUTOMATIC = {"$__interval", "${__interval}", "$__interval_ms", "${__interval_ms}"}

# Grafana's rounding: an interval (ms) below the first number becomes the second.
_ROUNDED = (
    (10, 1), (15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500),
    (1_500, 1_000), (3_500, 2_000), (7_500, 5_000), (12_500, 10_000), (17_500, 15_000),
    (25_000, 20_000), (45_000, 30_000), (90_000, 60_000), (210_000, 120_000),
    (450_000, 300_000), (750_000, 600_000), (1_050_000, 900_000), (1_500_000, 1_200_000),
    (2_700_000, 1_800_000), (5_400_000, 3_600_000), (9_000_000, 7_200_000),
    (16_200_000, 10_800_000), (32_400_000, 21_600_000), (86_400_000, 43_200_000),
    (604_800_000, 86_400_000), (1_814_400_000, 604_800_000), (3_628_800_000, 2_592_000_000),
)  # fmt: skip
_YEAR_MS = 31_536_000_000


@dataclass(frozen=True)
class Step:
    """How one query is asked; all in seconds.

    Attributes:
        step: Distance of two points; also ``$__interval``.
        rate_interval: ``$__rate_interval``.
    """

    step: float
    rate_interval: float


def rounded(seconds: float) -> float:
    """The interval rounded to one that people read easily, as Grafana rounds it."""
    milliseconds = seconds * 1000
    for limit, value in _ROUNDED:
        if milliseconds < limit:
            return value / 1000
    return _YEAR_MS / 1000


def step_of(
    span: TimeRange,
    max_points: int,
    scrape: float,
    min_interval: str = "",
    factor: int = 1,
) -> Step:
    """The step for a query over ``span``.

    Args:
        span: The time range.
        max_points: Points that fit in the panel (``maxDataPoints``, else its width in pixels).
        scrape: The scrape interval, ``timeInterval`` of the datasource.
        min_interval: The query's or the panel's ``interval`` ("Min step"); empty means the scrape
            interval; ``$__rate_interval`` and ``$__interval`` are understood.
        factor: ``intervalFactor`` of old dashboards.

    Raises:
        TimeError: ``min_interval`` is no duration.
    """
    automatic = min_interval in _AUTOMATIC or min_interval in _RATE or not min_interval
    least = scrape if automatic else parse_duration(min_interval)
    calculated = span.seconds / max(1, max_points)
    calculated = least if calculated < least else rounded(calculated)
    step = max(calculated, _safe(span))
    if min_interval in _RATE:
        step = _rate_interval(step, scrape)
    else:
        step *= max(1, factor)
    return Step(step, _rate_interval(step, scrape if automatic else least))


def aligned(span: TimeRange, step: float) -> TimeRange:
    """The range with both ends on multiples of ``step``: a refresh asks for the same points."""
    start = math.floor(span.start / step) * step
    return TimeRange(start, max(math.floor(span.end / step) * step, start))


def _rate_interval(interval: float, scrape: float) -> float:
    return max(interval + scrape, 4 * scrape)


def _safe(span: TimeRange) -> float:
    """The least step with which Prometheus does not refuse the range."""
    least = span.seconds / MAX_POINTS
    step = rounded(least)
    return step if step >= least else step * math.ceil(least / step)
