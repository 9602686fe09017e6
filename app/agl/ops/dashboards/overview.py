"""The ``agl-overview`` board: is it moving, what is stuck, whose fault is it."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    UNDER_WAY,
    Column,
    Query,
    Row,
    SeriesPanel,
    State,
    StatPanel,
    TablePanel,
    TextPanel,
    at_least_zero,
    growth,
    highest,
    legend_of,
    once,
    quantile,
    rate_by,
    selected,
    state,
    total,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-overview"
FRAME = Frame(
    UID,
    "Overview",
    "The first page of whoever is on call: is it moving, what is stuck, whose fault is it.",
    ("overview",),
    "up",
)
VERDICT_WINDOW = "5m"
"""Of the verdicts in words: a window as long as the range's step would make them flicker."""
ANSWER = "20s"
"""As in the alert StoreDown: a single call that failed is no news."""
MOMENT = "1m"
"""For as long as both must wait to count: between two questions for work a worker is idle."""

SEVERITIES = (
    State(3, "critical", "red"),
    State(2, "warning", "orange"),
    State(1, "info", "blue"),
)

UNKNOWN = (
    State(-1, "Not seen", "#6e7687"),
    State(-2, "No rules", "#6e7687"),
)
HEALTH = (
    State(0, "OK", "green"),
    State(1, "Info", "blue"),
    State(2, "Warning", "orange"),
    State(3, "Critical", "red"),
    *UNKNOWN,
)
# Title, components of its alerts, a series that is there when it is watched, its board.
PARTIES = (
    ("Rollouts", "rollouts", "agl_state_up", "agl-rollouts"),
    ("Workers", "workers", "agl_state_up", "agl-rollouts"),
    ("Store", "store|exporter|slo", "agl_exporter_folder_up", "agl-store"),
    ("MongoDB", "mongodb", "mongodb_up", "agl-mongodb"),
    ("Node", "node|containers", "node_load1", "agl-node"),
    ("GPU", "gpu", "DCGM_FI_DEV_GPU_TEMP", "agl-gpu"),
    ("Monitoring", "prometheus|alertmanager|meta", "prometheus_tsdb_head_series", "agl-monitoring"),
)


def _answers() -> str:
    """1 when a store answered within ANSWER, 0 when none did, nothing when nobody can tell."""
    return highest(once(f"max_over_time({selected('agl_state_up')}[{ANSWER}])"))


def _moving() -> StatPanel:
    finished = f"sum(increase({selected('agl_rollouts_total')}[{VERDICT_WINDOW}]))"
    running, queued = state("running_attempts"), state("queue_depth")
    waited = highest(once(f"min_over_time({selected('agl_state_queue_depth')}[{VERDICT_WINDOW}])"))
    claims = f"sum(increase({selected('agl_rollouts_claims_total')}[{VERDICT_WINDOW}]))"
    expr = (
        f"({_answers()} == 0) * 0 + 4"
        f" or ({finished} > 0 and count({selected('agl_rollouts_total')})) * 0 + 3"
        f" or ({waited} > 0 and {claims} == 0) * 0 + 1"
        f" or ({running} > 0) * 0 + 2"
        f" or ({queued} > 0) * 0 + 1 or {running} * 0 or vector(-1)"
    )
    return StatPanel(
        "Is It Moving?",
        "Moving: rollouts have finished within 5 minutes. Busy: attempts run, but nothing has "
        "finished. Stuck: rollouts wait and none runs, or none was taken for 5 minutes. Idle: "
        "nothing to do. No answer: the store is down, or stands still. Not seen: nobody can tell, "
        "as the exporter is not scraped.",
        NO_UNIT,
        4,
        (Query(expr, "verdict"),),
        states=(
            State(4, "No answer", "red"),
            State(3, "Moving", "green"),
            State(2, "Busy", "orange"),
            State(1, "Stuck", "red"),
            State(0, "Idle", "blue"),
            State(-1, "Not seen", "#6e7687"),
        ),
        deeper="agl-rollouts",
    )


def _who_waits() -> StatPanel:
    idle_workers = selected("agl_state_workers", 'status="idle"')
    queue = highest(once(f"min_over_time({selected('agl_state_queue_depth')}[{MOMENT}])"))
    idle = highest(once(f"min_over_time({idle_workers}[{MOMENT}])"))
    verdict = f"({queue} > bool 0) * 2 + ({idle} > bool 0)"
    expr = f"{verdict} unless {_answers()} == 0 or vector(-1)"
    return StatPanel(
        "Who Waits?",
        "What has lasted a minute. Workers wait: some are idle and the queue is empty, so the "
        "trainer is the slow one. Queue waits: no worker is idle, so runners are the slow ones. "
        "Both wait: rollouts wait although workers are idle, so claiming is broken.",
        NO_UNIT,
        4,
        (Query(expr, "verdict"),),
        states=(
            State(0, "Nobody", "green"),
            State(1, "Workers wait", "blue"),
            State(2, "Queue waits", "blue"),
            State(3, "Both wait", "orange"),
            State(-1, "Not seen", "#6e7687"),
        ),
        deeper="agl-rollouts",
    )


