"""Metrics backends: where counters and histograms go.

Every backend takes the same calls. The ``async`` pair is the public interface known from
agent-lightning; the synchronous twins do the same without an event loop and are what the store and
the server use on their hot paths. Labels a metric was not registered with are ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agl.utils.metrics_base import (
    LATENCY_BUCKETS,
    DefinedMetricsBackend,
    Definition,
    Labels,
    MetricsBackend,
    Record,
)
from agl.utils.metrics_buffer import FlushedCollector, TimedSink, events
from agl.utils.metrics_catalogue import CATALOGUE, OTHERS, bounded
from agl.utils.metrics_console import ConsoleMetricsBackend
from agl.utils.multiprocess import (
    get_prometheus_registry,
    setup_multiprocess_prometheus,
    shutdown_metrics,
    use_metrics_slots,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = [
    "LATENCY_BUCKETS",
    "ConsoleMetricsBackend",
    "MetricsBackend",
    "MultiMetricsBackend",
    "PrometheusMetricsBackend",
    "Record",
    "get_prometheus_registry",
    "setup_multiprocess_prometheus",
    "shutdown_metrics",
]

LabelValues = tuple[str, ...]
_OTHERS = CATALOGUE[OTHERS]


class _Exposed:
    """One metric of a Prometheus registry, with a recording function for each label set."""

    __slots__ = ("_metric", "_timers", "definition", "note_other", "records")

    def __init__(self, definition: Definition, metric: Any) -> None:
        self.note_other: Record | None = None
        """Counts label values that are not in the catalogue; ``None``: it knows nothing of them."""

        self.definition = definition
        self.records: dict[LabelValues, Record] = {}
        self._metric = metric
        self._timers: dict[tuple[str, LabelValues], Record] = {}

    def record(self, labels: Labels | None) -> Record:
        """Writes at once."""
        key = self.definition.label_values(labels)
        record = self.records.get(key)
        if record is None:
            key = self._bounded(key)
            child = self._child(key)
            record = child.inc if self.definition.kind == "Counter" else child.observe
            self.records[key] = record
        return record

    def timer(self, histogram: _Exposed, labels: Labels | None) -> Record:
        """Notes events for this counter and a histogram, to be written a moment later."""
        key = self.definition.label_values(labels)
        name = histogram.definition.name
        timer = self._timers.get((name, key))
        if timer is None:
            key = self._bounded(key)
            timer = self._timers.get((name, key))
        if timer is None:
            spread = histogram._child(histogram._bounded(histogram.definition.label_values(labels)))
            timer = events.cell(TimedSink(self._child(key), spread)).append
            self._timers[name, key] = timer
        return timer

    def _bounded(self, key: LabelValues) -> LabelValues:
        """The key with values that are not in the catalogue replaced, which is counted."""
        if self.note_other is None:
            return key
        known = bounded(self.definition.name, key)
        if known != key:
            self.note_other(1.0)
        return known

    def _child(self, key: LabelValues) -> Any:
        return self._metric.labels(*key) if key else self._metric


_exposed_lock = threading.Lock()
_exposed_by_registry: WeakKeyDictionary[CollectorRegistry, dict[str, _Exposed]] = (
    WeakKeyDictionary()
)


class PrometheusMetricsBackend(DefinedMetricsBackend):
    """Records into ``prometheus_client``: in memory, or in files shared between processes.

    The files are used when ``PROMETHEUS_MULTIPROC_DIR`` was set before the first of these was made.
    Dots in names become underscores. Backends of one process that define a metric in the same way
    share it.

    Args:
        registry: Where to expose the metrics; the library's global registry by default.

    Raises:
        ImportError: ``prometheus_client`` is not installed.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        super().__init__()
        use_metrics_slots()
        self._registry = REGISTRY if registry is None else registry
        self._exposed_counters: dict[str, _Exposed] = {}
        self._exposed_histograms: dict[str, _Exposed] = {}

    def has_prometheus(self) -> bool:
        return True

    def inc(self, name: str, labels: Labels | None = None, amount: float = 1.0) -> None:
        self._counter_of(name).record(labels)(amount)

    def observe(self, name: str, value: float, labels: Labels | None = None) -> None:
        self._histogram_of(name).record(labels)(value)

    def timer(self, counter: str, histogram: str, labels: Labels | None = None) -> Record:
        return self._counter_of(counter).timer(self._histogram_of(histogram), labels)

    def flush(self) -> None:
        events.flush()

    def touch_counter(self, name: str, labels: Labels | None = None) -> None:
        self._counter_of(name).record(labels)

    def touch_histogram(self, name: str, labels: Labels | None = None) -> None:
        self._histogram_of(name).record(labels)

    def _counter_of(self, name: str) -> _Exposed:
        exposed = self._exposed_counters.get(name)
        if exposed is None:
            raise ValueError(f"Counter {name!r} is not registered.")
        return exposed

    def _histogram_of(self, name: str) -> _Exposed:
        exposed = self._exposed_histograms.get(name)
        if exposed is None:
            raise ValueError(f"Histogram {name!r} is not registered.")
        return exposed

    def _default_buckets(self) -> tuple[float, ...]:
        from prometheus_client import Histogram

        return Histogram.DEFAULT_BUCKETS

    def _define(self, definition: Definition) -> None:
        prometheus_name = definition.name.replace(".", "_")
        with _exposed_lock:
            known = _exposed_by_registry.setdefault(self._registry, {})
            exposed = known.get(prometheus_name)
            if exposed is None:
                exposed = known[prometheus_name] = self._expose(prometheus_name, definition)
                self._bind(exposed, known)
        _check_same(prometheus_name, exposed.definition, definition)
        homes = {"Counter": self._exposed_counters, "Histogram": self._exposed_histograms}
        homes[definition.kind][definition.name] = exposed

    def _bind(self, exposed: _Exposed, known: dict[str, _Exposed]) -> None:
        """Hold a metric of the catalogue to the label values it has there."""
        row = CATALOGUE.get(exposed.definition.name)
        if row is None or not row.labels or row.label_names != exposed.definition.label_names:
            return
        others = known.get(_OTHERS.series)
        if others is None:
            definition = Definition(OTHERS, "Counter", _OTHERS.label_names, None, None)
            others = known[_OTHERS.series] = self._expose(_OTHERS.series, definition)
        exposed.note_other = others.record({"metric": row.series})

    def _expose(self, prometheus_name: str, definition: Definition) -> _Exposed:
        from prometheus_client import Counter, Histogram

        row = CATALOGUE.get(definition.name)
        text = f"{definition.kind} {definition.name}" if row is None else row.help
        metric: Any
        if definition.kind == "Counter":
            metric = Counter(prometheus_name, text, definition.label_names, registry=None)
        else:
            metric = Histogram(
                prometheus_name,
                text,
                definition.label_names,
                buckets=definition.buckets or (),
                registry=None,
            )
        self._registry.register(FlushedCollector(metric))
        return _Exposed(definition, metric)


