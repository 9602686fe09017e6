"""The interface of all metrics backends, and what those that keep definitions share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# fmt: off
LATENCY_BUCKETS: tuple[float, ...] = (
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4,
    0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07,
    0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0,
    40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0,
)
# fmt: on
"""Upper bounds in seconds, from a microsecond to five minutes."""

Labels = Mapping[str, str]
Record = Callable[[float], None]
Kind = Literal["Counter", "Histogram"]

_NO_LABELS: dict[str, str] = {}


class MetricsBackend:
    """Interface of all backends, and the base class for your own.

    A subclass must provide the two ``register_*`` methods and the two coroutines. The synchronous
    twins then work as long as the coroutines finish without waiting for anything.
    """

    def has_prometheus(self) -> bool:
        """Whether what is recorded here can be scraped by Prometheus."""
        return False

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        """Declare a counter; declaring it again in the same way changes nothing.

        Args:
            name: Dotted name, such as ``agl.http.total``.
            label_names: Labels, most significant first.
            group_level: How many of the labels a summary keeps; ``None`` or less than 1 means none.

        Raises:
            ValueError: The name is taken by another kind, or has other labels.
        """
        raise NotImplementedError

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        """Declare a histogram; like ``register_counter``, with upper bounds in the value's unit."""
        raise NotImplementedError

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Labels | None = None
    ) -> None:
        """Add ``amount`` to a counter.

        Raises:
            ValueError: The counter is not registered, or a label is missing.
        """
        raise NotImplementedError

    async def observe_histogram(
        self, name: str, value: float, labels: Labels | None = None
    ) -> None:
        """Record one value in a histogram; raises like ``inc_counter``."""
        raise NotImplementedError

    def inc(self, name: str, labels: Labels | None = None, amount: float = 1.0) -> None:
        """Synchronous twin of ``inc_counter``."""
        _finish_now(self.inc_counter(name, amount, labels))

    def observe(self, name: str, value: float, labels: Labels | None = None) -> None:
        """Synchronous twin of ``observe_histogram``."""
        _finish_now(self.observe_histogram(name, value, labels))

    def timer(self, counter: str, histogram: str, labels: Labels | None = None) -> Record:
        """A function that notes one event: one more in ``counter``, its value in ``histogram``.

        For hot paths: the labels are looked at once, here. The backend may keep events back for a
        fraction of a second, but not beyond :meth:`flush`.

        Raises:
            ValueError: One of the two is not registered, or a label is missing.
        """

        def record(value: float) -> None:
            self.inc(counter, labels)
            self.observe(histogram, value, labels)

        return record

    def flush(self) -> None:
        """Write what timers have kept back; called when a server stops."""

    def touch_counter(self, name: str, labels: Labels | None = None) -> None:
        """Create a counter's series at zero, so that its first increment shows as one."""

    def touch_histogram(self, name: str, labels: Labels | None = None) -> None:
        """Create a histogram's series without values."""


def _finish_now(call: Coroutine[Any, Any, None]) -> None:
    try:
        call.send(None)
    except StopIteration:
        return
    call.close()
    raise RuntimeError(
        "this metrics backend waits inside inc_counter or observe_histogram; override the "
        "synchronous inc and observe as well"
    )


@dataclass(slots=True)
class Definition:
    name: str
    kind: Kind
    label_names: tuple[str, ...]
    buckets: tuple[float, ...] | None
    group_level: int | None

    def label_values(self, labels: Labels | None) -> tuple[str, ...]:
        given = _NO_LABELS if labels is None else labels
        try:
            return tuple([given[label] for label in self.label_names])
        except KeyError as exc:
            raise ValueError(
                f"Label {exc.args[0]!r} is required for {self.kind} {self.name!r}."
            ) from None


class DefinedMetricsBackend(MetricsBackend):
    """What the console and Prometheus share: definitions, and coroutines over the sync twins."""

    def __init__(self) -> None:
        self._counters: dict[str, Definition] = {}
        self._histograms: dict[str, Definition] = {}
        self._register_lock = threading.Lock()

    def register_counter(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        group_level: int | None = None,
    ) -> None:
        self._register(Definition(name, "Counter", tuple(label_names or ()), None, group_level))

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        bounds = self._default_buckets() if buckets is None else tuple(buckets)
        self._register(Definition(name, "Histogram", tuple(label_names or ()), bounds, group_level))

    def _register(self, new: Definition) -> None:
        own, other = self._counters, self._histograms
        if new.kind == "Histogram":
            own, other = other, own
        with self._register_lock:
            if new.name in other:
                raise ValueError(
                    f"Metric {new.name!r} already registered as {other[new.name].kind.lower()}."
                )
            known = own.get(new.name)
            if known is None:
                self._define(new)
                own[new.name] = new
            elif known.label_names != new.label_names:
                raise ValueError(
                    f"{new.kind} {new.name!r} already registered with labels "
                    f"{known.label_names}, not {new.label_names}."
                )
            elif known.buckets != new.buckets:
                raise ValueError(f"{new.kind} {new.name!r} already registered with other buckets.")

    def _default_buckets(self) -> tuple[float, ...] | None:
        raise NotImplementedError

    def _define(self, definition: Definition) -> None:
        """Called once for each new metric, before it can be used."""

    def _counter(self, name: str) -> Definition:
        try:
            return self._counters[name]
        except KeyError:
            raise ValueError(f"Counter {name!r} is not registered.") from None

    def _histogram(self, name: str) -> Definition:
        try:
            return self._histograms[name]
        except KeyError:
            raise ValueError(f"Histogram {name!r} is not registered.") from None

    async def inc_counter(
        self, name: str, amount: float = 1.0, labels: Labels | None = None
    ) -> None:
        self.inc(name, labels, amount)

    async def observe_histogram(
        self, name: str, value: float, labels: Labels | None = None
    ) -> None:
        self.observe(name, value, labels)
