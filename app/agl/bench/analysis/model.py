"""What an analysis holds; it is the ``details`` of its :class:`agl.bench.results.Result`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Half(_Part):
    """The second half of the window less the first, in the units of :class:`Row`."""

    rate: float | None = None
    p50: float | None = None
    p95: float | None = None
    time: float | None = None
    mean: float | None = None


class Row(_Part):
    """One label set of a group; times in seconds, ``time`` in seconds a second."""

    labels: tuple[str, ...]
    rate: float
    peak: float | None = None
    lowest: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    slowest: float | None = None
    """Upper bound of the bucket that the slowest is in."""

    time: float | None = None
    mean: float | None = None
    change: Half = Half()
    share: float | None = None
    """Part of the time of the store's method it was made for, of 1."""


class Group(_Part):
    """A histogram by some of its labels, the largest ``time`` first."""

    section: str
    metric: str
    by: tuple[str, ...]
    rows: tuple[Row, ...]


class Value(_Part):
    """One number with its unit; ``value`` is ``None`` where the series gave none."""

    section: str
    name: str
    value: float | None
    unit: str


class Layer(_Part):
    """A layer's own time, that of the layers below it left out, in seconds a second."""

    name: str
    time: float
    share: float


class Slice(_Part):
    """The store's size and a method's mean latency (s) in one part of the window."""

    size: float
    latency: float


class Growth(_Part):
    """One store method beside the size of the store over the window.

    ``ratio`` is the mean latency where the store was largest to that where it was smallest, each
    over a third of the slices.
    """

    method: str
    slices: tuple[Slice, ...]
    ratio: float | None
    smallest: float
    largest: float


class Course(_Part):
    """Values over the window for a chart; ``at`` seconds since the epoch."""

    chart: str
    name: str
    unit: str
    points: tuple[tuple[float, float | None], ...]


class Clock(_Part):
    """How far the clocks of others are ahead of this machine's, in seconds; ``within`` bounds the
    error of the first."""

    prometheus: float | None = None
    within: float = 0.0
    hosts: dict[str, float] = Field(default_factory=dict[str, float])
    """By instance of node-exporter, ahead of Prometheus."""


class Analysis(_Part):
    """Everything."""

    start: float
    end: float
    prometheus: str
    groups: tuple[Group, ...] = ()
    values: tuple[Value, ...] = ()
    layers: tuple[Layer, ...] = ()
    layer_notes: tuple[str, ...] = ()
    growth: tuple[Growth, ...] = ()
    courses: tuple[Course, ...] = ()
    clock: Clock = Clock()
    absent: tuple[str, ...] = ()
    """Series that do not exist in the window, each with what it would have told."""

    totals: dict[str, float] = Field(default_factory=dict[str, float])
    """The store's own statistics now, where ``--store-url`` was given."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start
