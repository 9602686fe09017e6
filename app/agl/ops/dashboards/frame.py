"""What all boards share around their panels: variables, annotations, links, the list of alerts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.models import dashboard as dashboard_model

from agl.ops.dashboards.drawing import DATASOURCE, add_rows
from agl.ops.dashboards.panels import SELECTOR, WINDOW, Row, TextPanel
from agl.ops.dashboards.thresholds import Alerts

TAG = "agl"
BENCHMARK_TAG = "agl-benchmark"
"""Annotations with this tag in Grafana's own database are benchmark runs."""


@dataclass(frozen=True)
class Choice:
    """A variable besides job and instance: values of ``label`` on the series ``metric``."""

    label: str
    metric: str


@dataclass(frozen=True)
class Frame:
    """What a board is, its panels left out.

    Attributes:
        series: The series whose jobs and instances can be chosen.
        choices: Further variables.
        since: How far back it looks at first.
    """

    uid: str
    title: str
    description: str
    tags: tuple[str, ...]
    series: str
    choices: tuple[Choice, ...] = ()
    since: str = "now-1h"


class _Events(dashboard_model.AnnotationQuery):
    """An annotation from Prometheus with its words, which the SDK's model does not have."""

    def __init__(self, name: str, color: str, expr: str, title: str, text: str) -> None:
        super().__init__(name, DATASOURCE, icon_color=color, expr=expr)
        self._words = {"titleFormat": title, "textFormat": text}

    def to_json(self) -> dict[str, object]:
        """As Grafana reads it."""
        return {**super().to_json(), **self._words}


class _Made:
    """A finished model where the SDK wants its builder."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def build(self) -> Any:
        """The model."""
        return self._model


def assemble(frame: Frame, rows: Iterable[Row], alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, its alerts' runbooks listed at the end.

    Raises:
        EnvironmentFault: a panel names an alert that does not exist.
    """
    board = (
        dashboard_builder.Dashboard(frame.title)
        .uid(frame.uid)
        .description(frame.description)
        .tags([TAG, *frame.tags])
        .readonly()
        .refresh("10s")
        .time(frame.since, "now")
        .timezone("browser")
        .tooltip(dashboard_model.DashboardCursorSync.CROSSHAIR)
        .with_variable(datasource_variable())
        .with_variable(label_variable("job", frame.series))
        .with_variable(label_variable("instance", frame.series, 'job=~"$job"'))
        .link(_all_boards())
    )
    for choice in frame.choices:
        board.with_variable(label_variable(choice.label, choice.metric, SELECTOR))
    for annotation in _annotations():
        board.annotation(annotation)
    listed = _alert_row(frame.uid, alerts)
    add_rows(board, [*rows, *listed], alerts)
    return board.build()


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


def _all_boards() -> dashboard_builder.DashboardLink:
    return (
        dashboard_builder.DashboardLink("Boards")
        .type(dashboard_model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .keep_time(True)
        .icon("dashboard")
    )


def _annotations() -> Sequence[Any]:
    alert = 'ALERTS{alertstate="firing", alertname!="Watchdog"}'
    # Where it begins: a long one would colour every chart from side to side.
    firing = (
        f"max by (alertname, severity) ({alert})"
        f" unless max by (alertname, severity) ({alert} offset {WINDOW})"
    )
    started = f"changes(agl_process_start_time_seconds[{WINDOW}]) > 0"
    others = f"changes(process_start_time_seconds[{WINDOW}]) > 0"
    restarts = (
        f"max by (job, instance) ({started} or on (job, instance) {others})"
        f" or max by (job, instance) (resets(mongodb_ss_uptime[{WINDOW}]) > 0)"
    )
    benchmarks = dashboard_model.AnnotationQuery(
        "Benchmark runs",
        dashboard_model.DataSourceRef(type_val="grafana", uid="-- Grafana --"),
        icon_color="blue",
        target=dashboard_model.AnnotationTarget(
            limit=100, match_any=False, tags=[BENCHMARK_TAG], type_val="tags"
        ),
    )
    return [
        _Made(_Events("Alerts", "red", firing, "{{alertname}}", "{{severity}}")),
        _Made(_Events("Restarts", "purple", restarts, "{{job}} restarted", "{{instance}}")),
        _Made(benchmarks),
    ]


def _alert_row(uid: str, alerts: Alerts) -> list[Row]:
    """The alerts that lead here, each with what it means and the way to its runbook."""
    found = alerts.of_board(uid)
    if not found:
        return []
    lines = [
        f"| [{alert.name}](/runbooks/{alert.name}) | {alert.severity} "
        f"| {alert.annotations['summary']} | {alert.annotations['threshold']} |"
        for alert in found
    ]
    head = "| Alert | Severity | What it says | Threshold |\n|---|---|---|---|"
    table = TextPanel(
        "Alerts That Lead Here", "\n".join([head, *lines]), height=min(24, 4 + len(lines))
    )
    return [Row("Alerts and Their Runbooks", (table,), collapsed=True)]
