"""Events kept in plain lists for a moment, and written to ``prometheus_client`` many at a time.

Noting an event is one ``list.append``. A thread carries what has come in over to the metrics'
values every :data:`FLUSH_SECONDS`; so does every scrape of this process, the end of a server and
the end of the process. Only a process that is killed outright loses what is younger than that.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2


class Sink(Protocol):
    """Where the values of one label set go."""

    def write(self, values: list[float]) -> None:
        """Take over values; the list is the sink's to sort."""
        ...


class TimedSink:
    """A counter and a histogram of ``prometheus_client`` that share a label set.

    Args:
        counter: Counts the values.
        histogram: Spreads them over its buckets.
    """

    def __init__(self, counter: Any, histogram: Any) -> None:
        self._count = counter.inc
        self._histogram = histogram
        self._bounds: list[float] = histogram._upper_bounds
        self._buckets: list[Any] = histogram._buckets
        self._sum: Any = histogram._sum

    def write(self, values: list[float]) -> None:
        total = sum(values)
        if total != total:  # not a number somewhere, which has no place in an order
            for value in values:
                self._histogram.observe(value)
        else:
            values.sort()
            self._spread(values)
            self._sum.inc(total)
        self._count(len(values))

    def _spread(self, values: list[float]) -> None:
        done = bucket = 0
        while done < len(values):
            bucket = bisect_left(self._bounds, values[done], bucket)
            upto = bisect_right(values, self._bounds[bucket], done)
            self._buckets[bucket].inc(upto - done)
            done = upto


class EventBuffer:
    """The events of one process that are not written yet."""

    def __init__(self) -> None:
        self._cells: list[tuple[list[float], Sink]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failed = False
        os.register_at_fork(
            before=self._lock_for_fork,
            after_in_parent=self._unlock_after_fork,
            after_in_child=self._start_again,
        )
        atexit.register(self.flush)

    def cell(self, sink: Sink) -> list[float]:
        """A list whose values reach ``sink`` before long; only ever to be appended to."""
        values: list[float] = []
        with self._lock:
            self._cells.append((values, sink))
            self._start_thread()
        return values

    def flush(self) -> None:
        """Write everything that came in before this call."""
        with self._lock:
            for values, sink in self._cells:
                count = len(values)
                if count:
                    batch = values[:count]
                    del values[:count]  # what is appended meanwhile stays
                    self._write(sink, batch)

    def _write(self, sink: Sink, batch: list[float]) -> None:
        try:
            sink.write(batch)
        except Exception:
            if not self._failed:
                logger.exception("Metrics cannot be written; counts are being lost.")
            self._failed = True
        else:
            self._failed = False

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agl-metrics", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self.flush()

    # A fork must not happen in the middle of a write, and what the parent has not written yet is
    # not the child's.

    def _lock_for_fork(self) -> None:
        self._lock.acquire()

    def _unlock_after_fork(self) -> None:
        self._lock.release()

    def _start_again(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        for values, _ in self._cells:
            values.clear()
        if self._thread is not None:
            self._thread = None
            self._start_thread()


events = EventBuffer()
"""Of this process."""


class FlushedCollector:
    """A metric of ``prometheus_client`` whose events are written before it is collected."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def describe(self) -> Iterable[Metric]:
        return self._metric.describe()

    def collect(self) -> Iterator[Metric]:
        events.flush()
        yield from self._metric.collect()
