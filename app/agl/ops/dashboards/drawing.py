"""From a panel as a board describes it to the JSON that Grafana reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline as states_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.builders import text as text_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import text as text_model

from agl.ops.dashboards.panels import (
    Column,
    Panel,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    StatPanel,
    TablePanel,
    TextPanel,
)
from agl.ops.dashboards.thresholds import Alerts

DATASOURCE = dashboard_model.DataSourceRef(type_val="prometheus", uid="$datasource")
GRID_WIDTH = 24
Builder = timeseries_builder.Panel | stat_builder.Panel | states_builder.Panel | table_builder.Panel


def add_rows(board: dashboard_builder.Dashboard, rows: Iterable[Row], alerts: Alerts) -> None:
    """Add each row and its panels to ``board``, numbered from 1 and placed below each other.

    Raises:
        EnvironmentFault: a panel names an alert that does not exist.
    """
    number, top = 1, 0
    for row in rows:
        place = dashboard_model.GridPos(h=1, w=GRID_WIDTH, x=0, y=top)
        titled = dashboard_builder.Row(row.title).id(number).grid_pos(place)
        placed, below = _placed(row.panels, top + 1)
        drawn = [
            _drawn(panel, alerts).id(number + 1 + index).grid_pos(where)
            for index, (panel, where) in enumerate(placed)
        ]
        if row.collapsed:
            titled.collapsed(True)
            for panel in drawn:
                titled.with_panel(panel)
            board.with_row(titled)
            top += 1
        else:
            board.with_row(titled)
            for panel in drawn:
                board.with_panel(panel)
            top = below
        number += 1 + len(drawn)


def _placed(
    panels: Sequence[Panel | TextPanel], top: int
) -> tuple[list[tuple[Panel | TextPanel, dashboard_model.GridPos]], int]:
    """Each panel's place, left to right and line by line; and where the next row begins."""
    found: list[tuple[Panel | TextPanel, dashboard_model.GridPos]] = []
    left, high = 0, 0
    for panel in panels:
        if left + panel.width > GRID_WIDTH:
            left, top, high = 0, top + high, 0
        found.append((panel, dashboard_model.GridPos(h=panel.height, w=panel.width, x=left, y=top)))
        left += panel.width
        high = max(high, panel.height)
    return found, top + high


@singledispatch
def _drawn(panel: Any, alerts: Alerts) -> Any:
    raise TypeError(f"no way to draw a {type(panel).__name__}")


@_drawn.register
def _(panel: TextPanel, alerts: Alerts) -> text_builder.Panel:
    return (
        text_builder.Panel()
        .title(panel.title)
        .mode(text_model.TextMode.MARKDOWN)
        .content(panel.content)
    )


@_drawn.register
def _(panel: SeriesPanel, alerts: Alerts) -> timeseries_builder.Panel:
    builder = timeseries_builder.Panel()
    _common(builder, panel, alerts)
    _targets(builder, panel.queries)
    if panel.stacked:
        builder.stacking(
            common_builder.StackingConfig().group("A").mode(common_model.StackingMode.NORMAL)
        )
    for name, color in panel.colors:
        fixed = {"mode": "fixed", "fixedColor": color}
        builder.override_by_name(name, [dashboard_model.DynamicConfigValue("color", fixed)])
    if any(limit.value for limit in alerts.limits(panel.thresholds)):
        builder.thresholds_style(
            common_builder.GraphThresholdsStyleConfig().mode(
                common_model.GraphThresholdsStyleMode.DASHED
            )
        )
    return (
        builder.min(0)
        .line_width(1)
        .fill_opacity(_fill(panel))
        .draw_style(
            common_model.GraphDrawStyle.BARS if panel.bars else common_model.GraphDrawStyle.LINE
        )
        .show_points(common_model.VisibilityMode.AUTO)
        .color_scheme(
            dashboard_builder.FieldColor().mode(dashboard_model.FieldColorModeId.PALETTE_CLASSIC)
        )
        .legend(_legend())
        .tooltip(common_builder.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE))
    )


def _fill(panel: SeriesPanel) -> int:
    """Percent below a line: much where lines add up, none where there may be many of them."""
    if panel.bars:
        return 80
    if panel.stacked:
        return 35
    return 0 if any("{{" in query.legend for query in panel.queries) else 10


