"""What the exporter serves about the store as a whole: the figures that the store told last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from agl.utils.folder_text import Encoder, Given
from agl.utils.metrics_catalogue import CATALOGUE, STORE, Row

STALE_SECONDS = 60.0
"""Older values vanish: a rule that reads them must not take the past for the present."""

_PREFIX = "agl_state_"
_UP, _AGE = CATALOGUE[f"{_PREFIX}up"], CATALOGUE[f"{_PREFIX}age_seconds"]
_ROWS = tuple(row for row in CATALOGUE.values() if row.process == STORE and row not in (_UP, _AGE))
_END = "# EOF\n"


class StateGauges:
    """The figures told last, and how long ago.

    Args:
        clock: Seconds, from wherever.
        limit: Age in seconds above which the figures are not served any more.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, limit: float = STALE_SECONDS
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._since = clock()
        self._up = False
        self._metrics: tuple[Metric, ...] = ()
        self._encoders: dict[str, Encoder] = {}
        self._texts: dict[str, str] = {}

    def told(self, state: Mapping[str, Any]) -> None:
        """The store has answered, with these figures by the names of the gauges."""
        self._metrics = tuple(_gauges(state))
        self._texts = {kind: self._text(encoder) for kind, encoder in self._encoders.items()}
        self._since = self._clock()
        self._up = True

    def failed(self) -> None:
        """The store has not answered."""
        self._up = False

    def text(self, encoder: Encoder, content_type: str) -> str:
        """All gauges in one format, without the end mark of OpenMetrics."""
        age = max(self._clock() - self._since, 0.0)
        about = (_plain(_UP, float(self._up)), _plain(_AGE, age))
        head = encoder(Given(about)).decode().removesuffix(_END)
        if age > self._limit:
            return head
        return head + self._values(encoder, content_type)

    def _values(self, encoder: Encoder, content_type: str) -> str:
        """Encoded when the store tells something new, so that scrapes only copy it."""
        if content_type not in self._encoders:
            self._encoders[content_type] = encoder
            self._texts[content_type] = self._text(encoder)
        return self._texts[content_type]

    def _text(self, encoder: Encoder) -> str:
        return encoder(Given(self._metrics)).decode().removesuffix(_END)


def _plain(row: Row, value: float) -> Metric:
    return GaugeMetricFamily(row.series, row.help, value=value)


def _gauges(state: Mapping[str, Any]) -> Iterator[Metric]:
    for row in _ROWS:
        value = state.get(row.series.removeprefix(_PREFIX))
        if value is None:
            continue
        family = GaugeMetricFamily(row.series, row.help, labels=row.label_names)
        for labels, number in _numbers(value, row):
            family.add_metric(labels, number)
        yield family


def _numbers(value: Any, row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    """Numbers in nested mappings, one level for each label."""
    found: list[tuple[tuple[str, ...], Any]] = [((), value)]
    for _ in row.labels:
        found = [
            ((*labels, name), inner)
            for labels, each in found
            for name, inner in cast("Mapping[str, Any]", each).items()
        ]
    for labels, number in found:
        yield labels, float(number)
