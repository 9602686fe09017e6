"""Histograms by their labels: rates, quantiles, time per second, and the halves of the window."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from agl.bench.analysis.model import Group, Half, Row
from agl.bench.analysis.source import Labels, Window

HTTP, WAITS = "agl_http_latency", "agl_http_waits"
STORE, COLLECTIONS = "agl_store_latency", "agl_collections_latency"
ROLLOUTS, COMMANDS = "agl_rollouts_duration", "agl_mongo_commands_latency"
_PEAK_SECONDS = 60
_ROWS = 60
"""Rows of a group that are kept; the others take the least time."""


@dataclass(frozen=True)
class Asked:
    """A histogram, its section of the report, and the labels it is looked at by."""

    section: str
    metric: str
    by: Labels = ()
    shares: bool = False
    """Whether ``store_pubmeth`` is among the labels, to which shares of time are given."""


GROUPS = (
    Asked("HTTP requests", HTTP),
    Asked("HTTP requests", HTTP, ("path", "method")),
    Asked("HTTP requests", HTTP, ("path", "method", "status")),
    Asked("HTTP requests", WAITS, ("path", "method")),
    Asked("Store methods", STORE, ("method",)),
    Asked("Store methods", STORE, ("method", "status")),
    Asked("Store methods", STORE, ("store_pubmeth", "method", "status"), shares=True),
    Asked("Durations of rollouts", ROLLOUTS),
    Asked("Durations of rollouts", ROLLOUTS, ("status",)),
    Asked("Operations on collections", COLLECTIONS, ("store_pubmeth", "collection"), shares=True),
    Asked("Operations on collections", COLLECTIONS, ("collection", "operation", "status")),
    Asked(
        "Operations on collections",
        COLLECTIONS,
        ("store_pubmeth", "collection", "operation", "status"),
        shares=True,
    ),
    Asked(
        "Operations on collections",
        COLLECTIONS,
        ("store_privmeth", "collection", "operation", "status"),
    ),
    Asked("Commands to MongoDB", COMMANDS, ("command", "status")),
)
METRICS = {
    HTTP: "requests",
    WAITS: "requests that wait on purpose",
    STORE: "store methods",
    COLLECTIONS: "operations on collections",
    ROLLOUTS: "durations of rollouts",
    COMMANDS: "commands to MongoDB",
}
"""Histograms that are asked for, and what they tell."""


@dataclass(frozen=True)
class Reading:
    """One histogram by label sets over one stretch of time."""

    rate: Mapping[Labels, float]
    time: Mapping[Labels, float]
    quantiles: Mapping[float, Mapping[Labels, float]]

    def half(self, labels: Labels, other: Reading) -> Half:
        """This reading less an ``other``."""
        return Half(
            rate=_less(self.rate.get(labels), other.rate.get(labels)),
            p50=_less(self.quantiles[0.5].get(labels), other.quantiles[0.5].get(labels)),
            p95=_less(self.quantiles[0.95].get(labels), other.quantiles[0.95].get(labels)),
            time=_less(self.time.get(labels), other.time.get(labels)),
            mean=_less(self.mean(labels), other.mean(labels)),
        )

    def mean(self, labels: Labels) -> float | None:
        """Seconds of one call."""
        rate, spent = self.rate.get(labels), self.time.get(labels)
        return spent / rate if rate and spent is not None else None


async def groups(window: Window) -> list[Group]:
    """Every group whose histogram has samples in the window."""
    methods = await _method_times(window)
    return [
        await _group(window, asked, methods)
        for asked in GROUPS
        if f"{asked.metric}_count" in window.present
    ]


async def _method_times(window: Window) -> dict[str, float]:
    """Time per second of each public method of the store; that of its steps is within it."""
    if f"{STORE}_count" not in window.present:
        return {}
    times = await window.values(
        _per_second(f"{STORE}_sum", ("method", "store_pubmeth"), window.seconds),
        ("method", "store_pubmeth"),
    )
    return {method: time for (method, public), time in times.items() if method == public}


async def _group(window: Window, asked: Asked, methods: Mapping[str, float]) -> Group:
    seconds, half = window.seconds, max(window.seconds // 2, 1)
    whole, second, first = await asyncio.gather(
        reading(window, asked, seconds, (0.5, 0.95, 0.99, 1.0)),
        reading(window, asked, half, (0.5, 0.95)),
        reading(window, asked, half, (0.5, 0.95), window.span.end - half),
    )
    peaks, lows = await asyncio.gather(
        *(window.values(_extreme(asked, seconds, how), asked.by) for how in ("max", "min"))
    )
    rows = [
        Row(
            labels=labels,
            rate=rate,
            peak=peaks.get(labels),
            lowest=lows.get(labels),
            p50=whole.quantiles[0.5].get(labels),
            p95=whole.quantiles[0.95].get(labels),
            p99=whole.quantiles[0.99].get(labels),
            slowest=whole.quantiles[1.0].get(labels),
            time=whole.time.get(labels),
            mean=whole.mean(labels),
            change=second.half(labels, first),
            share=_share(asked, labels, whole, methods),
        )
        for labels, rate in whole.rate.items()
        if rate > 0
    ]
    rows.sort(key=lambda row: row.time or 0, reverse=True)
    return Group(section=asked.section, metric=asked.metric, by=asked.by, rows=tuple(rows[:_ROWS]))


async def reading(
    window: Window, asked: Asked, seconds: int, wanted: tuple[float, ...], at: float | None = None
) -> Reading:
    """A histogram over the ``seconds`` before ``at`` (by default the window's end)."""
    rate, time, *quantiles = await asyncio.gather(
        window.values(_per_second(f"{asked.metric}_count", asked.by, seconds), asked.by, at),
        window.values(_per_second(f"{asked.metric}_sum", asked.by, seconds), asked.by, at),
        *(window.values(_quantile(asked, q, seconds), asked.by, at) for q in wanted),
    )
    return Reading(rate, time, dict(zip(wanted, quantiles, strict=True)))


def _share(
    asked: Asked, labels: Labels, whole: Reading, methods: Mapping[str, float]
) -> float | None:
    if not asked.shares:
        return None
    of = methods.get(labels[asked.by.index("store_pubmeth")])
    time = whole.time.get(labels)
    return time / of if of and time is not None else None


def _per_second(series: str, by: Labels, seconds: int) -> str:
    return f"sum by ({', '.join(by)}) (increase({series}[{seconds}s])) / {seconds}"


def _quantile(asked: Asked, quantile: float, seconds: int) -> str:
    buckets = f"increase({asked.metric}_bucket[{seconds}s])"
    return f"histogram_quantile({quantile}, sum by ({', '.join(('le', *asked.by))}) ({buckets}))"


def _extreme(asked: Asked, seconds: int, how: str) -> str:
    """The highest or lowest rate, between two scrapes each."""
    peak, step = min(seconds, _PEAK_SECONDS), min(max(seconds // 60, 1), 15)
    rates = f"sum by ({', '.join(asked.by)}) (irate({asked.metric}_count[{peak}s]))"
    return f"{how}_over_time(({rates})[{seconds}s:{step}s])"


def _less(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
