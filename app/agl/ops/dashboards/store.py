"""The ``agl-store`` board: what a LightningStore is asked, how it answers, how rollouts end."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    BYTES,
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    WINDOW,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    highest,
    legend_of,
    only_some,
    quantile,
    quantile_queries,
    rate_by,
    selected,
    state,
)
from agl.ops.dashboards.slo import burn_panel
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-store"
FRAME = Frame(
    UID,
    "LightningStore",
    "Traffic, latency and errors of the LightningStore, from its HTTP API through the store to the "
    "collections of its backend, and how rollouts end.",
    ("lightningstore",),
    "agl_http_total",
)

HTTP = "agl_http_latency"
HTTP_CALLS = "agl_http_total"
HTTP_WAITS = "agl_http_waits"
STORE = "agl_store_latency"
STORE_CALLS = "agl_store_total"
COLLECTIONS = "agl_collections_latency"
ROLLOUTS = "agl_rollouts_duration"

NO_ERRORS = "No errors"
# Private methods run inside a public one: adding them up would count the same call twice.
PUBLIC = 'method!~"_.*"'


def _rates(counter: str, labels: tuple[str, ...], matchers: str = "") -> tuple[Query, ...]:
    return (Query(rate_by(counter, labels, matchers), legend_of(labels)),)


def _p95(metric: str, label: str) -> tuple[Query, ...]:
    return (Query(quantile(0.95, metric, (label,)), legend_of((label,))),)


def _http_errors() -> tuple[Query, ...]:
    labels = ("method", "path", "status")
    failed = rate_by(HTTP_CALLS, labels, 'status!~"2..|3..|501"')
    answered = rate_by(HTTP_CALLS, labels, 'method="GET", status="404"')
    return (Query(f"{failed} unless {answered}", legend_of(labels)),)


def _http_row() -> Row:
    return Row(
        "LightningStore HTTP API",
        (
            SeriesPanel(
                "HTTP Requests / Sec (by Path)",
                "Requests the store answered per second, whatever the answer. `path` is a route's "
                "template; `unmatched` is a path that no route knows.",
                OPS,
                8,
                _rates(HTTP_CALLS, ("method", "path")),
            ),
            SeriesPanel(
                "HTTP Latency (P50, P95, P99)",
                "Time from the first byte of a request to the last of its answer, over all paths. "
                "Waiting for rollouts is left out: it blocks on purpose, see below.",
                SECONDS,
                8,
                quantile_queries(HTTP),
            ),
            SeriesPanel(
                "HTTP Errors / Sec",
                "Requests per second that were refused or failed: 4xx, 5xx, and 499 for a client "
                "that hung up. Answers that are as they should be are left out: 2xx, 3xx, a GET "
                "answered 404 (it asked for something that does not exist), and 501 (an OTLP "
                "signal other than traces).",
                OPS,
                8,
                _http_errors(),
                NO_ERRORS,
            ),
        ),
    )


def _waits_row() -> Row:
    return Row(
        "Waiting for Rollouts",
        (
            SeriesPanel(
                "Waits Ended / Sec (by Status)",
                "Requests that waited for rollouts and were answered: 200 whether or not all of "
                "them had finished, 503 when no more could wait or the server was stopping, 499 "
                "for a client that hung up.",
                OPS,
                12,
                _rates(f"{HTTP_WAITS}_count", ("status",)),
            ),
            SeriesPanel(
                "Time Waited (P50, P95, P99)",
                "How long these requests took. A request waits for 60 seconds at most; clients "
                "ask again.",
                SECONDS,
                12,
                quantile_queries(HTTP_WAITS),
            ),
        ),
    )


def _store_row() -> Row:
    return Row(
        "LightningStore RPC Metrics",
        (
            SeriesPanel(
                "Store Calls / Sec (by Method)",
                "Calls of the store's public methods per second. Private methods run inside a "
                "public one and are left out, so that a call counts once.",
                OPS,
                8,
                _rates(STORE_CALLS, ("method",), PUBLIC),
            ),
            SeriesPanel(
                "Store Latency (P50, P95, P99)",
                "Time spent in a public store method, without HTTP around it. Waiting for rollouts "
                "is left out: it blocks on purpose.",
                SECONDS,
                8,
                quantile_queries(STORE, PUBLIC),
            ),
            SeriesPanel(
                "Store Errors / Sec (by Method)",
                "Public store calls per second that raised; `status` is the exception's class. An "
                "id nobody knows counts here only when the call was meant to change something.",
                OPS,
                8,
                _rates(STORE_CALLS, ("method", "status"), f'{PUBLIC}, status!="OK"'),
                NO_ERRORS,
            ),
        ),
    )


def _collections_row() -> Row:
    return Row(
        "Collection Metrics",
        (
            SeriesPanel(
                "Collection Ops / Sec (by Store Method)",
                "Operations on the backend's collections per second, by the public store method "
                "that asked for them.",
                OPS,
                12,
                _rates(f"{COLLECTIONS}_count", ("store_pubmeth", "operation")),
            ),
            SeriesPanel(
                "Collection Errors / Sec",
                "Collection operations per second that raised; `status` is the exception's class. "
                "`atomic` sections count too, so an unknown id that a call tried to change shows "
                "here as well as in Store Errors.",
                OPS,
                12,
                _rates(
                    f"{COLLECTIONS}_count",
                    ("store_pubmeth", "collection", "status"),
                    'status!="OK"',
                ),
                NO_ERRORS,
            ),
            SeriesPanel(
                "Collection Latency (P50, P95, P99)",
                "Time one operation on one collection takes, over all collections.",
                SECONDS,
                12,
                quantile_queries(COLLECTIONS),
            ),
            SeriesPanel(
                "Collection Latency P95 (by Store Method)",
                "95 % of the collection operations made for a store method are faster than this.",
                SECONDS,
                12,
                _p95(COLLECTIONS, "store_pubmeth"),
            ),
        ),
    )


def _rollouts_row() -> Row:
    return Row(
        "Rollout Outcomes",
        (
            SeriesPanel(
                "Rollout Completion Rate (by Status)",
                "Rollouts that finished per second: succeeded, failed or cancelled. A rollout that "
                "goes back to the queue has not finished.",
                OPS,
                12,
                _rates(f"{ROLLOUTS}_count", ("status",)),
            ),
            SeriesPanel(
                "Rollout Completion Rate (by Mode)",
                "Rollouts that finished per second: train, val, test, or unknown when the trainer "
                "gave no mode.",
                OPS,
                12,
                _rates(f"{ROLLOUTS}_count", ("mode",)),
            ),
            SeriesPanel(
                "Rollout Duration (P50, P95, P99)",
                "Time from the creation of a rollout to its end, waiting in the queue and repeated "
                "attempts included. The largest bucket is 24 h: longer ones show as 24 h.",
                SECONDS,
                12,
                quantile_queries(ROLLOUTS),
            ),
            SeriesPanel(
                "Rollout Duration P95 (by Status)",
                "95 % of the rollouts that ended with this status took less than this from "
                "creation to end.",
                SECONDS,
                12,
                _p95(ROLLOUTS, "status"),
            ),
        ),
    )


def _promises_row() -> Row:
    refused = f"sum by (reason) (increase({selected('agl_http_refused_total')}[{WINDOW}]))"
    return Row(
        "What Is Promised",
        (
            burn_panel(
                "Availability Budget Burn",
                "store_availability",
                "answers without a failure of the store",
                ("StoreAvailabilityBurningFast", "StoreAvailabilityBurningSlow"),
            ),
            burn_panel(
                "Latency Budget Burn",
                "store_latency",
                "answers within half a second",
                ("StoreLatencyBurningFast", "StoreLatencyBurningSlow"),
            ),
            SeriesPanel(
                "Refused for Want of a Token",
                "Requests in the window of a point that came without the token, or with a wrong "
                "one: a client that was not told the new token, or somebody who guesses.",
                NO_UNIT,
                8,
                (Query(only_some(refused), "{{reason}}"),),
                "✓ None",
                alerts=("StoreClientsRefused",),
                limits=(),
            ),
        ),
    )


def _process_row() -> Row:
    started = f"changes({selected('agl_process_start_time_seconds')}[{WINDOW}])"
    used = state("span_bytes")
    slots = ("instance", "server_process")
    return Row(
        "The Store's Processes",
        (
            StatesPanel(
                "Store Answers",
                "Whether the exporter's last question to the store was answered.",
                NO_UNIT,
                8,
                (Query(state("up", ("host",)), "{{host}}"),),
                "Not asked",
                height=8,
                alerts=("StoreDown",),
                limits=(),
                states=(State(1, "Answers", "green"), State(0, "No answer", "red")),
            ),
            SeriesPanel(
                "Processes That Started Anew",
                "Starts of server processes in the window of a point. Some at every deployment; "
                "again and again: they die.",
                NO_UNIT,
                8,
                (Query(only_some(f"sum by (instance) ({started})"), "{{instance}}"),),
                "✓ None",
                alerts=("StoreProcessRestarting",),
                limits=(),
                bars=True,
            ),
            SeriesPanel(
                "Span Memory, of the Limit",
                "What spans take in the memory store, as a share of where it begins to give up "
                "the oldest. Not there with MongoDB.",
                RATIO,
                8,
                (Query(f"{used} / {state('eviction_threshold_bytes')}", "spans"),),
                "Not the memory store",
                alerts=("StoreMemoryNearEviction",),
            ),
            SeriesPanel(
                "Spans Given Up / Sec",
                "Spans that the memory store gave up to have room. Rollouts that lose them cannot "
                "be trained on.",
                OPS,
                8,
                (Query(only_some(rate_by("agl_spans_evicted_total", ("instance",))), "given up"),),
                "✓ None",
                alerts=("StoreEvictingSpans",),
            ),
            SeriesPanel(
                "Memory (by Process)",
                "Resident memory of each server process.",
                BYTES,
                8,
                (
                    Query(
                        highest(selected("agl_process_resident_memory_bytes"), slots),
                        legend_of(slots),
                    ),
                ),
                "No store",
                deeper="agl-node",
            ),
            SeriesPanel(
                "CPU (by Process)",
                "Cores that each server process is at. One process cannot use more than about one.",
                NO_UNIT,
                8,
                (Query(rate_by("agl_process_cpu_seconds_total", slots), legend_of(slots)),),
                "No store",
                deeper="agl-node",
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (
        _http_row(),
        _store_row(),
        _collections_row(),
        _rollouts_row(),
        _waits_row(),
        _promises_row(),
        _process_row(),
    )
    return assemble(FRAME, rows, alerts)
