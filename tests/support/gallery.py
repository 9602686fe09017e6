"""A dashboard with a panel of every kind, made by the same library as the shipped ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    gauge,
    heatmap,
    piechart,
    stat,
    statetimeline,
    statushistory,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from agl.ops.dashboards.drawing import DATASOURCE
from agl.ops.dashboards.frame import datasource_variable, label_variable

UID = "gallery"


def query(
    expr: str, legend: str = "", *, instant: bool = False, ref: str = "A", kind: str = ""
) -> Any:
    built = prometheus_builder.Dataquery().ref_id(ref).datasource(DATASOURCE).expr(expr)
    built = built.legend_format(legend)
    if kind:
        built = built.format(kind)  # pyright: ignore[reportArgumentType]
    return built.instant() if instant else built.range()


def at(x: int, y: int, w: int, h: int) -> dashboard.GridPos:
    return dashboard.GridPos(h=h, w=w, x=x, y=y)


def limits(*steps: tuple[float | None, str]) -> dashboard_builder.ThresholdsConfig:
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def states() -> list[Any]:
    words = {"0": ("down", "red"), "1": ("idle", "yellow"), "2": ("busy", "green")}
    options = {
        key: dashboard.ValueMappingResult(text=word, color=color, index=int(key))
        for key, (word, color) in words.items()
    }
    return [dashboard.ValueMap(options=options)]


def _stats(board: dashboard_builder.Dashboard) -> None:
    board.with_panel(
        stat.Panel().title("Requests / Sec").unit("reqps").grid_pos(at(0, 0, 5, 5))
        .description("All requests, as `rate` of **agl_http_total**.")
        .with_target(query('sum(rate(agl_http_total{job=~"$job"}[$__rate_interval]))', "all"))
        .graph_mode(common.BigValueGraphMode.AREA)
    )  # fmt: skip
    board.with_panel(
        stat.Panel().title("Targets up").grid_pos(at(5, 0, 5, 5))
        .with_target(query("sum(up) / count(up)", instant=True)).unit("percentunit")
        .thresholds(limits((None, "red"), (1.0, "green")))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
    )  # fmt: skip
    board.with_panel(
        gauge.Panel().title("Queue").grid_pos(at(10, 0, 5, 5)).unit("short").min(0).max(600)
        .with_target(query("sum(queue_depth)", instant=True))
        .thresholds(limits((None, "green"), (300, "yellow"), (450, "red")))
    )  # fmt: skip
    board.with_panel(
        bargauge.Panel().title("Memory by service").grid_pos(at(15, 0, 9, 5)).unit("bytes").min(0)
        .with_target(query("memory_bytes", "{{service}}", instant=True))
        .thresholds(limits((None, "green"), (1.5e9, "orange")))
    )  # fmt: skip


def _series(board: dashboard_builder.Dashboard) -> None:
    rate = "sum by (path) (rate(agl_http_total[$__rate_interval]))"
    stacked = common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    legend = (
        common_builder.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM).show_legend(True)
        .calcs(["mean", "max", "lastNotNull"])
    )  # fmt: skip
    board.with_panel(
        timeseries.Panel().title("Requests / Sec, stacked").unit("reqps").min(0)
        .grid_pos(at(0, 6, 12, 9)).with_target(query(rate, "{{path}}"))
        .fill_opacity(40).stacking(stacked).legend(legend)
        .tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )  # fmt: skip
    errors = (
        'sum(rate(agl_http_total{status=~"5.."}[$__rate_interval]))'
        " / sum(rate(agl_http_total[$__rate_interval]))"
    )
    board.with_panel(
        timeseries.Panel().title("Error share").unit("percentunit").min(0)
        .grid_pos(at(12, 6, 12, 9))
        .with_target(query(errors, "errors"))
        .thresholds(limits((None, "transparent"), (0.05, "orange"), (0.1, "red")))
        .thresholds_style(common_builder.GraphThresholdsStyleConfig()
                          .mode(common.GraphThresholdsStyleMode.DASHED_AND_AREA))
    )  # fmt: skip
    board.with_panel(
        timeseries.Panel().title("Queue and memory on two axes").grid_pos(at(0, 15, 12, 8))
        .with_target(query("queue_depth", "queue {{mode}}"))
        .with_target(query('memory_bytes{service="app"}', "memory {{service}}", ref="B"))
        .override_by_query("B", [dashboard.DynamicConfigValue("unit", "bytes"),
                                 dashboard.DynamicConfigValue("custom.axisPlacement", "right")])
    )  # fmt: skip
    board.with_panel(
        timeseries.Panel().title("Requests, bars").grid_pos(at(12, 15, 12, 8)).unit("short")
        .with_target(
            query("sum by (status) (increase(agl_http_total[$__rate_interval]))", "__auto"))
        .draw_style(common.GraphDrawStyle.BARS).fill_opacity(70).max_data_points(40)
    )  # fmt: skip


def _shapes(board: dashboard_builder.Dashboard) -> None:
    buckets = "sum by (le) (increase(agl_http_latency_bucket[$__rate_interval]))"
    board.with_panel(
        heatmap.Panel().title("Latency").grid_pos(at(0, 24, 12, 9)).unit("s")
        .with_target(query(buckets, "{{le}}", kind="heatmap"))
    )  # fmt: skip
    board.with_panel(
        statetimeline.Panel().title("Workers").grid_pos(at(12, 24, 12, 9)).mappings(states())
        .with_target(query("worker_state", "{{worker}}"))
    )  # fmt: skip
    board.with_panel(
        statushistory.Panel().title("Targets").grid_pos(at(0, 33, 12, 5)).max_data_points(40)
        .with_target(query("up", "{{job}}"))
        .thresholds(limits((None, "red"), (1.0, "green")))
    )  # fmt: skip
    board.with_panel(
        piechart.Panel().title("Requests by path").grid_pos(at(12, 33, 6, 7)).unit("short")
        .with_target(query("sum by (path) (increase(agl_http_total[$__range]))", "{{path}}",
                           instant=True))
    )  # fmt: skip


def _tables(board: dashboard_builder.Dashboard) -> None:
    board.with_panel(
        table.Panel().title("Routes").grid_pos(at(0, 41, 14, 9)).unit("reqps")
        .with_target(query("sum by (method, path) (rate(agl_http_total[5m]))", instant=True,
                           kind="table"))
        .with_target(query("sum by (method, path) (increase(agl_http_total[$__range]))",
                           instant=True, kind="table", ref="B"))
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(dashboard.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": {"Time": True},
                     "renameByName": {"Value #A": "now", "Value #B": "in all"}}))
        .override_by_name("in all", [dashboard.DynamicConfigValue("unit", "short"),
                                     dashboard.DynamicConfigValue(
                                         "custom.cellOptions", {"type": "gauge"})])
        .override_by_name("path", [dashboard.DynamicConfigValue("links", [
            {"title": "Store",
             "url": "/d/agl-store?var-path=${__data.fields.path}&${__url_time_range}"}])])
    )  # fmt: skip
    board.with_panel(
        text.Panel().title("What to do").grid_pos(at(14, 41, 10, 9)).content(
            "## On call\n\n1. Look at **$job**\n2. Type `agl store stuck`\n\n"
            "[Runbook](https://example.com/runbook) <script>alert(1)</script>"
            '<img src="x" onerror="alert(2)">')
    )  # fmt: skip


def _repeats(board: dashboard_builder.Dashboard) -> None:
    board.with_panel(
        timeseries.Panel().title("Queue of $mode").grid_pos(at(0, 51, 24, 6)).repeat("mode")
        .with_target(query('queue_depth{mode="$mode"}', "{{mode}}"))
    )  # fmt: skip
    board.with_row(
        dashboard_builder.Row("Only on request").collapsed(True).grid_pos(at(0, 58, 24, 1))
        .with_panel(timeseries.Panel().title("Memory").grid_pos(at(0, 59, 24, 7)).unit("bytes")
                    .with_target(query("memory_bytes", "{{service}}")))
    )  # fmt: skip


def build() -> dict[str, Any]:
    """The dashboard as JSON."""
    board = (
        dashboard_builder.Dashboard("Gallery").uid(UID).tags(["test"]).timezone("utc")
        .time(str(1_767_204_000_000), str(1_767_225_600_000))
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(datasource_variable())
        .with_variable(label_variable("job", "agl_http_total"))
        .with_variable(label_variable("mode", "queue_depth"))
        .with_variable(dashboard_builder.IntervalVariable("window").values("1m,5m,1h"))
        .link(dashboard_builder.DashboardLink("Store").url("/d/agl-store").keep_time(True)
              .type(dashboard.DashboardLinkType.LINK))
    )  # fmt: skip
    board.with_row(dashboard_builder.Row("Values").grid_pos(at(0, 0, 24, 1)))
    for part in (_stats, _series, _shapes, _tables, _repeats):
        part(board)
    content = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    # The library has no builders for these two.
    place = {"x": 18, "y": 33, "w": 6, "h": 7}
    content["panels"].insert(-4, {"type": "alertlist", "title": "Alerts", "gridPos": place})
    content["annotations"] = {
        "list": [
            {"name": "Outages", "enable": True, "iconColor": "red", "titleFormat": "{{alertname}}",
             "datasource": {"type": "prometheus", "uid": "$datasource"},
             "expr": 'ALERTS{alertstate="firing", severity="critical"}'}
        ]
    }  # fmt: skip
    return content


def write(folder: Path) -> Path:
    """Write the dashboard into ``folder``."""
    path = folder / f"{UID}.json"
    path.write_text(json.dumps(build(), indent=1))
    return path
