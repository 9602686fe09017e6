"""Metrics as log lines: rates and percentiles of a sliding window."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from agl.utils.metrics_base import DefinedMetricsBackend, Definition, Labels

logger = logging.getLogger("agl.utils.metrics")

LabelPairs = tuple[tuple[str, str], ...]
SeriesKey = tuple[str, LabelPairs]

_CONSOLE_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0)
_SHORT_WINDOW = 1024


class _Window:
    """Events of one series, oldest first."""

    __slots__ = ("timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[float] = []
        self.values: list[float] = []

    @property
    def amounts(self) -> list[float]:
        """What a counter calls its values."""
        return self.values

    def add(self, now: float, value: float) -> None:
        self.timestamps.append(now)
        self.values.append(value)

    def prune(self, cutoff: float) -> None:
        """Forget what is older than ``cutoff``; a long window is only cut when that pays."""
        stale = bisect_left(self.timestamps, cutoff)
        if stale and (len(self.timestamps) <= _SHORT_WINDOW or stale * 8 >= len(self.timestamps)):
            del self.timestamps[:stale]
            del self.values[:stale]

    def since(self, cutoff: float) -> tuple[list[float], list[float]]:
        stale = bisect_left(self.timestamps, cutoff)
        return self.timestamps[stale:], self.values[stale:]


CounterSnapshot = tuple[str, dict[str, str], list[float], list[float]]
HistogramSnapshot = tuple[str, dict[str, str], list[float], tuple[float, ...]]


class ConsoleMetricsBackend(DefinedMetricsBackend):
    """Logs rates and percentiles of a sliding window, all metrics in one line.

    There is no timer: an update logs when the last line is ``log_interval_seconds`` old, so a
    quiet process logs nothing.

    Args:
        window_seconds: Age in seconds at which an event is forgotten; ``None`` keeps all.
        log_interval_seconds: Least time in seconds between two lines.
        group_level: How many labels a line keeps; goes before the metric's own ``group_level``.
    """

    def __init__(
        self,
        window_seconds: float | None = 60.0,
        log_interval_seconds: float = 10.0,
        group_level: int | None = None,
    ) -> None:
        super().__init__()
        self.window_seconds = window_seconds
        self.log_interval_seconds = log_interval_seconds
        self.group_level = group_level
        self._counter_state: dict[SeriesKey, _Window] = {}
        self._hist_state: dict[SeriesKey, _Window] = {}
        self._last_log: float | None = None
        self._lock = threading.Lock()

    def _default_buckets(self) -> tuple[float, ...]:
        return _CONSOLE_BUCKETS

    def inc(self, name: str, labels: Labels | None = None, amount: float = 1.0) -> None:
        self._record(self._counter_state, _series_key(self._counter(name), labels), amount)

    def observe(self, name: str, value: float, labels: Labels | None = None) -> None:
        self._record(self._hist_state, _series_key(self._histogram(name), labels), value)

    def touch_counter(self, name: str, labels: Labels | None = None) -> None:
        """Check name and labels; a series without events has nothing to show here."""
        self._counter(name).label_values(labels)

    def touch_histogram(self, name: str, labels: Labels | None = None) -> None:
        """Check name and labels; a series without values has nothing to show here."""
        self._histogram(name).label_values(labels)

    def _record(self, states: dict[SeriesKey, _Window], key: SeriesKey, value: float) -> None:
        with self._lock:
            now = time.monotonic()
            window = states.get(key)
            if window is None:
                window = states[key] = _Window()
            window.add(now, value)
            window.prune(self._cutoff(now))
            if self._last_log is not None and now - self._last_log < self.log_interval_seconds:
                return
            self._last_log = now
            counters, histograms = self._take_snapshot(now)
        self._log_snapshot(counters, histograms, now)

    def _cutoff(self, now: float) -> float:
        return float("-inf") if self.window_seconds is None else now - self.window_seconds

    def _take_snapshot(self, now: float) -> tuple[list[CounterSnapshot], list[HistogramSnapshot]]:
        cutoff = self._cutoff(now)
        counters: list[CounterSnapshot] = [
            (name, dict(labels), timestamps, amounts)
            for (name, labels), timestamps, amounts in _live(self._counter_state, cutoff)
        ]
        histograms: list[HistogramSnapshot] = [
            (name, dict(labels), values, self._histograms[name].buckets or ())
            for (name, labels), _, values in _live(self._hist_state, cutoff)
        ]
        return counters, histograms

    def _log_snapshot(
        self,
        counter_snaps: Iterable[CounterSnapshot],
        hist_snaps: Iterable[HistogramSnapshot],
        snapshot_time: float,
    ) -> None:
        entries = [
            self._log_counter(name, dict(labels), timestamps, amounts, snapshot_time)
            for (name, labels), (timestamps, amounts) in self._group_counters(counter_snaps).items()
        ]
        entries += [
            self._log_histogram(name, dict(labels), values, buckets, snapshot_time)
            for (name, labels), (values, buckets) in self._group_histograms(hist_snaps).items()
        ]
        if entries:
            self._log("  ".join(sorted(entries)))

    def _group_counters(
        self, snaps: Iterable[CounterSnapshot]
    ) -> dict[SeriesKey, tuple[list[float], list[float]]]:
        groups: dict[SeriesKey, tuple[list[float], list[float]]] = {}
        for name, labels, timestamps, amounts in snaps:
            group = groups.setdefault(self._group_key(self._counters, name, labels), ([], []))
            group[0].extend(timestamps)
            group[1].extend(amounts)
        return groups

    def _group_histograms(
        self, snaps: Iterable[HistogramSnapshot]
    ) -> dict[SeriesKey, tuple[list[float], tuple[float, ...]]]:
        groups: dict[SeriesKey, tuple[list[float], tuple[float, ...]]] = {}
        for name, labels, values, buckets in snaps:
            key = self._group_key(self._histograms, name, labels)
            groups.setdefault(key, ([], buckets))[0].extend(values)
        return groups

    def _group_key(
        self, definitions: Mapping[str, Definition], name: str, labels: Labels
    ) -> SeriesKey:
        level = self.group_level
        if level is None and name in definitions:
            level = definitions[name].group_level
        return name, tuple(self._truncate_labels_for_logging(labels, level).items())

    def _truncate_labels_for_logging(
        self, labels: Labels, group_level: int | None
    ) -> dict[str, str]:
        if group_level is None or group_level < 1:
            return {}
        return dict(list(labels.items())[:group_level])

    def _log_counter(
        self,
        name: str,
        labels: Labels,
        timestamps: Sequence[float],
        amounts: Sequence[float],
        snapshot_time: float,
    ) -> str:
        first = max(min(timestamps, default=snapshot_time), self._cutoff(snapshot_time))
        seconds = max(snapshot_time - first, self.log_interval_seconds or 1e-3)
        return f"{_shown_series(name, labels)}={sum(amounts) / seconds:.2f}/s"

    def _log_histogram(
        self,
        name: str,
        labels: Labels,
        values: Sequence[float],
        buckets: Sequence[float],
        snapshot_time: float,
    ) -> str:
        ordered = sorted(values)
        shown = ",".join(_shown_seconds(_percentile(ordered, q)) for q in (0.5, 0.95, 0.99))
        return f"{_shown_series(name, labels)}={shown}"

    def _log(self, message: str) -> None:
        logger.info("%s", message)


def _series_key(definition: Definition, labels: Labels | None) -> SeriesKey:
    values = definition.label_values(labels)
    return definition.name, tuple(zip(definition.label_names, values, strict=True))


def _live(
    states: dict[SeriesKey, _Window], cutoff: float
) -> list[tuple[SeriesKey, list[float], list[float]]]:
    """Copies of what is inside the window; series without any are forgotten."""
    live: list[tuple[SeriesKey, list[float], list[float]]] = []
    for key, window in list(states.items()):
        timestamps, values = window.since(cutoff)
        if timestamps:
            live.append((key, timestamps, values))
        else:
            del states[key]
    return live


def _percentile(ordered: Sequence[float], quantile: float) -> float:
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * quantile
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _shown_seconds(value: float) -> str:
    for least, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if value >= least:
            return f"{value * factor:.2f}{unit}"
    return f"{value * 1e9:.2f}ns"


def _shown_series(name: str, labels: Labels) -> str:
    if not labels:
        return name
    return f"{name}{{{','.join(f'{label}={value}' for label, value in labels.items())}}}"
