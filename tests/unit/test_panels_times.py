"""Times, durations, steps and windows: what Grafana computes, computed here."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agl.ops.panels.steps import MAX_POINTS, aligned, rounded, step_of
from agl.ops.panels.timerange import (
    MAX_RANGE,
    TimeError,
    TimeRange,
    parse_duration,
    parse_range,
    parse_time,
)
from agl.ops.panels.views import duration, windows

NOW = datetime(2026, 5, 13, 14, 35, 27, tzinfo=UTC).timestamp()


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", NOW),
        ("now-6h", NOW - 6 * 3600),
        ("now-1d+30m", NOW - 86400 + 1800),
        ("now/d", at(2026, 5, 13)),
        ("now-1d/d", at(2026, 5, 12)),
        ("now/w", at(2026, 5, 11)),
        ("now-1M/M", at(2026, 4, 1)),
        ("now/y", at(2026, 1, 1)),
        ("now/Q", at(2026, 4, 1)),
        ("now/h", at(2026, 5, 13, 14)),
        ("1767225600000", 1_767_225_600.0),
        ("1767225600", 1_767_225_600.0),
        ("2026-01-01T00:00:00Z", 1_767_225_600.0),
        ("2026-01-01 02:00:00+02:00", 1_767_225_600.0),
        ("2026-01-01", 1_767_225_600.0),
    ],
)
def test_times(text: str, wanted: float) -> None:
    assert parse_time(text, NOW) == wanted


def test_an_end_that_is_rounded_is_rounded_up() -> None:
    assert parse_time("now/d", NOW, round_up=True) == at(2026, 5, 14)
    day = parse_range("now-1d/d", "now-1d/d", NOW)
    assert day == TimeRange(at(2026, 5, 12), at(2026, 5, 13))


@pytest.mark.parametrize("text", ["", "yesterday", "now-", "now-6x", "9" * 17, "2026-13-01", "-5"])
def test_no_times(text: str) -> None:
    with pytest.raises(TimeError, match=r"from: .* is not a time such as now-6h"):
        parse_time(text, NOW, name="from")


def test_ranges_that_cannot_be_drawn() -> None:
    with pytest.raises(TimeError, match="must be before"):
        parse_range("now", "now-1h", NOW)
    with pytest.raises(TimeError, match="500 days are more than the 400"):
        parse_range("now-500d", "now", NOW)
    assert parse_range("now-30d", "now", NOW).seconds == 30 * 86400 < MAX_RANGE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1d", 86400),
        ("2.5h", 9000),
        ("7", 7),
        (">5m", 300),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "-1m", "1m 30s", "1parsec"])
def test_no_durations(text: str) -> None:
    with pytest.raises(TimeError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(0.009, 0.001), (0.5, 0.5), (1.4, 1), (7.4, 5), (14, 15), (44, 30), (200, 120), (4000, 3600),
     (50_000, 43_200), (90_000, 86_400)],
)  # fmt: skip
def test_intervals_are_rounded_as_grafana_rounds_them(seconds: float, wanted: float) -> None:
    assert rounded(seconds) == wanted


@pytest.mark.parametrize(
    ("length", "points", "scrape", "min_interval", "step", "rate"),
    [
        (3600, 600, 5, "", 5, 20),  # 6 s are rounded to 5 s; four scrapes are longer than step + 1
        (3600, 1800, 15, "", 15, 60),  # never below the scrape interval
        (6 * 3600, 600, 15, "", 30, 60),
        (86400, 600, 15, "", 120, 135),  # step plus one scrape
        (30 * 86400, 700, 5, "", 3600, 3605),
        (3600, 600, 15, "2m", 120, 480),  # the query's own least step counts as its scrape
        (3600, 600, 15, "$__rate_interval", 60, 75),
        (3600, 600, 15, "$__interval", 15, 60),
        (400 * 86400, 4000, 5, "", 7200, 7205),
    ],
)
def test_steps(
    length: float, points: int, scrape: float, min_interval: str, step: float, rate: float
) -> None:
    found = step_of(TimeRange(0, length), points, scrape, min_interval)
    assert (found.step, found.rate_interval) == (step, rate)


@pytest.mark.parametrize("days", [1, 30, 400])
def test_no_step_asks_for_more_points_than_prometheus_gives(days: int) -> None:
    span = TimeRange(0, days * 86400)
    for points in (100, 4000, 1_000_000):
        assert span.seconds / step_of(span, points, 0.001, "1ms").step <= MAX_POINTS


def test_a_refresh_asks_for_the_same_points() -> None:
    first, second = (aligned(TimeRange(start, start + 3600), 60) for start in (1000.0, 1015.0))
    assert first == second == TimeRange(960, 4560)


def test_the_variables_of_a_window() -> None:
    span = TimeRange(1000, 4600)
    found = {k: v.values[0] for k, v in windows(span, step_of(span, 600, 15)).items()}
    assert found == {
        "__interval": "15s", "__interval_ms": "15000", "__rate_interval": "60s",
        "__rate_interval_ms": "60000", "__range": "3600s", "__range_s": "3600",
        "__range_ms": "3600000", "__from": "1000000", "__to": "4600000",
    }  # fmt: skip
    assert duration(0.5) == "500ms"