def _moving_row() -> Row:
    per_minute = f"{rate_by('agl_rollouts_total', ())} * 60"
    writes = rate_by("agl_store_total", (), 'method=~"add_span|add_otel_span|add_many_spans"')
    return Row(
        "Is It Moving?",
        (
            _moving(),
            StatPanel(
                "Finished / Min",
                "Rollouts that ended, whatever their status. The same over time, and an hour "
                "before, is at the bottom.",
                NO_UNIT,
                4,
                (Query(per_minute, "finished"),),
                "No store",
                deeper="agl-store",
            ),
            StatPanel(
                "Attempts Running",
                "Attempts that workers are at now, as the store knows.",
                NO_UNIT,
                4,
                (Query(state("running_attempts"), "running"),),
                "Not seen",
                deeper="agl-rollouts",
                alerts=("RolloutsNotFinishing",),
                limits=(),
            ),
            StatPanel(
                "Rollouts Waiting",
                "Rollouts in the queue, those that wait for another attempt included.",
                NO_UNIT,
                4,
                (Query(state("queue_depth"), "waiting"),),
                "Not seen",
                deeper="agl-rollouts",
                alerts=("QueueStuck",),
                limits=(),
            ),
            StatPanel(
                "Span Writes / Sec",
                "Calls that stored spans: the sign that attempts make progress, long before they "
                "end.",
                OPS,
                4,
                (Query(writes, "writes"),),
                "No store",
                deeper="agl-store",
                alerts=("SpanIngestStopped",),
                limits=(),
            ),
            _who_waits(),
        ),
    )


def _stuck_row() -> Row:
    lost = highest(growth("agl_state_attempts", 'status=~"timeout|unresponsive"'), ("status",))
    calls = rate_by("agl_http_total", ())
    failed = rate_by("agl_http_total", (), 'status=~"5.."')
    return Row(
        "Is Anything Stuck?",
        (
            StatPanel(
                "Longest Wait",
                "Age of the rollout that waits longest. `agl store stuck` names it.",
                SECONDS,
                4,
                (Query(at_least_zero("oldest_queued_age_seconds", "queue_depth"), "age"),),
                "Not seen",
                deeper="agl-rollouts",
                alerts=("QueueStuck",),
                limits=(),
            ),
            StatPanel(
                "Share of Timeout",
                "Share of its timeout that the attempt nearest to it has used. Above 100 % it "
                "should have been ended. `agl store stuck` names it.",
                RATIO,
                4,
                (
                    Query(
                        at_least_zero("oldest_running_timeout_ratio", "running_attempts"), "share"
                    ),
                ),
                "Not seen",
                deeper="agl-rollouts",
                alerts=("AttemptBeyondTimeout",),
            ),
            StatPanel(
                "Silent Workers",
                "Workers that have sent no sign of life for too long.",
                NO_UNIT,
                4,
                (Query(state("silent_workers"), "silent"),),
                "Not seen",
                deeper="agl-rollouts",
                alerts=("WorkersSilent",),
            ),
            StatPanel(
                "Lost / Min",
                "Attempts that ran into their timeout, or whose worker fell silent.",
                NO_UNIT,
                4,
                (Query(f"{total(lost)} * 60", "lost"),),
                "Not seen",
                deeper="agl-rollouts",
                alerts=(
                    "AttemptsTimingOut",
                    "AttemptsUnresponsive",
                ),
                limits=(),
            ),
            StatPanel(
                "Store Failures",
                "Share of the store's answers with a status of 5xx.",
                RATIO,
                4,
                (Query(f"({failed} or vector(0)) / ({calls} > 0)", "failed"),),
                "No calls",
                deeper="agl-store",
                alerts=(
                    "StoreAvailabilityBurningFast",
                    "StoreAvailabilityBurningSlow",
                ),
                limits=(),
            ),
            StatPanel(
                "Store P95",
                "95 % of the store's answers are faster than this; waiting on purpose is left out.",
                SECONDS,
                4,
                (Query(quantile(0.95, "agl_http_latency"), "P95"),),
                "No calls",
                deeper="agl-store",
                alerts=(
                    "StoreLatencyBurningFast",
                    "StoreLatencyBurningSlow",
                ),
                limits=(),
            ),
        ),
    )


