"""Every metric of this product, in one table: what is registered, documented and tested.

Names, labels and meanings of agent-lightning 0.3 stay as they were; buckets follow the range each
metric really has. ``docs/metrics.md`` is generated from here (``scripts/generate``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agl.utils.metrics_base import MetricsBackend

OTHER = "other"
"""Stands for a label value that is not in the table."""

OTHERS = "agl.metrics.other_labels.total"
MetricType = Literal["counter", "gauge", "histogram", "summary"]
SERVER, EXPORTER = "server process", "exporter"
STORE = "exporter, for the whole store"
"""Read from the store: several exporters serve the same values, which must never be summed."""


class Domain:
    """The values a label may have.

    Args:
        what: What they are.
        values: Those known here; code that owns others declares them with :meth:`add`.
    """

    def __init__(self, what: str, values: Iterable[str] = ()) -> None:
        self.what = what
        self.values = set(values)

    def add(self, values: Iterable[str]) -> None:
        """Declare values that code uses; never what comes from outside."""
        self.values.update(values)


UNKNOWN = "unknown"
HTTP_PATHS = Domain("template of a route; `unmatched` for a path no route knows", ("unmatched",))
HTTP_METHODS = Domain(
    "HTTP method",
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "OTHER"),
)
HTTP_STATUSES = Domain(
    "status of the answer; `499`: the client hung up",
    map(str, (*range(200, 207), *range(300, 309), *range(400, 432), 451, 499, *range(500, 512))),
)
STORE_METHODS = Domain("public method of the store, or step of one (leading `_`)", (UNKNOWN,))
ERRORS = Domain(
    "`OK`, or the class of the error",
    (
        "OK",
        "AttemptNotFoundError",
        "BackendError",
        "BackendUnavailableError",
        "CancelledError",
        "ConflictError",
        "DuplicatedPrimaryKeyError",
        "Exception",
        "InvalidRequestError",
        "KeyError",
        "MemoryError",
        "NotFoundError",
        "NotImplementedError",
        "OSError",
        "RolloutNotFoundError",
        "RuntimeError",
        "SpansEvictedError",
        "StoreError",
        "TimeoutError",
        "TooLargeError",
        "TypeError",
        "ValidationError",
        "ValueError",
    ),
)
OPERATIONS = Domain("what is asked of a collection", ("lock", "atomic"))
COLLECTIONS = Domain("collection, or what an atomic section locks")
DATABASES = Domain("database of the MongoDB backend")
FINISHED = Domain("how a rollout ended", ("succeeded", "failed", "cancelled"))
MODES = Domain("mode of a rollout; `unknown` when it has none", ("train", "val", "test", UNKNOWN))
ROLLOUT_STATUSES = Domain(
    "status of a rollout",
    ("queuing", "requeuing", "preparing", "running", "succeeded", "failed", "cancelled"),
)
ATTEMPT_STATUSES = Domain(
    "status of an attempt",
    ("preparing", "running", "succeeded", "failed", "unresponsive", "timeout"),
)
WORKER_STATUSES = Domain("status of a worker", ("idle", "busy", "unknown"))
CLAIMS = Domain("whether the rollout was tried before", ("first", "retry"))
LATE_EVENTS = Domain("what came after the end of its rollout", ("span", "attempt"))
REFUSALS = Domain("why no token let it in", ("missing", "wrong", "throttled"))
METRICS = Domain("metric of this table, dots as underscores")
SLOTS = Domain("slot of the server process, from `0`; `none` where folders know no locks")
GENERATIONS = Domain("generation of the garbage collector", ("0", "1", "2"))
PHASES = Domain("part of a scrape", ("list", "read", "sum", "format", "compress"))
FILE_KINDS = Domain("whose file it is", ("live", "folded", "foreign"))
MONGO_COMMANDS = Domain(
    "command of MongoDB",
    (
        "abortTransaction",
        "aggregate",
        "bulkWrite",
        "commitTransaction",
        "count",
        "create",
        "createIndexes",
        "delete",
        "find",
        "findAndModify",
        "getMore",
        "hello",
        "insert",
        "ping",
        "update",
    ),
)
MONGO_STATUSES = Domain("how it ended", ("OK", "refused", "unreachable"))
MONGO_CONNECTIONS = Domain("what happened to a connection", ("created", "closed"))
MONGO_CHECK_OUTS = Domain("whether there was one in time", ("OK", "failed"))
MONGO_RETRIED = Domain("what is sent again", ("write", "transaction", "commit"))
MONGO_OUTCOMES = Domain("how the transaction ended", ("committed", "aborted"))
MONGO_BATCHES = Domain("what went together", ("write", "read"))

# fmt: off
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1000)
_HTTP = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)
_STORE = (
    1e-5, 5e-5, 1e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
)
_COLLECTIONS = (
    5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0,
)
_WAITS = (
    0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0,
)
_ROLLOUTS = (
    0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 180.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0,
    43200.0, 86400.0,
)
_QUEUED = (
    0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0,
    86400.0,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Row:
    """One metric.

    Attributes:
        name: As backends know it; dots become underscores for Prometheus.
        type: Of the series.
        labels: In the order of registration, each with the values it may have.
        help: What it says, in one sentence.
        recorded: Where, in code.
        unit: ``seconds``, ``bytes``, ``ratio`` or empty for things that are counted.
        buckets: Upper bounds of a histogram.
        group_level: How many labels a console line keeps.
        process: Who exposes it.
    """

    name: str
    type: MetricType
    labels: tuple[tuple[str, Domain], ...]
    help: str
    recorded: str
    unit: str = ""
    buckets: tuple[float, ...] | None = None
    group_level: int | None = None
    process: str = SERVER

    @property
    def series(self) -> str:
        """Its name in Prometheus."""
        return self.name.replace(".", "_")

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.labels)


_HTTP_LABELS = (("path", HTTP_PATHS), ("method", HTTP_METHODS), ("status", HTTP_STATUSES))
_STORE_LABELS = (("method", STORE_METHODS), ("store_pubmeth", STORE_METHODS), ("status", ERRORS))
_ROLLOUT_LABELS = (("status", FINISHED), ("mode", MODES))
_COLLECTION_LABELS = (
    ("store_pubmeth", STORE_METHODS),
    ("operation", OPERATIONS),
    ("collection", COLLECTIONS),
    ("store_privmeth", STORE_METHODS),
    ("status", ERRORS),
)
_SLOT = (("server_process", SLOTS),)
_COMMAND_LABELS = (("command", MONGO_COMMANDS), ("status", MONGO_STATUSES))
_MIDDLEWARE = "store/rest/middleware.py"
_DRIVER = "store/collection/mongo/metrics.py"
_OPERATIONS = "store/operations.py"
_INSTRUMENTED = "store/collection/instrumented.py"
_FIGURES = "utils/process_metrics.py"
_EXPORTER = "utils/exporter.py"
_STATE = "utils/exporter_state.py"


def _timed(
    name: str,
    labels: tuple[tuple[str, Domain], ...],
    help_text: str,
    recorded: str,
    buckets: tuple[float, ...],
    group_level: int,
) -> Row:
    return Row(
        name, "histogram", labels, help_text, recorded, "seconds", buckets, group_level=group_level
    )


def _of_process(name: str, typ: MetricType, help_text: str, unit: str = "") -> Row:
    return Row(f"agl_process_{name}", typ, _SLOT, help_text, _FIGURES, unit)


def _of_exporter(
    name: str,
    typ: MetricType,
    help_text: str,
    unit: str = "",
    labels: tuple[tuple[str, Domain], ...] = (),
) -> Row:
    return Row(f"agl_exporter_{name}", typ, labels, help_text, _EXPORTER, unit, process=EXPORTER)


def _of_state(name: str, help_text: str, unit: str = "", **labels: Domain) -> Row:
    return Row(
        f"agl_state_{name}", "gauge", tuple(labels.items()), help_text, _STATE, unit, process=STORE
    )


_ROWS = (
    Row(
        "agl.http.total",
        "counter",
        _HTTP_LABELS,
        "Requests answered.",
        _MIDDLEWARE,
        group_level=2,
    ),
    _timed(
        "agl.http.latency",
        _HTTP_LABELS,
        "Time from the first byte of a request to the last of its answer, waits left out.",
        _MIDDLEWARE,
        _HTTP,
        2,
    ),
    _timed(
        "agl.http.waits",
        _HTTP_LABELS,
        "The same for requests that wait for rollouts on purpose.",
        _MIDDLEWARE,
        _WAITS,
        2,
    ),
    Row(
        "agl.http.refused.total",
        "counter",
        (("reason", REFUSALS),),
        "Requests refused for want of a token.",
        "store/rest/guard.py",
    ),
    Row(
        "agl.store.total",
        "counter",
        _STORE_LABELS,
        "Calls of store methods and of their steps.",
        _OPERATIONS,
        group_level=1,
    ),
    _timed(
        "agl.store.latency",
        _STORE_LABELS,
        "Time spent in a store method or step, waits left out.",
        _OPERATIONS,
        _STORE,
        1,
    ),
    _timed(
        "agl.store.waits",
        _STORE_LABELS,
        "Time spent in store methods that wait for rollouts on purpose.",
        _OPERATIONS,
        _WAITS,
        1,
    ),
    Row(
        "agl.rollouts.total",
        "counter",
        _ROLLOUT_LABELS,
        "Rollouts that finished.",
        _OPERATIONS,
        group_level=1,
    ),
    _timed(
        "agl.rollouts.duration",
        _ROLLOUT_LABELS,
        "Time from the creation of a rollout to its end.",
        _OPERATIONS,
        _ROLLOUTS,
        1,
    ),
    Row(
        "agl.rollouts.claims.total",
        "counter",
        (("attempt", CLAIMS), ("mode", MODES)),
        "Rollouts that workers took from the queue.",
        _OPERATIONS,
        group_level=1,
    ),
    _timed(
        "agl.rollouts.claim.delay",
        (("mode", MODES),),
        "Time from the creation of a rollout until a worker took it, retries left out.",
        _OPERATIONS,
        _QUEUED,
        1,
    ),
    Row(
        "agl.rollouts.late.total",
        "counter",
        (("event", LATE_EVENTS),),
        "Updates that came after the end of their rollout.",
        _OPERATIONS,
    ),
    Row(
        "agl.spans.duplicates.total", "counter", (), "Spans that were stored already.", _OPERATIONS
    ),
    Row("agl.spans.evicted.total", "counter", (), "Spans given up to free memory.", _OPERATIONS),
    Row(
        "agl.collections.total",
        "counter",
        _COLLECTION_LABELS,
        "Operations on collections, by the store method they were made for.",
        _INSTRUMENTED,
        group_level=2,
    ),
    _timed(
        "agl.collections.latency",
        _COLLECTION_LABELS,
        "Time one operation on one collection takes.",
        _INSTRUMENTED,
        _COLLECTIONS,
        2,
    ),
    Row(
        "agl.mongo.commands.total",
        "counter",
        _COMMAND_LABELS,
        "Commands sent to MongoDB.",
        _DRIVER,
        group_level=1,
    ),
    _timed(
        "agl.mongo.commands.latency",
        _COMMAND_LABELS,
        "Time until MongoDB had answered a command.",
        _DRIVER,
        _COLLECTIONS,
        1,
    ),
    Row(
        "agl.mongo.pool.connections.total",
        "counter",
        (("event", MONGO_CONNECTIONS),),
        "Connections to MongoDB; those of a killed process are never `closed`.",
        _DRIVER,
    ),
    Row(
        "agl_mongo_pool_size",
        "gauge",
        _SLOT,
        "Connections to MongoDB that are open now, one for heartbeats included.",
        _DRIVER,
    ),
    Row(
        "agl.mongo.pool.wait",
        "histogram",
        (("status", MONGO_CHECK_OUTS),),
        "Time until a connection was free.",
        _DRIVER,
        "seconds",
        _COLLECTIONS,
    ),
    Row(
        "agl.mongo.retries.total",
        "counter",
        (("operation", MONGO_RETRIED),),
        "Times something was sent to MongoDB again after a failure.",
        _DRIVER,
    ),
    Row(
        "agl.mongo.transactions.total",
        "counter",
        (("outcome", MONGO_OUTCOMES),),
        "Transactions that ended.",
        _DRIVER,
    ),
    Row(
        "agl.mongo.batch.size",
        "histogram",
        (("kind", MONGO_BATCHES),),
        "Operations that went to MongoDB in one call.",
        _DRIVER,
        buckets=_BATCHES,
    ),
    Row(
        OTHERS,
        "counter",
        (("metric", METRICS),),
        "Label values that are not in this table and were recorded as `other`.",
        "utils/metrics.py",
    ),
    Row(
        "agl_metrics_dropped_total",
        "counter",
        (),
        "Updates the metrics folder had no room for when they came; kept in memory until it has.",
        "utils/mapped_values.py",
    ),
    _of_process("resident_memory_bytes", "gauge", "Resident memory.", "bytes"),
    _of_process("open_fds", "gauge", "Open file descriptors."),
    _of_process("threads", "gauge", "Threads."),
    _of_process("start_time_seconds", "gauge", "Start of the process, Unix time.", "seconds"),
    _of_process("cpu_seconds_total", "counter", "CPU time, user and system.", "seconds"),
    Row(
        "agl_process_gc_collections_total",
        "counter",
        (*_SLOT, ("generation", GENERATIONS)),
        "Garbage collections.",
        _FIGURES,
    ),
    _of_exporter(
        "scrape_seconds",
        "summary",
        "Time spent on scrapes.",
        "seconds",
        (("phase", PHASES),),
    ),
    _of_exporter("reads_total", "counter", "Times the folder was read."),
    _of_exporter("shared_reads_total", "counter", "Scrapes that shared a read with another one."),
    _of_exporter(
        "files", "gauge", "Files that count towards the totals.", "", (("kind", FILE_KINDS),)
    ),
    _of_exporter("folder_up", "gauge", "1 when the folder can be listed."),
    _of_exporter("folder_bytes", "gauge", "What the files hold.", "bytes"),
    _of_exporter("folder_fill_ratio", "gauge", "Share of the file system that is taken.", "ratio"),
    _of_exporter("folded_files_total", "counter", "Files of ended processes that were folded."),
    _of_exporter(
        "resets_total", "counter", "Times files vanished without being folded, so totals fell."
    ),
    _of_exporter("bad_files", "gauge", "Files that cannot be read; the log names them."),
    _of_exporter("bad_keys", "gauge", "Keys that make no sense, or contradict each other."),
    _of_exporter("bad_values", "gauge", "Counts below zero or no numbers, left out."),
    _of_exporter(
        "newest_write_age_seconds", "gauge", "Time since a number was seen to change.", "seconds"
    ),
    _of_exporter("series", "gauge", "Samples exposed.", "", (("metric", METRICS),)),
    _of_state("up", "1 if the last call of the store succeeded."),
    _of_state(
        "age_seconds",
        "Time since the store told these values, or since the start; they vanish after 60 s.",
        "seconds",
    ),
    _of_state("rollouts", "Rollouts.", status=ROLLOUT_STATUSES, mode=MODES),
    _of_state("queue_depth", "Rollouts that wait for a worker."),
    _of_state(
        "oldest_queued_age_seconds",
        "Time since the rollout that waits longest entered the queue; 0 when none waits.",
        "seconds",
    ),
    _of_state("running_attempts", "Rollouts under way (preparing or running)."),
    _of_state(
        "oldest_running_age_seconds",
        "Time since the oldest attempt under way began; 0 when there is none.",
        "seconds",
    ),
    _of_state(
        "oldest_running_timeout_ratio",
        "Largest share of its timeout that an attempt under way has used, above 1 when overdue.",
        "ratio",
    ),
    _of_state("attempts", "Attempts by their present status.", status=ATTEMPT_STATUSES),
    _of_state("retries", "Attempts that were not the first of their rollout, since the start."),
    _of_state("workers", "Workers, those that have gone included.", status=WORKER_STATUSES),
    _of_state(
        "silent_workers",
        "Workers that neither sent a heartbeat nor asked for work for 60 s, but did within a day.",
    ),
    _of_state(
        "worker_oldest_heartbeat_age_seconds",
        "Longest time since a worker sent a heartbeat or asked for work; a day at most.",
        "seconds",
        status=WORKER_STATUSES,
    ),
    _of_state("spans_stored", "Spans that the store holds."),
    _of_state("spans_evicted", "Spans given up to free memory, since the start."),
    _of_state(
        "finished_without_spans", "Rollouts that succeeded or failed without a span.", mode=MODES
    ),
    _of_state(
        "finished_without_reward", "Rollouts that succeeded or failed without a reward.", mode=MODES
    ),
    _of_state("span_bytes", "Memory that spans take (memory backend only).", "bytes"),
    _of_state(
        "eviction_threshold_bytes", "Above this, spans are given up (memory backend only).", "bytes"
    ),
    _of_state(
        "safe_threshold_bytes", "At this, giving up spans ends (memory backend only).", "bytes"
    ),
    _of_state(
        "memory_capacity_bytes", "Memory that the store may take (memory backend only).", "bytes"
    ),
)

CATALOGUE: dict[str, Row] = {row.name: row for row in _ROWS}
"""Every metric by name."""

METRICS.add(row.series for row in _ROWS)


def register(tracker: MetricsBackend, *names: str) -> None:
    """Declare metrics of the table with a backend.

    Raises:
        KeyError: There is no such metric.
    """
    for name in names:
        row = CATALOGUE[name]
        if row.type == "counter":
            tracker.register_counter(name, row.label_names, group_level=row.group_level)
        else:
            tracker.register_histogram(
                name, row.label_names, buckets=row.buckets, group_level=row.group_level
            )


def bounded(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Label values, those that are not in the table replaced by :data:`OTHER`.

    Metrics that are not in the table keep theirs.
    """
    row = CATALOGUE.get(name)
    if row is None:
        return values
    labels = zip(row.labels, values, strict=True)
    return tuple([v if v in domain.values else OTHER for (_, domain), v in labels])
