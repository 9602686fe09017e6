"""What every board shares: variables, PromQL fragments and the look of a series panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

DATASOURCE = dashboard_model.DataSourceRef(type_val="prometheus", uid="$datasource")
SELECTOR = 'job=~"$job", instance=~"$instance"'
WINDOW = "$__rate_interval"
QUANTILES = ((0.50, "P50"), (0.95, "P95"), (0.99, "P99"))

PANEL_HEIGHT = 8
GRID_WIDTH = 24

OPS = units.OpsPerSecond
SECONDS = units.Seconds


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of the series it gives."""

    expr: str
    legend: str


@dataclass(frozen=True)
class SeriesPanel:
    """One time series panel; ``width`` is in grid columns, of which a row has 24."""

    title: str
    description: str
    unit: str
    width: int
    queries: tuple[Query, ...]
    no_value: str = ""


@dataclass(frozen=True)
class Row:
    """A titled row and the panels below it, laid out left to right."""

    title: str
    panels: tuple[SeriesPanel, ...]


def rate_by(metric: str, labels: Sequence[str], matchers: str = "") -> str:
    """Return events per second of ``metric``, summed by ``labels``.

    ``matchers`` are further label matchers, such as ``status!="OK"``.
    """
    return f"sum by ({', '.join(labels)}) (rate({metric}{{{_selector(matchers)}}}[{WINDOW}]))"


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


def datasource_variable() -> dashboard_builder.DatasourceVariable:
    """Return the ``$datasource`` variable, which offers every Prometheus Grafana knows."""
    return (
        dashboard_builder.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )


def label_variable(label: str, metric: str, matchers: str = "") -> dashboard_builder.QueryVariable:
    """Return a variable over the values that ``label`` has on ``metric``; all of them at first."""
    source = f"{metric}{{{matchers}}}" if matchers else metric
    everything = dashboard_model.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard_builder.QueryVariable(label)
        .label(label)
        .datasource(DATASOURCE)
        .query(f"label_values({source}, {label})")
        .refresh(dashboard_model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard_model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(everything)
    )


def add_rows(board: dashboard_builder.Dashboard, rows: Iterable[Row]) -> None:
    """Add each row and its panels to ``board``, numbered from 1 and placed below each other."""
    panel_id = 1
    top = 0
    for row in rows:
        position = dashboard_model.GridPos(h=1, w=GRID_WIDTH, x=0, y=top)
        board.with_row(dashboard_builder.Row(row.title).id(panel_id).grid_pos(position))
        panel_id += 1
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.width > GRID_WIDTH:
                left = 0
                top += PANEL_HEIGHT
            board.with_panel(_timeseries(panel, panel_id, left, top))
            panel_id += 1
            left += panel.width
        top += PANEL_HEIGHT


def _selector(matchers: str) -> str:
    return f"{SELECTOR}, {matchers}" if matchers else SELECTOR


def _timeseries(panel: SeriesPanel, panel_id: int, left: int, top: int) -> timeseries_builder.Panel:
    position = dashboard_model.GridPos(h=PANEL_HEIGHT, w=panel.width, x=left, y=top)
    builder = (
        timeseries_builder.Panel()
        .id(panel_id)
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .min(0)
        .grid_pos(position)
        .line_width(1)
        .fill_opacity(10)
        .show_points(common_model.VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(common_builder.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE))
    )
    if panel.no_value:
        builder.no_value(panel.no_value)
    for index, query in enumerate(panel.queries):
        builder.with_target(_target(query, chr(ord("A") + index)))
    return builder


def _legend() -> common_builder.VizLegendOptions:
    return (
        common_builder.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _target(query: Query, ref_id: str) -> prometheus_builder.Dataquery:
    return (
        prometheus_builder.Dataquery()
        .ref_id(ref_id)
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
    )
