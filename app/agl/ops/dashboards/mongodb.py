"""The ``agl-mongodb`` board: how MongoDB is, as its exporter tells."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    SELECTOR,
    Query,
    Row,
    SeriesPanel,
    State,
    StatPanel,
    highest,
    legend_of,
    only_some,
    quantile,
    quantile_queries,
    rate_by,
    selected,
    total,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-mongodb"
FRAME = Frame(
    UID,
    "Collections and MongoDB",
    "What MongoDB does for the store, whether it takes writes, and how large it has grown. Empty "
    "for a bundle that keeps its rollouts in memory.",
    ("mongodb",),
    "mongodb_up",
)

ABSENT = "No MongoDB is watched"
NO_STORE = "No store"
SERVER = "mongodb_ss"
MEMBERS = "mongodb_rs_members"
DATABASES = "mongodb_dbstats"
CACHE = f"{SERVER}_wt_cache"


def _gauge(metric: str, labels: tuple[str, ...], legend: str = "", matchers: str = "") -> Query:
    selector = f"{SELECTOR}, {matchers}" if matchers else SELECTOR
    text = legend or legend_of(labels)
    return Query(f"sum by ({', '.join(labels)}) ({metric}{{{selector}}})", text)


def _cache(metric: str, name: str) -> Query:
    limit = _gauge(f"{CACHE}_maximum_bytes_configured", ("instance",)).expr
    return Query(f"{_gauge(f'{CACHE}_{metric}', ('instance',)).expr} / {limit}", name)


def _latency() -> Query:
    spent = rate_by(f"{SERVER}_opLatencies_latency", ("op_type",))  # in microseconds
    operations = rate_by(f"{SERVER}_opLatencies_ops", ("op_type",))
    return Query(f"{spent} / {operations} / 1e6", "{{op_type}}")


def _server(metric: str, matchers: str = "") -> str:
    """The largest value of each server."""
    return highest(selected(metric, matchers), ("instance",))


def _now_row() -> Row:
    current = _server(f"{SERVER}_connections", 'conn_type="current"')
    free = _server(f"{SERVER}_connections", 'conn_type="available"')
    used = _server(f"{DATABASES}_fsUsedSize")
    size = _server(f"{DATABASES}_fsTotalSize")
    seen = highest(selected("mongodb_up"), ("instance",))
    known = _server(f"{SERVER}_uptime")
    return Row(
        "Now",
        (
            StatPanel(
                "MongoDB Answers",
                "Whether each exporter reaches its server. Without rights: it reaches it and may "
                "read nothing.",
                NO_UNIT,
                5,
                (Query(f"{seen} * 2 unless {known} or {seen} * 0 + 1", "{{instance}}"),),
                ABSENT,
                states=(
                    State(1, "Yes", "green"),
                    State(0, "No", "red"),
                    State(2, "Without rights", "orange"),
                ),
                alerts=("MongoDBDown", "MongoDBExporterUnauthorized"),
                limits=(),
            ),
            StatPanel(
                "Takes Writes",
                "Whether the replica set has a primary. Without one the store answers 503, keeps "
                "nothing, and goes on by itself when there is one again.",
                NO_UNIT,
                4,
                (Query(highest(selected(f"{SERVER}_repl_isWritablePrimary")), "primary"),),
                ABSENT,
                states=(State(1, "Yes", "green"), State(0, "No", "red")),
                alerts=("MongoDBNoPrimary",),
                limits=(),
            ),
            StatPanel(
                "Connections Used",
                "Share of the connections the server allows.",
                RATIO,
                4,
                (Query(f"{current} / ({current} + {free})", "{{instance}}"),),
                ABSENT,
                alerts=("MongoDBConnectionsHigh",),
            ),
            StatPanel(
                "Disk Used",
                "Share of the disk that MongoDB's data lie on.",
                RATIO,
                4,
                (Query(f"{used} / {size}", "{{instance}}"),),
                ABSENT,
                alerts=("MongoDBDiskFillingUp", "MongoDBDiskAlmostFull"),
            ),
            StatPanel(
                "Known Vulnerability",
                "Servers of a version with a known hole; prometheus/data/mongodb_cve.yml lists "
                "them.",
                NO_UNIT,
                4,
                (
                    Query(
                        f"count({selected('instance:mongodb_vulnerable:info')} > 0)"
                        f" or count({selected('mongodb_version_info')}) * 0",
                        "servers",
                    ),
                ),
                "Version not told",
                alerts=("MongoDBKnownVulnerability",),
                spark=False,
            ),
            StatPanel(
                "Up For",
                "How long the youngest of the servers has been up.",
                SECONDS,
                3,
                (Query(f"min({selected(f'{SERVER}_uptime')})", "uptime"),),
                ABSENT,
                alerts=("MongoDBRestarted",),
                limits=(),
                spark=False,
            ),
        ),
    )


def _collections_row() -> Row:
    inner = 'operation!="atomic"'
    latency = "agl_collections_latency"
    commands = "agl_mongo_commands_latency"
    slots = ("instance", "server_process")
    return Row(
        "The Store's View",
        (
            SeriesPanel(
                "Collection Operations / Sec (by Collection)",
                "What the store asks of its collections; `atomic` sections are left out, they "
                "enclose the others.",
                OPS,
                8,
                (Query(rate_by(f"{latency}_count", ("collection",), inner), "{{collection}}"),),
                NO_STORE,
                deeper="agl-store",
            ),
            SeriesPanel(
                "Collection Latency P95 (by Collection)",
                "95 % of the operations on a collection are faster than this.",
                SECONDS,
                8,
                (Query(quantile(0.95, latency, ("collection",), inner), "{{collection}}"),),
                NO_STORE,
                deeper="agl-store",
            ),
            SeriesPanel(
                "Command Latency P95 (by Command)",
                "95 % of the commands the store sends to MongoDB are answered faster than this, "
                "the network included.",
                SECONDS,
                8,
                (Query(quantile(0.95, commands, ("command",)), "{{command}}"),),
                "No store on MongoDB",
            ),
            SeriesPanel(
                "Commands That Failed / Sec",
                "Commands that MongoDB refused, or that found no server.",
                OPS,
                6,
                (
                    Query(
                        only_some(
                            rate_by(
                                "agl_mongo_commands_total", ("command", "status"), 'status!="OK"'
                            )
                        ),
                        "{{command}} {{status}}",
                    ),
                ),
                "✓ None",
            ),
            SeriesPanel(
                "Sent Again, Aborted / Sec",
                "Writes, transactions and commits that were sent again after a failure, and "
                "transactions given up.",
                OPS,
                5,
                (
                    Query(
                        only_some(rate_by("agl_mongo_retries_total", ("operation",))),
                        "{{operation}} again",
                    ),
                    Query(
                        only_some(
                            rate_by(
                                "agl_mongo_transactions_total", ("outcome",), 'outcome="aborted"'
                            )
                        ),
                        "transaction {{outcome}}",
                    ),
                ),
                "✓ None",
            ),
            SeriesPanel(
                "Waiting for a Connection (P50, P95, P99)",
                "How long the store's calls wait for a free connection of their pool.",
                SECONDS,
                7,
                quantile_queries("agl_mongo_pool_wait"),
                "No store on MongoDB",
            ),
            SeriesPanel(
                "Connections of the Store's Pools",
                "Connections that each server process has open, one for heartbeats included. "
                "With 64 others, or as many as `maxPoolSize` of the address says, calls wait.",
                NO_UNIT,
                6,
                (Query(highest(selected("agl_mongo_pool_size"), slots), legend_of(slots)),),
                "No store on MongoDB",
            ),
        ),
    )


def _work_row() -> Row:
    return Row(
        "Work",
        (
            SeriesPanel(
                "MongoDB Operations / Sec (by Type)",
                "What clients asked for, per second. The store writes many documents with one "
                "command, so inserts and updates are well above commands when it is busy.",
                OPS,
                8,
                (
                    Query(
                        rate_by(f"{SERVER}_opcounters", ("legacy_op_type",)),
                        legend_of(("legacy_op_type",)),
                    ),
                ),
            ),
            SeriesPanel(
                "MongoDB Latency (by Kind)",
                "Mean time MongoDB took for a read, a write, a command or a transaction, as it "
                "measures it itself. The store's own view has the network and waiting on top.",
                SECONDS,
                8,
                (_latency(),),
            ),
            SeriesPanel(
                "MongoDB Connections",
                "Open connections. Each store process keeps a pool of its own, so the number "
                "follows the number of processes, and falls when they end.",
                units.Short,
                8,
                (
                    _gauge(
                        f"{SERVER}_connections",
                        ("instance",),
                        matchers='conn_type="current"',
                    ),
                ),
            ),
        ),
    )


def _lag() -> str:
    """Seconds, by member."""
    primary = selected(f"{MEMBERS}_optimeDate", 'member_state="PRIMARY"')
    secondary = selected(f"{MEMBERS}_optimeDate", 'member_state="SECONDARY"')
    behind = f"max by (rs_nm) ({primary}) - on (rs_nm) group_right max by (rs_nm, member_idx)"
    return f"({behind} ({secondary})) / 1000"


def _health_row() -> Row:
    head = _server("mongodb_mongod_replset_oplog_head_timestamp")
    tail = _server("mongodb_mongod_replset_oplog_tail_timestamp")
    return Row(
        "Replica Set",
        (
            SeriesPanel(
                "MongoDB Writable Primary",
                "1 while the replica set has a member that takes writes. At 0 the store answers "
                "503, keeps nothing and goes on by itself when a primary is back.",
                units.Short,
                8,
                (_gauge(f"{SERVER}_repl_isWritablePrimary", ("rs_nm",)),),
                alerts=("MongoDBNoPrimary",),
                limits=(),
            ),
            SeriesPanel(
                "MongoDB Members Healthy",
                "1 for each member that answers the others, by its state.",
                units.Short,
                8,
                (_gauge(f"{MEMBERS}_health", ("member_idx", "member_state")),),
                alerts=("MongoDBMemberUnhealthy", "MongoDBMemberUnusualState"),
                limits=(),
            ),
            SeriesPanel(
                "MongoDB Uptime",
                "Seconds since the server started. A fall to zero is a restart.",
                SECONDS,
                8,
                (_gauge(f"{SERVER}_uptime", ("instance",)),),
                alerts=("MongoDBRestarted",),
                limits=(),
            ),
            SeriesPanel(
                "MongoDB Replication Lag",
                "How far each secondary is behind the primary. With one member there is none.",
                SECONDS,
                8,
                (Query(_lag(), "{{member_idx}}"),),
                "One member",
                alerts=("MongoDBReplicationLag",),
            ),
            SeriesPanel(
                "MongoDB Oplog Window",
                "How long a secondary may be away and still catch up: the time that the oplog "
                "covers.",
                units.Hours,
                8,
                (Query(f"({head} - {tail}) / 3600", "{{instance}}"),),
                "The exporter does not tell",
                alerts=("MongoDBOplogWindowShort",),
            ),
            SeriesPanel(
                "MongoDB Operations Queued",
                "Reads and writes that wait inside the server. Any that last: it is overloaded.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            total(
                                selected(
                                    f"{SERVER}_globalLock_currentQueue",
                                    'count_type=~"readers|writers"',
                                ),
                                ("instance", "count_type"),
                            )
                        ),
                        "{{instance}} {{count_type}}",
                    ),
                ),
                "✓ None waits",
                alerts=("MongoDBOperationsQueued",),
            ),
        ),
    )


def _storage_row() -> Row:
    sizes = (("dataSize", "data"), ("storageSize", "on disk"), ("indexSize", "indexes"))
    return Row(
        "Storage",
        (
            SeriesPanel(
                "MongoDB Sizes (by Database)",
                "Documents as they are, what they take on disk (compressed, with room that was "
                "freed), and the indexes, which should fit into the cache.",
                units.BytesIEC,
                8,
                tuple(
                    _gauge(f"{DATABASES}_{metric}", ("database",), f"{{{{database}}}} {name}")
                    for metric, name in sizes
                ),
            ),
            SeriesPanel(
                "MongoDB Documents (by Database)",
                "How many documents there are, in all collections. The store keeps one for each "
                "rollout with its attempts, and one for each span.",
                units.Short,
                8,
                (_gauge(f"{DATABASES}_objects", ("database",)),),
            ),
            SeriesPanel(
                "MongoDB Cache (Share of Its Limit)",
                "Near 80 % in use is normal. Above 95 %, or dirty above 20 %, clients themselves "
                "have to make room, and everything gets slow: give AGL_MONGO_MEMORY and "
                "AGL_MONGO_CACHE_GB more.",
                units.PercentUnit,
                8,
                (
                    _cache("bytes_currently_in_the_cache", "in use {{instance}}"),
                    _cache("tracked_dirty_bytes_in_the_cache", "dirty {{instance}}"),
                ),
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (_now_row(), _collections_row(), _work_row(), _health_row(), _storage_row())
    return assemble(FRAME, rows, alerts)