def _check_same(prometheus_name: str, known: Definition, new: Definition) -> None:
    if known.name != new.name:
        raise ValueError(
            f"Prometheus metric name conflict: {new.name!r} and {known.name!r} are both exposed "
            f"as {prometheus_name!r}."
        )
    if known.kind != new.kind:
        raise ValueError(f"Metric {new.name!r} already registered as {known.kind.lower()}.")
    if (known.label_names, known.buckets) != (new.label_names, new.buckets):
        raise ValueError(
            f"{new.kind} {new.name!r} already registered in this process with other labels or "
            "buckets."
        )


class MultiMetricsBackend(MetricsBackend):
    """Forwards every call to several backends, in order.

    Raises:
        ValueError: No backend was given.
    """

    def __init__(self, backends: Sequence[MetricsBackend]) -> None:
        if not backends:
            raise ValueError("MultiMetricsBackend needs at least one backend.")
        self._backends = tuple(backends)

    def has_prometheus(self) -> bool:
        return any(backend.has_prometheus() for backend in self._backends)

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        for backend in self._backends:
            backend.register_counter(name, label_names, group_level)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        for backend in self._backends:
            backend.register_histogram(name, label_names, buckets, group_level)

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Labels | None = None
    ) -> None:
        for backend in self._backends:
            await backend.inc_counter(name, amount, labels)

    async def observe_histogram(
        self, name: str, value: float, labels: Labels | None = None
    ) -> None:
        for backend in self._backends:
            await backend.observe_histogram(name, value, labels)

    def inc(self, name: str, labels: Labels | None = None, amount: float = 1.0) -> None:
        for backend in self._backends:
            backend.inc(name, labels, amount)

    def observe(self, name: str, value: float, labels: Labels | None = None) -> None:
        for backend in self._backends:
            backend.observe(name, value, labels)

    def timer(self, counter: str, histogram: str, labels: Labels | None = None) -> Record:
        timers = [backend.timer(counter, histogram, labels) for backend in self._backends]

        def record(value: float) -> None:
            for timer in timers:
                timer(value)

        return record

    def flush(self) -> None:
        for backend in self._backends:
            backend.flush()

    def touch_counter(self, name: str, labels: Labels | None = None) -> None:
        for backend in self._backends:
            backend.touch_counter(name, labels)

    def touch_histogram(self, name: str, labels: Labels | None = None) -> None:
        for backend in self._backends:
            backend.touch_histogram(name, labels)
