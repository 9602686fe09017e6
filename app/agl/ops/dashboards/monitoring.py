"""The ``agl-monitoring`` board: whether the figures of all the others can be trusted."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    StatPanel,
    highest,
    legend_of,
    only_some,
    rate_by,
    selected,
    state,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-monitoring"
FRAME = Frame(
    UID,
    "Monitoring Health",
    "Whether Prometheus scrapes everything, evaluates its rules and reaches Alertmanager, and "
    "whether the exporter tells all. If this board is red, do not trust the others.",
    ("monitoring",),
    "up",
)
ANSWERS = (State(1, "Answers", "green"), State(0, "No answer", "red"))
LOADED = (State(1, "Loaded", "green"), State(0, "Refused", "red"))
NOT_MONGODB = 'job!="mongodb"'
MONGODB = 'job="mongodb"'
ALERTMANAGER = 'job="alertmanager"'
NO_ALERTMANAGER = "No Alertmanager is scraped"
NO_EXPORTER = "No exporter is scraped"
BY_INSTANCE = ("instance",)


def _growth(metric: str, labels: tuple[str, ...] = BY_INSTANCE) -> str:
    """Series that grew in the window of a point; what did not draws nothing."""
    grown = f"increase({selected(metric)}[$__rate_interval])"
    return only_some(f"sum by ({', '.join(labels)}) ({grown})")


def _now_row() -> Row:
    return Row(
        "Can It Be Trusted?",
        (
            StatPanel(
                "Rules Are Run",
                "The Watchdog is an alert that always fires. Where it does not, no alert does.",
                NO_UNIT,
                4,
                (
                    Query(
                        'max(ALERTS{alertname="Watchdog", alertstate="firing"}) or vector(0)',
                        "watchdog",
                    ),
                ),
                states=(State(1, "Yes", "green"), State(0, "No", "red")),
                alerts=("Watchdog",),
            ),
            StatPanel(
                "Targets Down",
                "Targets that Prometheus cannot scrape, of all jobs.",
                NO_UNIT,
                4,
                (Query(f"count({selected('up')} == 0) or count({selected('up')}) * 0", "down"),),
                "No targets",
                alerts=("TargetDown",),
                limits=(),
                spark=False,
            ),
            StatPanel(
                "Alertmanagers Reached",
                "Alertmanagers that Prometheus sends to. Without one, nobody is paged.",
                NO_UNIT,
                4,
                (
                    Query(
                        highest(selected("prometheus_notifications_alertmanagers_discovered")),
                        "reached",
                    ),
                ),
                "No Prometheus",
                alerts=("PrometheusNotConnectedToAlertmanagers",),
                spark=False,
            ),
            StatPanel(
                "Configuration",
                "Whether Prometheus took its configuration when it last read it.",
                NO_UNIT,
                4,
                (
                    Query(
                        f"min({selected('prometheus_config_last_reload_successful')})", "prometheus"
                    ),
                ),
                "No Prometheus",
                states=LOADED,
                alerts=("PrometheusBadConfig",),
            ),
            StatPanel(
                "Age of Store Figures",
                "How old the figures are that the exporter read from the store. Beyond a minute "
                "they vanish.",
                SECONDS,
                4,
                (Query(state("age_seconds"), "age"),),
                "Not read",
                deeper="agl-rollouts",
                alerts=(
                    "ExporterStateStale",
                    "ExporterStateCallFailing",
                ),
                limits=("ExporterStateStale",),
            ),
            StatPanel(
                "Last Change of a Metric",
                "How long no number of the store's metrics has changed. Long while clients work: "
                "the store writes elsewhere.",
                SECONDS,
                4,
                (Query(f"min({selected('agl_exporter_newest_write_age_seconds')})", "age"),),
                NO_EXPORTER,
            ),
        ),
    )


def _scrapes_row() -> Row:
    most = "agl_exporter_scrape_seconds"
    spent = f"{rate_by(f'{most}_sum', ('phase',))} / {rate_by(f'{most}_count', ('phase',))}"
    slow = (
        f"max by (job, instance) ({selected('scrape_duration_seconds', NOT_MONGODB)}) / 4"
        f" or max by (job, instance) ({selected('scrape_duration_seconds', MONGODB)}) / 12"
    )
    return Row(
        "Scrapes",
        (
            StatesPanel(
                "Targets Answer",
                "Whether each target answered when it was scraped.",
                NO_UNIT,
                12,
                (Query(highest(selected("up"), ("job", "instance")), "{{instance}}"),),
                "No targets",
                height=12,
                alerts=("TargetDown", "ExporterDown"),
                limits=(),
                states=ANSWERS,
            ),
            SeriesPanel(
                "Scrape Duration, of Its Timeout",
                "Share of the time allowed that a scrape took; 4 s, and 12 s for MongoDB. Above "
                "100 % the target counts as down.",
                RATIO,
                12,
                (Query(f"topk(20, {slow})", "{{job}} {{instance}}"),),
                "No targets",
                height=12,
                alerts=("PrometheusScrapeSlow", "ExporterScrapeSlow"),
                limits=("PrometheusScrapeSlow",),
            ),
            SeriesPanel(
                "Samples Taken / Sec",
                "Samples that Prometheus takes in. Zero: it takes nothing.",
                OPS,
                8,
                (
                    Query(
                        rate_by("prometheus_tsdb_head_samples_appended_total", BY_INSTANCE),
                        "{{instance}}",
                    ),
                ),
                "No Prometheus",
                alerts=("PrometheusNotIngestingSamples",),
                limits=(),
            ),
            SeriesPanel(
                "Series in Memory",
                "Series that Prometheus has at hand. A steep rise: some label has a value for "
                "everything.",
                NO_UNIT,
                8,
                (
                    Query(
                        highest(selected("prometheus_tsdb_head_series"), BY_INSTANCE),
                        "{{instance}}",
                    ),
                ),
                "No Prometheus",
            ),
            SeriesPanel(
                "Samples Refused",
                "Samples in the window of a point that came twice, too late, or from targets that "
                "could not be read from the configuration.",
                NO_UNIT,
                8,
                (
                    Query(
                        _growth("prometheus_target_scrapes_sample_duplicate_timestamp_total"),
                        "{{instance}} twice",
                    ),
                    Query(
                        _growth("prometheus_target_scrapes_sample_out_of_order_total"),
                        "{{instance}} too late",
                    ),
                    Query(
                        _growth("prometheus_target_sync_failed_total"), "{{instance}} bad target"
                    ),
                ),
                "✓ None",
                alerts=(
                    "PrometheusDuplicateTimestamps",
                    "PrometheusOutOfOrderTimestamps",
                    "PrometheusTargetSyncFailure",
                ),
            ),
            SeriesPanel(
                "Exporter: Time of a Scrape (by Phase)",
                "Mean time that the exporter takes for each part of an answer.",
                SECONDS,
                8,
                (Query(spent, "{{phase}}"),),
                NO_EXPORTER,
                deeper="agl-store",
            ),
            SeriesPanel(
                "Exporter: Metrics Folder Used",
                "Share of the file system of the store's metrics that is taken. When it is full, "
                "figures wait in the store's memory.",
                RATIO,
                8,
                (
                    Query(
                        highest(selected("agl_exporter_folder_fill_ratio"), BY_INSTANCE),
                        "{{instance}}",
                    ),
                ),
                NO_EXPORTER,
                alerts=("ExporterFolderFilling", "ExporterFolderUnreadable"),
                limits=("ExporterFolderFilling",),
                maximum=1,
            ),
            SeriesPanel(
                "Exporter: What It Could Not Tell",
                "Files, keys and values that make no sense, and updates that found no room in the "
                "folder, each only where there are any.",
                NO_UNIT,
                8,
                (
                    *(
                        Query(
                            only_some(highest(selected(f"agl_exporter_bad_{what}"), BY_INSTANCE)),
                            f"{{{{instance}}}} bad {what}",
                        )
                        for what in ("files", "keys", "values")
                    ),
                    Query(_growth("agl_metrics_dropped_total"), "{{instance}} no room"),
                ),
                "✓ Everything was told",
                alerts=("ExporterBadFiles", "ExporterBadValues", "MetricsDropped"),
            ),
        ),
    )


def _rules_row() -> Row:
    spent = highest(
        selected("prometheus_rule_group_last_duration_seconds"), ("instance", "rule_group")
    )
    allowed = highest(
        selected("prometheus_rule_group_interval_seconds"), ("instance", "rule_group")
    )
    load = highest(selected("prometheus_engine_queries"), BY_INSTANCE)
    most = highest(selected("prometheus_engine_queries_concurrent_max"), BY_INSTANCE)
    return Row(
        "Rules and Queries",
        (
            SeriesPanel(
                "Rule Evaluation, of Its Interval",
                "Share of its interval that a group of rules takes, of the 10 slowest. At 100 % "
                "alerts come late.",
                RATIO,
                8,
                (Query(f"topk(10, {spent} / {allowed})", "{{rule_group}}"),),
                "No rules",
                alerts=("PrometheusRuleEvaluationSlow",),
            ),
            SeriesPanel(
                "Rules That Failed or Were Left Out",
                "Evaluations in the window of a point that failed, or that were left out since the "
                "one before was not done.",
                NO_UNIT,
                8,
                (
                    Query(
                        _growth("prometheus_rule_evaluation_failures_total", ("rule_group",)),
                        "{{rule_group}} failed",
                    ),
                    Query(
                        _growth("prometheus_rule_group_iterations_missed_total", ("rule_group",)),
                        "{{rule_group}} left out",
                    ),
                ),
                "✓ None",
                alerts=(
                    "PrometheusRuleFailures",
                    "PrometheusMissingRuleEvaluations",
                    "SLOSeriesAbsent",
                ),
            ),
            SeriesPanel(
                "Queries at Once, of the Limit",
                "Share of the queries allowed at once that run. At 100 % boards and rules wait for "
                "each other.",
                RATIO,
                8,
                (Query(f"{load} / {most}", "{{instance}}"),),
                "No Prometheus",
                alerts=("PrometheusHighQueryLoad",),
            ),
            SeriesPanel(
                "Storage Failures",
                "Failures of Prometheus' own database in the window of a point: reading blocks, "
                "making them, and broken write-ahead logs.",
                NO_UNIT,
                8,
                (
                    Query(
                        _growth("prometheus_tsdb_reloads_failures_total"), "{{instance}} reading"
                    ),
                    Query(
                        _growth("prometheus_tsdb_compactions_failed_total"),
                        "{{instance}} compacting",
                    ),
                    Query(_growth("prometheus_tsdb_wal_corruptions_total"), "{{instance}} log"),
                ),
                "✓ None",
                alerts=(
                    "PrometheusTSDBReloadsFailing",
                    "PrometheusTSDBCompactionsFailing",
                    "PrometheusWALCorruption",
                ),
            ),
            SeriesPanel(
                "Processes That Started",
                "Starts of scraped processes in the window of a point. More than a few in a "
                "quarter of an hour: something dies again and again.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            "max by (job, instance) "
                            f"(changes({selected('process_start_time_seconds')}"
                            "[$__rate_interval]))"
                        ),
                        "{{job}} {{instance}}",
                    ),
                ),
                "✓ None started",
                bars=True,
                alerts=("ProcessRestartLoop",),
                limits=(),
                deeper="agl-node",
            ),
            SeriesPanel(
                "Alerts That Fire",
                "How many alerts fire, by severity; the Watchdog, which always does, is left out.",
                NO_UNIT,
                8,
                (
                    Query(
                        'count by (severity) (ALERTS{alertstate="firing", alertname!="Watchdog"})',
                        legend_of(("severity",)),
                    ),
                ),
                "✓ None",
                deeper="agl-overview",
                stacked=True,
                colors=(("critical", "red"), ("warning", "orange"), ("info", "blue")),
            ),
        ),
    )


def _notifications_row() -> Row:
    sent = rate_by("prometheus_notifications_sent_total", ("alertmanager",))
    errors = rate_by("prometheus_notifications_errors_total", ("alertmanager",))
    labels = ("integration",)
    failed = rate_by("alertmanager_notifications_failed_total", labels)
    told = rate_by("alertmanager_notifications_total", labels)
    waiting = highest(selected("prometheus_notifications_queue_length"), BY_INSTANCE)
    room = highest(selected("prometheus_notifications_queue_capacity"), BY_INSTANCE)
    return Row(
        "On the Way to a Person",
        (
            SeriesPanel(
                "Prometheus to Alertmanager: Errors",
                "Alerts that could not be handed to an Alertmanager, in percent.",
                units.Percent,
                8,
                (Query(f"{errors} / ({sent} > 0) * 100", "{{alertmanager}}"),),
                "Nothing was sent",
                alerts=(
                    "PrometheusErrorSendingAlertsToSomeAlertmanagers",
                    "PrometheusErrorSendingAlertsToAnyAlertmanager",
                ),
            ),
            SeriesPanel(
                "Alerts Waiting to Be Sent",
                "Share of Prometheus' queue of alerts that is taken. When it is full, alerts are "
                "lost.",
                RATIO,
                8,
                (Query(f"{waiting} / {room}", "{{instance}}"),),
                "No Prometheus",
                alerts=("PrometheusNotificationQueueRunningFull",),
            ),
            SeriesPanel(
                "Alertmanager to a Person: Failures",
                "Share of messages that Alertmanager could not send, by way.",
                RATIO,
                8,
                (Query(f"{failed} / ({told} > 0)", "{{integration}}"),),
                "Nothing was sent",
                alerts=("AlertmanagerFailedToSendAlerts", "AlertmanagerClusterFailedToSendAlerts"),
            ),
            StatesPanel(
                "Alertmanagers",
                "Whether each Alertmanager answers.",
                NO_UNIT,
                8,
                (Query(highest(selected("up", ALERTMANAGER), BY_INSTANCE), "{{instance}}"),),
                NO_ALERTMANAGER,
                alerts=(
                    "AlertmanagerDown",
                    "AlertmanagerClusterDown",
                    "AlertmanagerClusterCrashlooping",
                ),
                limits=(),
                states=ANSWERS,
            ),
            StatesPanel(
                "Alertmanager's Configuration",
                "Whether each Alertmanager took its configuration when it last read it.",
                NO_UNIT,
                8,
                (
                    Query(
                        highest(
                            selected("alertmanager_config_last_reload_successful"), BY_INSTANCE
                        ),
                        "{{instance}}",
                    ),
                ),
                NO_ALERTMANAGER,
                alerts=("AlertmanagerFailedReload", "AlertmanagerConfigInconsistent"),
                limits=(),
                states=LOADED,
            ),
            SeriesPanel(
                "Alertmanager's Members",
                "Members that each Alertmanager knows, and those of them that it lost.",
                NO_UNIT,
                8,
                (
                    Query(
                        highest(selected("alertmanager_cluster_members"), BY_INSTANCE),
                        "{{instance}} known",
                    ),
                    Query(
                        only_some(
                            highest(selected("alertmanager_cluster_failed_peers"), BY_INSTANCE)
                        ),
                        "{{instance}} lost",
                    ),
                ),
                NO_ALERTMANAGER,
                height=6,
                alerts=("AlertmanagerMembersInconsistent", "AlertmanagerClusterFailedPeers"),
                limits=(),
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (_now_row(), _scrapes_row(), _rules_row(), _notifications_row())
    return assemble(FRAME, rows, alerts)
