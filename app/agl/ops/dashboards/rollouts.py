"""The ``agl-rollouts`` board: the queue, attempts, workers, and whether the data can be used."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    BYTES,
    ENDED,
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    UNDER_WAY,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    StatPanel,
    at_least_zero,
    growth,
    highest,
    legend_of,
    quantile_queries,
    rate_by,
    state,
    total,
)
from agl.ops.dashboards.slo import burn_panel
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-rollouts"
FRAME = Frame(
    UID,
    "Rollouts and Workers",
    "How long rollouts wait and run, how attempts end, what workers do, and whether what they "
    "leave behind can be trained on. `agl store stuck` gives the ids, which are in no metric.",
    ("rollouts", "workers"),
    "agl_exporter_folder_up",
)
NOT_SEEN = "The store tells nothing"
ALL_ENDED = 'status=~"succeeded|failed|timeout|unresponsive"'
SPAN_WRITES = 'method=~"add_span|add_otel_span|add_many_spans"'


def _per_minute(metric: str, label: str, matchers: str = "") -> Query:
    """What a cumulative store-wide figure grows by in a minute, by one label."""
    return Query(f"{highest(growth(metric, matchers), (label,))} * 60", legend_of((label,)))


def _grown(metric: str, matchers: str = "", label: str = "status") -> str:
    """What a cumulative store-wide figure grows by in a second, over all values of its label."""
    return total(highest(growth(metric, matchers), (label,)))


def _share(metric: str, matchers: str, of: str) -> str:
    return f"{_grown(metric, matchers)} / ({_grown(metric, of)} > 0)"


def _without(what: str) -> Query:
    """Share of the rollouts ended that lack something, by mode."""
    lacking = highest(growth(f"agl_state_finished_without_{what}"), ("mode",))
    ended = highest(growth("agl_state_rollouts", 'status=~"succeeded|failed"'), ("status", "mode"))
    return Query(f"{lacking} / on (mode) (sum by (mode) ({ended}) > 0)", "{{mode}}")


def _now_row() -> Row:
    return Row(
        "Now",
        (
            StatPanel(
                "Rollouts Waiting",
                "Rollouts in the queue, those that wait for another attempt included.",
                NO_UNIT,
                4,
                (Query(state("queue_depth"), "waiting"),),
                NOT_SEEN,
                alerts=("QueueStuck",),
                limits=(),
            ),
            StatPanel(
                "Longest Wait",
                "Age of the rollout that has waited longest. `agl store stuck` names it.",
                SECONDS,
                4,
                (Query(at_least_zero("oldest_queued_age_seconds", "queue_depth"), "age"),),
                NOT_SEEN,
                alerts=("QueueStuck",),
                limits=(),
            ),
            StatPanel(
                "Attempts Running",
                "Attempts that workers are at now, as the store knows.",
                NO_UNIT,
                4,
                (Query(state("running_attempts"), "running"),),
                NOT_SEEN,
                alerts=("RolloutsNotFinishing",),
                limits=(),
            ),
            StatPanel(
                "Oldest Attempt",
                "Age of the attempt that has run longest. `agl store stuck` names it.",
                SECONDS,
                4,
                (Query(at_least_zero("oldest_running_age_seconds", "running_attempts"), "age"),),
                NOT_SEEN,
                alerts=("AttemptBeyondTimeout",),
                limits=(),
            ),
            StatPanel(
                "Silent Workers",
                "Workers that have sent no sign of life for too long. `agl store stuck` names "
                "them.",
                NO_UNIT,
                4,
                (Query(state("silent_workers"), "silent"),),
                NOT_SEEN,
                alerts=("WorkersSilent",),
            ),
            StatPanel(
                "Age of These Figures",
                "The exporter asks the store now and then. Beyond a minute old figures vanish, and "
                "only this one stays.",
                SECONDS,
                4,
                (Query(state("age_seconds"), "age"),),
                NOT_SEEN,
                deeper="agl-monitoring",
                alerts=("ExporterStateStale",),
            ),
        ),
    )


def _queue_row() -> Row:
    live = 'status=~"queuing|requeuing|preparing|running"'
    return Row(
        "Queue",
        (
            SeriesPanel(
                "Rollouts Under Way (by Status)",
                "Rollouts that wait, are prepared or run. Only queuing growing: nobody takes them.",
                NO_UNIT,
                8,
                (
                    Query(
                        total(state("rollouts", ("status", "mode"), live), ("status",)),
                        legend_of(("status",)),
                    ),
                ),
                NOT_SEEN,
                alerts=("QueueStuck", "RolloutsNotFinishing"),
                limits=(),
                stacked=True,
                colors=UNDER_WAY,
            ),
            SeriesPanel(
                "Longest Wait in the Queue",
                "Age of the rollout that has waited longest. A straight line upwards: the queue "
                "does not move.",
                SECONDS,
                8,
                (Query(at_least_zero("oldest_queued_age_seconds", "queue_depth"), "longest wait"),),
                NOT_SEEN,
            ),
            SeriesPanel(
                "Rollouts Finished / Min (by Status)",
                "Rollouts that ended per minute: succeeded, failed or cancelled.",
                NO_UNIT,
                8,
                (
                    Query(
                        f"{rate_by('agl_rollouts_total', ('status',))} * 60",
                        legend_of(("status",)),
                    ),
                ),
                "No store",
                stacked=True,
                colors=ENDED,
            ),
        ),
    )


def _claims_row() -> Row:
    return Row(
        "Claims",
        (
            SeriesPanel(
                "Time Until a Rollout Is Claimed (P50, P95, P99)",
                "How long new rollouts waited until a worker took them; retries are left out.",
                SECONDS,
                8,
                quantile_queries("agl_rollouts_claim_delay"),
                "Nothing is claimed",
                alerts=("SchedulingBurningFast", "SchedulingBurningSlow"),
                limits=(),
            ),
            SeriesPanel(
                "Claims / Sec (by Attempt)",
                "Rollouts that workers took from the queue, for the first time or again. None "
                "while rollouts wait: the queue is stuck.",
                OPS,
                8,
                (Query(rate_by("agl_rollouts_claims_total", ("attempt",)), "{{attempt}}"),),
                "No store",
                alerts=("QueueStuck",),
                limits=(),
                stacked=True,
            ),
            burn_panel(
                "Scheduling Budget Burn",
                "scheduling",
                "new rollouts taken from the queue within ten minutes",
                ("SchedulingBurningFast", "SchedulingBurningSlow"),
            ),
        ),
    )


def _attempts_row() -> Row:
    ended = 'status!~"preparing|running"'
    retries = highest(growth("agl_state_retries"))
    failed = rate_by("agl_rollouts_total", (), 'status="failed"')
    finished = rate_by("agl_rollouts_total", (), 'status=~"succeeded|failed"')
    return Row(
        "Attempts",
        (
            SeriesPanel(
                "Attempts Ended / Min (by Status)",
                "How attempts ended. Timeout: too slow. Unresponsive: the worker fell silent. Both "
                "are tried again as long as the rollout allows.",
                NO_UNIT,
                8,
                (_per_minute("agl_state_attempts", "status", ended),),
                NOT_SEEN,
            ),
            SeriesPanel(
                "Oldest Attempt, of Its Timeout",
                "Share of its timeout that the attempt nearest to it has used. Above 100 % the "
                "watchdog should have ended it.",
                RATIO,
                8,
                (
                    Query(
                        at_least_zero("oldest_running_timeout_ratio", "running_attempts"),
                        "share of the timeout",
                    ),
                ),
                NOT_SEEN,
                alerts=("AttemptBeyondTimeout",),
            ),
            SeriesPanel(
                "Attempts Lost, of All",
                "Share of the attempts ended that ran into their timeout, or whose worker fell "
                "silent.",
                RATIO,
                8,
                tuple(
                    Query(_share("agl_state_attempts", f'status="{status}"', ALL_ENDED), status)
                    for status in ("timeout", "unresponsive")
                ),
                NOT_SEEN,
                alerts=("AttemptsTimingOut", "AttemptsUnresponsive"),
                maximum=1,
            ),
            SeriesPanel(
                "Retries, of All Attempts",
                "Share of the attempts that were not the first of their rollout. At 50 % half of "
                "the work is done twice.",
                RATIO,
                8,
                (Query(f"{retries} / ({_grown('agl_state_attempts')} > 0)", "retries"),),
                NOT_SEEN,
                alerts=("RetryStorm",),
                maximum=1,
            ),
            SeriesPanel(
                "Rollouts That Failed, of All",
                "Share of the rollouts that ended in failure, all attempts used up.",
                RATIO,
                8,
                (Query(f"({failed} or vector(0)) / ({finished} > 0)", "failed"),),
                "Nothing ends",
                alerts=("RolloutsFailing",),
                maximum=1,
            ),
            SeriesPanel(
                "Span Writes / Sec",
                "Calls that stored spans: attempts that run and write none are stuck.",
                OPS,
                8,
                (Query(rate_by("agl_store_total", (), SPAN_WRITES), "writes"),),
                "No store",
                alerts=("SpanIngestStopped",),
                limits=(),
            ),
        ),
    )


def _workers_row() -> Row:
    return Row(
        "Workers",
        (
            SeriesPanel(
                "Workers (by Status)",
                "Idle: asking for work. Busy: at an attempt. Unknown: never said. All idle with an "
                "empty queue: the trainer gives nothing.",
                NO_UNIT,
                8,
                (Query(state("workers", ("status",)), legend_of(("status",))),),
                "No worker has come",
                stacked=True,
                colors=(("busy", "green"), ("idle", "blue"), ("unknown", "orange")),
            ),
            SeriesPanel(
                "Oldest Sign of Life (by Status)",
                "How long the quietest worker of each status has been silent. Its line climbs one "
                "second a second until the worker speaks again.",
                SECONDS,
                8,
                (
                    Query(
                        state("worker_oldest_heartbeat_age_seconds", ("status",)),
                        legend_of(("status",)),
                    ),
                ),
                "No worker has come",
                alerts=("BusyWorkerSilent",),
            ),
            SeriesPanel(
                "Workers That Are Silent",
                "Workers that have sent no sign of life for too long.",
                NO_UNIT,
                8,
                (Query(state("silent_workers"), "silent"),),
                NOT_SEEN,
                alerts=("WorkersSilent",),
            ),
        ),
    )


def _data_row() -> Row:
    late = rate_by("agl_rollouts_late_total", ("event",))
    return Row(
        "Can the Data Be Used?",
        (
            SeriesPanel(
                "Finished Without Spans, of All (by Mode)",
                "Share of the rollouts ended that left no span: nothing to train on.",
                RATIO,
                8,
                (_without("spans"),),
                NOT_SEEN,
                alerts=("RolloutsWithoutSpans",),
                maximum=1,
            ),
            SeriesPanel(
                "Finished Without Reward, of All (by Mode)",
                "Share of the rollouts ended that gave no reward. Usual for some validations, a "
                "fault of the agent in training.",
                RATIO,
                8,
                (_without("reward"),),
                NOT_SEEN,
                alerts=("RolloutsWithoutReward",),
                maximum=1,
            ),
            SeriesPanel(
                "Late and Double Writes / Min",
                "Spans and updates that came after the end of their rollout, and spans that were "
                "stored already: slow or repeating clients.",
                NO_UNIT,
                8,
                (
                    Query(f"{late} * 60", "late {{event}}"),
                    Query(f"{rate_by('agl_spans_duplicates_total', ())} * 60", "double span"),
                ),
                "No store",
            ),
        ),
    )


def _memory_row() -> Row:
    return Row(
        "Spans in Memory",
        (
            SeriesPanel(
                "Spans Kept",
                "Spans that the store holds. With the memory store it falls when spans are given "
                "up for want of room.",
                NO_UNIT,
                8,
                (Query(state("spans_stored"), "spans"),),
                NOT_SEEN,
            ),
            SeriesPanel(
                "Span Memory and Its Limits",
                "What spans take, and where the memory store begins to give up the oldest and "
                "where it stops. Not there with MongoDB.",
                BYTES,
                8,
                (
                    Query(state("span_bytes"), "spans"),
                    Query(state("safe_threshold_bytes"), "given up down to"),
                    Query(state("eviction_threshold_bytes"), "given up from"),
                    Query(state("memory_capacity_bytes"), "memory"),
                ),
                "Not the memory store",
            ),
            SeriesPanel(
                "Spans Given Up / Min",
                "Spans that the memory store gave up to have room. Rollouts that lose them cannot "
                "be trained on.",
                NO_UNIT,
                8,
                (Query(f"{rate_by('agl_spans_evicted_total', ())} * 60", "given up"),),
                "No store",
            ),
        ),
    )


def _figures_row() -> Row:
    answered = Query(state("up", ("host",)), "{{host}}")
    return Row(
        "Are These Figures Fresh?",
        (
            StatesPanel(
                "Store Answers the Exporter",
                "Whether the exporter's last question to the store was answered. Where it was not, "
                "the figures above are old or missing, and counters still tell the truth.",
                NO_UNIT,
                24,
                (answered,),
                NOT_SEEN,
                height=4,
                states=(State(1, "Answered", "green"), State(0, "No answer", "red")),
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (
        _now_row(),
        _queue_row(),
        _claims_row(),
        _attempts_row(),
        _workers_row(),
        _data_row(),
        _memory_row(),
        _figures_row(),
    )
    return assemble(FRAME, rows, alerts)
