"""Times as Grafana writes them: ``now-6h``, ``now/d``, epoch milliseconds, ISO 8601."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MAX_RANGE = 400 * 86400.0
_RELATIVE = re.compile(r"now(?P<steps>(?:[+-]\d{1,6}[smhdwMyQ]|/[smhdwMyQ])*)")
_STEP = re.compile(r"(?P<sign>[+-])(?P<count>\d+)(?P<unit>[smhdwMyQ])|/(?P<floor>[smhdwMyQ])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwMy])")
_DURATION_SECONDS = {**_SECONDS, "ms": 0.001, "M": 30 * 86400, "y": 365 * 86400}


class TimeError(ValueError):
    """A time or duration that cannot be read; the message says what is understood."""


@dataclass(frozen=True)
class TimeRange:
    """From and to in seconds since the epoch; ``end`` is later than ``start``."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


GRAFANA = ("from", "to")
FROM_TO = ("--from", "--to")
OPTIONS = ("--start", "--end")
"""How the ends of a range are called where somebody gave them."""


def parse_range(start: str, end: str, now: float, names: tuple[str, str] = GRAFANA) -> TimeRange:
    """Both ends of a range; ``now`` in seconds since the epoch.

    Raises:
        TimeError: An end that cannot be read, an end before its start, or more than 400 days.
    """
    found = TimeRange(
        parse_time(start, now, name=names[0]),
        parse_time(end, now, name=names[1], round_up=True),
    )
    if found.seconds <= 0:
        raise TimeError(f"{names[0]} ({start}) must be before {names[1]} ({end})")
    if found.seconds > MAX_RANGE:
        raise TimeError(
            f"{found.seconds / 86400:.0f} days are more than the {MAX_RANGE / 86400:.0f} that can"
            " be drawn; choose a shorter range"
        )
    return found


def parse_time(text: str, now: float, *, name: str = "time", round_up: bool = False) -> float:
    """Seconds since the epoch. ``now/d`` is the day's start, or its end with ``round_up``; in UTC.

    Raises:
        TimeError: The text is none of the forms that are understood; it names ``name``.
    """
    text = text.strip()
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative:
            return _relative(relative["steps"], now, round_up)
        if re.fullmatch(r"\d{1,16}", text):
            return _epoch(int(text))
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise TimeError(
            f"{name}: {text[:40]!r} is not a time such as now-6h, 2026-05-01T12:00:00Z or epoch"
            " milliseconds"
        ) from None


def parse_duration(text: str) -> float:
    """Seconds of ``15s``, ``1m30s``, ``500ms``, ``1d``; a bare number is seconds.

    Raises:
        TimeError: It is no duration, or none above zero.
    """
    text = text.strip().removeprefix(">")
    parts = _DURATION_PART.findall(text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)
    else:
        raise TimeError(f"{text[:40]!r} is not a duration such as 15s, 5m or 1h30m")
    if seconds <= 0:
        raise TimeError(f"the duration {text[:40]!r} must be above zero")
    return seconds


def _epoch(number: int) -> float:
    """Milliseconds, as in Grafana's links; ten digits or fewer can only be seconds."""
    seconds = number / 1000 if number >= 10**11 else float(number)
    datetime.fromtimestamp(seconds, UTC)
    return seconds


def _relative(steps: str, now: float, round_up: bool) -> float:
    moment = datetime.fromtimestamp(now, UTC)
    for step in _STEP.finditer(steps):
        if step["floor"]:
            moment = _floor(moment, step["floor"])
            if round_up:
                moment = _moved(moment, 1, step["floor"])
        else:
            count = int(step["count"])
            moment = _moved(moment, -count if step["sign"] == "-" else count, step["unit"])
    return moment.timestamp()


def _moved(moment: datetime, count: int, unit: str) -> datetime:
    if unit in _SECONDS:
        return moment + timedelta(seconds=count * _SECONDS[unit])
    months = moment.year * 12 + moment.month - 1 + count * {"M": 1, "Q": 3, "y": 12}[unit]
    year, month = divmod(months, 12)
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _floor(moment: datetime, unit: str) -> datetime:
    if unit == "w":
        moment -= timedelta(days=moment.weekday())
    if unit == "Q":
        moment = moment.replace(month=(moment.month - 1) // 3 * 3 + 1)
    keep = {"y": 1, "Q": 2, "M": 2, "w": 3, "d": 3, "h": 4, "m": 5, "s": 6}[unit]
    year, *rest = moment.timetuple()[:keep]
    month, day, hour, minute, second = (*rest, *(1, 1, 0, 0, 0)[len(rest) :])
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
