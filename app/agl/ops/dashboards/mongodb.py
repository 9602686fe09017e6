"""The ``agl-mongodb`` board: how MongoDB is, as its exporter tells."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards.frame import Frame, assemble
from agl.ops.dashboards.panels import (
    OPS,
    SECONDS,
    SELECTOR,
    Query,
    Row,
    SeriesPanel,
    legend_of,
    rate_by,
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


def _health_row() -> Row:
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
            ),
            SeriesPanel(
                "MongoDB Members Healthy",
                "1 for each member that answers the others, by its state.",
                units.Short,
                8,
                (_gauge(f"{MEMBERS}_health", ("member_idx", "member_state")),),
            ),
            SeriesPanel(
                "MongoDB Uptime",
                "Seconds since the server started. A fall to zero is a restart.",
                SECONDS,
                8,
                (_gauge(f"{SERVER}_uptime", ("instance",)),),
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
    return assemble(FRAME, (_work_row(), _health_row(), _storage_row()), alerts)