def _party(title: str, components: str, seen: str, board: str) -> StatPanel:
    def firing(severity: str) -> str:
        matchers = f'alertstate="firing", component=~"{components}", severity="{severity}"'
        return f"max(ALERTS{{{matchers}}})"

    watched = 'max(absent(ALERTS{alertname="Watchdog", alertstate="firing"}))'
    expr = (
        f"{watched} * -2 or {firing('critical')} * 3 or {firing('warning')} * 2"
        f" or {firing('info')} or {highest(once(selected(seen)))} * 0 or vector(-1)"
    )
    return StatPanel(
        title,
        f"The gravest alert that fires for {title}. Not seen: nothing of it is scraped, which is "
        "as it should be where there is none. No rules: Prometheus evaluates no alerts, so nothing "
        "is known.",
        NO_UNIT,
        3,
        (Query(expr, title),),
        states=HEALTH,
        deeper=board,
    )


def _fault_row() -> Row:
    down = StatPanel(
        "Down",
        "Targets that Prometheus cannot scrape. What is behind such a target is not seen at all.",
        NO_UNIT,
        3,
        (Query(f"count({selected('up')} == 0) or count({selected('up')}) * 0", "down"),),
        "No targets",
        alerts=("TargetDown",),
        limits=(),
        deeper="agl-monitoring",
        spark=False,
    )
    return Row("Whose Fault Is It?", (*(_party(*party) for party in PARTIES), down))


def _firing(severity: str) -> str:
    matchers = f'alertstate="firing", alertname!="Watchdog", severity="{severity}"'
    return f"ALERTS{{{matchers}}}"


def _alerts_row() -> Row:
    labels = ("alertname", "component", "host", "instance")
    firing = " or ".join(
        f"{highest(_firing(severity.text), labels)} * {severity.value}" for severity in SEVERITIES
    )
    columns = (
        Column("Value", "Severity", states=SEVERITIES, width=100),
        Column("alertname", "Alert", link="/runbooks/${__value.text}"),
        Column("component", "Component", width=120),
        Column("host", "Host"),
        Column("instance", "Instance"),
    )
    links = "\n".join(
        f"- [{title}](/d/{uid}): {what}"
        for title, uid, what in (
            ("Rollouts and workers", "agl-rollouts", "queue, attempts, workers, data quality"),
            ("LightningStore", "agl-store", "traffic, latency, errors"),
            ("Collections and MongoDB", "agl-mongodb", "replica set, latency, disk"),
            ("Node and containers", "agl-node", "CPU, memory, disk, network"),
            ("GPU cluster", "agl-gpu", "expected and seen, XIDs, temperatures"),
            ("Training and serving", "agl-training", "vLLM, Ray, LiteLLM, verl"),
            ("Monitoring health", "agl-monitoring", "can these figures be trusted?"),
        )
    )
    return Row(
        "Firing Alerts",
        (
            TablePanel(
                "Alerts That Fire Now",
                "Every alert that fires, once for each host and instance. The name leads to its "
                "runbook, which says what to type.",
                NO_UNIT,
                16,
                (Query(firing, "__auto"),),
                "✓ No alert is firing",
                columns=columns,
                sort="-Severity",
            ),
            TextPanel("Where to Look Next", links, 8, 8),
        ),
    )


def _course_row() -> Row:
    per_minute = f"{rate_by('agl_rollouts_total', ())} * 60"
    before = f"sum(rate({selected('agl_rollouts_total')}[$__rate_interval] offset 1h)) * 60"
    live = 'status=~"queuing|requeuing|preparing|running"'
    waiting = total(state("rollouts", ("status", "mode"), live), ("status",))
    return Row(
        "The Course of It",
        (
            SeriesPanel(
                "Rollouts Finished / Min, and an Hour Before",
                "Rollouts that ended per minute, and the same an hour earlier: the same work "
                "usually comes again.",
                NO_UNIT,
                12,
                (Query(per_minute, "now"), Query(before, "an hour before")),
                "No store",
                deeper="agl-store",
            ),
            SeriesPanel(
                "Rollouts Under Way (by Status)",
                "Rollouts that wait, are prepared or run. Only queuing growing: nobody takes them.",
                NO_UNIT,
                12,
                (Query(waiting, legend_of(("status",))),),
                "Not seen",
                deeper="agl-rollouts",
                stacked=True,
                colors=UNDER_WAY,
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (_moving_row(), _stuck_row(), _fault_row(), _alerts_row(), _course_row())
    return assemble(FRAME, rows, alerts)
