"""What boards are written in: queries, PromQL fragments, kinds of panels and rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.models import units

SELECTOR = 'job=~"$job", instance=~"$instance"'
WINDOW = "$__rate_interval"
QUANTILES = ((0.50, "P50"), (0.95, "P95"), (0.99, "P99"))

OPS = units.OpsPerSecond
SECONDS = units.Seconds
NO_UNIT = units.Short
RATIO = units.PercentUnit
BYTES = units.BytesIEC

UNDER_WAY = (
    ("queuing", "orange"),
    ("requeuing", "red"),
    ("preparing", "blue"),
    ("running", "green"),
)
ENDED = (("succeeded", "green"), ("failed", "red"), ("cancelled", "blue"))


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of the series it gives."""

    expr: str
    legend: str


@dataclass(frozen=True)
class State:
    """What a value means: its word and its colour."""

    value: int
    text: str
    color: str


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Label, or ``Value`` (with several queries ``Value #A``, ...).
        title: What stands above it.
        link: Where a click leads; ``${__value.text}`` is the cell's text.
        alerts: Alerts whose thresholds colour it.
        states: Words and colours of its values.
    """

    name: str
    title: str
    unit: str = ""
    link: str = ""
    alerts: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    width: int = 0


@dataclass(frozen=True)
class Panel:
    """What all panels have.

    Attributes:
        width: In grid columns, of which a row has 24.
        no_value: Shown where there is no series.
        alerts: Alerts whose thresholds it shows and whose runbooks it links.
        deeper: The uid of the board to look at next; empty for none.
    """

    title: str
    description: str
    unit: str
    width: int
    queries: tuple[Query, ...]
    no_value: str = ""
    height: int = 8
    alerts: tuple[str, ...] = ()
    deeper: str = ""
    limits: tuple[str, ...] | None = None
    """Those of ``alerts`` whose thresholds are drawn; all of them unless given."""

    maximum: float | None = None
    """Where its scale ends; as its values want it unless given."""

    @property
    def thresholds(self) -> tuple[str, ...]:
        """The alerts whose thresholds are drawn."""
        return self.alerts if self.limits is None else self.limits


@dataclass(frozen=True)
class SeriesPanel(Panel):
    """Values over time as lines; ``stacked`` when their sum means something."""

    stacked: bool = False
    bars: bool = False
    """Bars in the place of lines: for events, of which there is one now and then."""

    colors: tuple[tuple[str, str], ...] = ()
    """Colours of series whose names mean something, such as ``("failed", "red")``."""


@dataclass(frozen=True)
class StatPanel(Panel):
    """Values of now, large; with ``states`` as words."""

    height: int = 4
    states: tuple[State, ...] = ()
    spark: bool = True


@dataclass(frozen=True)
class StatesPanel(Panel):
    """Which state each series was in over time."""

    height: int = 6
    states: tuple[State, ...] = ()


@dataclass(frozen=True)
class TablePanel(Panel):
    """Values of now, a row for each set of labels."""

    columns: tuple[Column, ...] = ()
    sort: str = ""
    """Title of the column to sort by, downwards when ``-`` stands before it."""


@dataclass(frozen=True)
class TextPanel:
    """Words in Markdown; of a variable nothing but its value."""

    title: str
    content: str
    width: int = 24
    height: int = 4


@dataclass(frozen=True)
class Row:
    """A titled row and the panels below it, laid out left to right."""

    title: str
    panels: tuple[Panel | TextPanel, ...] = field(default=())
    collapsed: bool = False


def selected(metric: str, matchers: str = "") -> str:
    """``metric`` of the chosen jobs and instances; ``matchers`` such as ``status!="OK"``."""
    return f"{metric}{{{SELECTOR}, {matchers}}}" if matchers else f"{metric}{{{SELECTOR}}}"


def rate(metric: str, matchers: str = "") -> str:
    """Increase of ``metric`` per second, series by series."""
    return f"rate({selected(metric, matchers)}[{WINDOW}])"


def growth(metric: str, matchers: str = "") -> str:
    """What a store-wide figure that only grows gains per second; a restart of it is nothing."""
    return once(f"clamp_min(deriv({selected(metric, matchers)}[{WINDOW}]), 0)")


def rate_by(metric: str, labels: Sequence[str], matchers: str = "") -> str:
    """Return events per second of ``metric``, summed by ``labels``; by nothing when empty."""
    return total(rate(metric, matchers), labels)


def total(expr: str, labels: Sequence[str] = ()) -> str:
    """``expr`` summed by ``labels``; by nothing when empty."""
    return f"sum by ({', '.join(labels)}) ({expr})" if labels else f"sum({expr})"


def highest(expr: str, labels: Sequence[str] = ()) -> str:
    """The largest of ``expr`` by ``labels``: for what every exporter says the same of."""
    return f"max by ({', '.join(labels)}) ({expr})" if labels else f"max({expr})"


def once(expr: str) -> str:
    """A store-wide value, which every exporter serves alike."""
    return f"max without (instance) ({expr})"


def state(metric: str, labels: Sequence[str] = (), matchers: str = "") -> str:
    """A store-wide value: every exporter serves the same, so they are never added up."""
    return highest(once(selected(f"agl_state_{metric}", matchers)), labels)


def at_least_zero(oldest: str, counted: str) -> str:
    """The store-wide value ``oldest``; zero where there is nothing to be old, by ``counted``."""
    return f"{state(oldest)} or {state(counted)} * 0"


def only_some(expr: str, most: int = 20) -> str:
    """Series that are not zero, and of those the largest: what is well draws nothing."""
    return f"topk({most}, {expr} > 0)"


def quantile(q: float, histogram: str, labels: Sequence[str] = (), matchers: str = "") -> str:
    """Return quantile ``q`` of a histogram given without ``_bucket``, grouped by ``labels``."""
    return (
        f"histogram_quantile({q:.2f}, {rate_by(f'{histogram}_bucket', ('le', *labels), matchers)})"
    )


def quantile_queries(histogram: str, matchers: str = "") -> tuple[Query, ...]:
    """Return P50, P95 and P99 of ``histogram`` over everything the matchers select."""
    return tuple(Query(quantile(q, histogram, (), matchers), name) for q, name in QUANTILES)


def legend_of(labels: Iterable[str]) -> str:
    """Return a legend that shows these labels' values, separated by spaces."""
    return " ".join(f"{{{{{label}}}}}" for label in labels)