@_drawn.register
def _(panel: StatPanel, alerts: Alerts) -> stat_builder.Panel:
    builder = stat_builder.Panel()
    _common(builder, panel, alerts)
    _targets(builder, panel.queries)
    spark = panel.spark and not panel.states
    graph = common_model.BigValueGraphMode.AREA if spark else common_model.BigValueGraphMode.NONE
    filled = common_model.BigValueColorMode.BACKGROUND_SOLID
    if panel.states:
        builder.mappings(_mappings(panel.states))
    if panel.deeper:
        link = dashboard_builder.DashboardLink("Open the board").type(
            dashboard_model.DashboardLinkType.LINK
        )
        builder.data_links([link.url(_deeper(panel))])
    if len(panel.queries) > 1:
        builder.text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
    return (
        builder.graph_mode(graph)
        .color_mode(filled if panel.states else common_model.BigValueColorMode.VALUE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .orientation(common_model.VizOrientation.AUTO)
    )


@_drawn.register
def _(panel: StatesPanel, alerts: Alerts) -> states_builder.Panel:
    builder = states_builder.Panel()
    _common(builder, panel, alerts)
    _targets(builder, panel.queries)
    return (
        builder.mappings(_mappings(panel.states))
        .merge_values(True)
        .show_value(common_model.VisibilityMode.AUTO)
        .row_height(0.85)
        .fill_opacity(75)
        .line_width(0)
        .legend(_legend())
        .tooltip(common_builder.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE))
    )


@_drawn.register
def _(panel: TablePanel, alerts: Alerts) -> table_builder.Panel:
    builder = table_builder.Panel()
    _common(builder, panel, alerts)
    for index, query in enumerate(panel.queries):
        target = _target(query, index).instant().format(prometheus_model.PromQueryFormat.TABLE)
        builder.with_target(target)
    if len(panel.queries) > 1:
        builder.with_transformation(dashboard_model.DataTransformerConfig("merge", options={}))
    shown = [column.name for column in panel.columns]
    values = [f"Value #{_letter(i)}" for i in range(len(panel.queries))]
    hidden = [name for name in ("Time", "Value", *values) if name not in shown]
    options = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: index for index, name in enumerate(shown)},
        "renameByName": {column.name: column.title for column in panel.columns},
    }
    builder.with_transformation(dashboard_model.DataTransformerConfig("organize", options=options))
    for column in panel.columns:
        properties = _properties(column, alerts)
        if properties:
            builder.override_by_name(column.title, properties)
    if panel.sort:
        by = common_builder.TableSortByFieldState().display_name(panel.sort.lstrip("-"))
        builder.sort_by([by.desc(panel.sort.startswith("-"))])
    return builder.show_header(True)


def _common(builder: Builder, panel: Panel, alerts: Alerts) -> None:
    steps = alerts.steps(panel.thresholds)
    (
        builder.title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .thresholds(
            dashboard_builder.ThresholdsConfig()
            .mode(dashboard_model.ThresholdsMode.ABSOLUTE)
            .steps(steps)
        )
        .color_scheme(
            dashboard_builder.FieldColor().mode(dashboard_model.FieldColorModeId.THRESHOLDS)
        )
        .links(_links(panel))
    )
    if panel.no_value:
        builder.no_value(panel.no_value)
    if panel.maximum is not None:
        builder.max(panel.maximum)


def _links(panel: Panel) -> list[Any]:
    """To the runbooks of its alerts, and to the board that shows more."""
    found = [
        dashboard_builder.DashboardLink(f"Runbook {name}").url(f"/runbooks/{name}")
        for name in panel.alerts
    ]
    if panel.deeper:
        found.append(dashboard_builder.DashboardLink(f"More: {panel.deeper}").url(_deeper(panel)))
    return [link.type(dashboard_model.DashboardLinkType.LINK) for link in found]


def _deeper(panel: Panel) -> str:
    return f"/d/{panel.deeper}?${{__url_time_range}}"


def _mappings(states: Sequence[State]) -> list[dashboard_model.ValueMapping]:
    options = {
        str(one.value): dashboard_model.ValueMappingResult(
            text=one.text, color=one.color, index=index
        )
        for index, one in enumerate(states)
    }
    return [dashboard_model.ValueMap(options=options)]


def _properties(column: Column, alerts: Alerts) -> list[dashboard_model.DynamicConfigValue]:
    found: dict[str, Any] = {}
    if column.unit:
        found["unit"] = column.unit
    if column.width:
        found["custom.width"] = column.width
    if column.link:
        found["links"] = [{"title": f"Open {column.title.lower()}", "url": column.link}]
    if column.alerts:
        steps = [{"color": step.color, "value": step.value} for step in alerts.steps(column.alerts)]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
        found["color"] = {"mode": "thresholds"}
        found["custom.cellOptions"] = {"type": "color-text"}
    if column.states:
        found["mappings"] = _mappings(column.states)
        found["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    return [dashboard_model.DynamicConfigValue(name, value) for name, value in found.items()]


def _targets(builder: Builder, queries: Sequence[Query]) -> None:
    for index, query in enumerate(queries):
        builder.with_target(_target(query, index).range())


def _target(query: Query, index: int) -> prometheus_builder.Dataquery:
    return (
        prometheus_builder.Dataquery()
        .ref_id(_letter(index))
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
    )


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _legend() -> common_builder.VizLegendOptions:
    return (
        common_builder.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )
