"""The ``agl-node`` board: what the hosts and the containers on them have left."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import units

from agl.ops.dashboards import containers
from agl.ops.dashboards.frame import Choice, Frame, assemble
from agl.ops.dashboards.panels import (
    NO_UNIT,
    OPS,
    RATIO,
    SECONDS,
    Column,
    Query,
    Row,
    SeriesPanel,
    State,
    StatesPanel,
    TablePanel,
    highest,
    only_some,
    rate,
    rate_by,
    selected,
    total,
)
from agl.ops.dashboards.thresholds import Alerts

UID = "agl-node"
FRAME = Frame(
    UID,
    "Node and Containers",
    "CPU, memory, disks and network of every host, and the processes of the stack on it.",
    ("node", "containers"),
    "node_load1",
    (Choice("host", "node_load1"),),
)
BYTES_PER_SECOND = units.BytesPerSecondSI
HOST = 'host=~"$host"'
DISK = f'{HOST}, fstype!~"tmpfs|ramfs|overlay|squashfs"'
DEVICE = f'{HOST}, device!~"lo|veth.*|br-.*|docker.*"'
IDLE = f'{HOST}, mode="idle"'
ACTIVE = f'{HOST}, state="active"'
FAILED = f'{HOST}, state="failed"'
NO_NODE = "node-exporter tells nothing"


def _series(metric: str, matchers: str = HOST) -> str:
    return selected(metric, matchers)


def _share_left(left: str, size: str) -> str:
    labels = ("host", "mountpoint")
    return f"{highest(_series(left, DISK), labels)} / {highest(_series(size, DISK), labels)}"


def _cpu() -> str:
    busy = total(rate("node_cpu_seconds_total", f'{HOST}, mode!~"idle|iowait"'), ("host",))
    return f"{busy} / {_cores()}"


def _cores() -> str:
    return f"count by (host) ({_series('node_cpu_seconds_total', IDLE)})"


def _load() -> str:
    return f"{highest(_series('node_load1'), ('host',))} / {_cores()}"


def _memory() -> str:
    left = highest(_series("node_memory_MemAvailable_bytes"), ("host",))
    return f"1 - {left} / {highest(_series('node_memory_MemTotal_bytes'), ('host',))}"


def _hosts_row() -> Row:
    lowest = _share_left("node_filesystem_avail_bytes", "node_filesystem_size_bytes")
    columns = (
        Column("host", "Host", link="/d/agl-node?var-host=${__value.text}"),
        Column("Value #A", "CPU busy", RATIO, alerts=("NodeCPUHighUsage",)),
        Column("Value #B", "Load per core", NO_UNIT, alerts=("NodeSystemSaturation",)),
        Column("Value #C", "Memory used", RATIO, alerts=("NodeMemoryHighUtilization",)),
        Column(
            "Value #D",
            "Least disk left",
            RATIO,
            alerts=("NodeFilesystemAlmostOutOfSpace", "NodeFilesystemOutOfSpace"),
        ),
        Column("Value #E", "Up since", units.DateTimeFromNow),
    )
    boot = f"{highest(_series('node_boot_time_seconds'), ('host',))} * 1000"
    return Row(
        "Hosts",
        (
            StatesPanel(
                "Hosts Answer",
                "Whether a host's node-exporter answers. Where none of a host's exporters does, "
                "the host is down or cut off.",
                NO_UNIT,
                10,
                (Query(highest(_series("up"), ("host",)), "{{host}}"),),
                NO_NODE,
                height=7,
                alerts=("NodeDown",),
                states=(State(1, "Answers", "green"), State(0, "No answer", "red")),
            ),
            TablePanel(
                "Hosts at a Glance",
                "What each host has to spare now. A click on a host shows it alone.",
                NO_UNIT,
                14,
                tuple(
                    Query(expr, "{{host}}")
                    for expr in (_cpu(), _load(), _memory(), f"min by (host) ({lowest})", boot)
                ),
                NO_NODE,
                height=7,
                columns=columns,
                sort="Host",
            ),
        ),
    )


def _cpu_row() -> Row:
    return Row(
        "CPU and Memory",
        (
            SeriesPanel(
                "CPU Busy",
                "Share of all cores at work; waiting for a disk is not work.",
                RATIO,
                8,
                (Query(_cpu(), "{{host}}"),),
                NO_NODE,
                alerts=("NodeCPUHighUsage",),
                maximum=1,
            ),
            SeriesPanel(
                "Load per Core",
                "Processes that run or want to, for each core. Above 1 they wait for each other.",
                NO_UNIT,
                8,
                (Query(_load(), "{{host}}"),),
                NO_NODE,
                alerts=("NodeSystemSaturation",),
            ),
            SeriesPanel(
                "Memory Used",
                "Share of memory that could not be had at once. At 100 % the kernel kills the "
                "largest process, which is the store.",
                RATIO,
                8,
                (Query(_memory(), "{{host}}"),),
                NO_NODE,
                alerts=("NodeMemoryHighUtilization",),
                maximum=1,
            ),
            SeriesPanel(
                "Major Page Faults / Sec",
                "Pages that had to be read from disk again: memory is too small for what runs.",
                OPS,
                8,
                (Query(rate_by("node_vmstat_pgmajfault", ("host",), HOST), "{{host}}"),),
                NO_NODE,
                alerts=("NodeMemoryMajorPagesFaults",),
            ),
            SeriesPanel(
                "File Descriptors Used",
                "Share of the system's open files.",
                RATIO,
                8,
                (
                    Query(
                        f"{highest(_series('node_filefd_allocated'), ('host',))} / "
                        f"{highest(_series('node_filefd_maximum'), ('host',))}",
                        "{{host}}",
                    ),
                ),
                NO_NODE,
                alerts=("NodeFileDescriptorLimit", "NodeFileDescriptorsAlmostUsedUp"),
            ),
            SeriesPanel(
                "Processes Killed for Want of Memory",
                "Times the kernel's OOM killer struck, in the window of a point. Any is one too "
                "many: the row of containers tells where, if it was one of the stack's.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            f"sum by (host) (increase({_series('node_vmstat_oom_kill')}"
                            "[$__rate_interval]))"
                        ),
                        "{{host}}",
                    ),
                ),
                "✓ None killed",
                bars=True,
                alerts=("OOMKilled",),
            ),
        ),
    )


def _disk_row() -> Row:
    busy = rate_by("node_disk_io_time_weighted_seconds_total", ("host", "device"), HOST)
    return Row(
        "Disks",
        (
            SeriesPanel(
                "Disk Space Left",
                "Share of each file system that is free for the stack.",
                RATIO,
                8,
                (
                    Query(
                        _share_left("node_filesystem_avail_bytes", "node_filesystem_size_bytes"),
                        "{{host}} {{mountpoint}}",
                    ),
                ),
                NO_NODE,
                alerts=(
                    "NodeFilesystemAlmostOutOfSpace",
                    "NodeFilesystemOutOfSpace",
                    "NodeFilesystemSpaceFillingUp",
                    "NodeFilesystemSpaceFillingUpFast",
                ),
                limits=("NodeFilesystemAlmostOutOfSpace", "NodeFilesystemOutOfSpace"),
                maximum=1,
            ),
            SeriesPanel(
                "Files Left",
                "Share of each file system's inodes that is free. Without any, no file can be made "
                "however much space there is.",
                RATIO,
                8,
                (
                    Query(
                        _share_left("node_filesystem_files_free", "node_filesystem_files"),
                        "{{host}} {{mountpoint}}",
                    ),
                ),
                NO_NODE,
                alerts=(
                    "NodeFilesystemAlmostOutOfFiles",
                    "NodeFilesystemOutOfFiles",
                    "NodeFilesystemFilesFillingUp",
                    "NodeFilesystemFilesFillingUpFast",
                ),
                limits=("NodeFilesystemAlmostOutOfFiles", "NodeFilesystemOutOfFiles"),
                maximum=1,
            ),
            SeriesPanel(
                "Disk Operations Waiting",
                "Reads and writes that a disk had before it at a time, on average.",
                NO_UNIT,
                8,
                (Query(f"topk(20, {busy})", "{{host}} {{device}}"),),
                NO_NODE,
                alerts=("NodeDiskIOSaturation",),
            ),
            SeriesPanel(
                "Disk Traffic",
                "Bytes read and written per second, all disks of a host together.",
                BYTES_PER_SECOND,
                8,
                (
                    Query(rate_by("node_disk_read_bytes_total", ("host",), HOST), "{{host}} read"),
                    Query(
                        rate_by("node_disk_written_bytes_total", ("host",), HOST),
                        "{{host}} written",
                    ),
                ),
                NO_NODE,
            ),
            SeriesPanel(
                "RAID Disks Missing",
                "Disks that an array wants and does not have, and disks it has given up.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            f"max by (host, device) ({_series('node_md_disks_required')}) - "
                            "max by (host, device) "
                            f"({_series('node_md_disks', ACTIVE)})"
                        ),
                        "{{host}} {{device}} missing",
                    ),
                    Query(
                        only_some(f"max by (host, device) ({_series('node_md_disks', FAILED)})"),
                        "{{host}} {{device}} failed",
                    ),
                ),
                "✓ None missing",
                alerts=("NodeRAIDDegraded", "NodeRAIDDiskFailure"),
            ),
            SeriesPanel(
                "Spool of Small Facts Unreadable",
                "1 while a host's textfile collector cannot read a file: facts such as the "
                "expected number of GPUs are missing or old.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(highest(_series("node_textfile_scrape_error"), ("host",))),
                        "{{host}}",
                    ),
                ),
                "✓ All readable",
                alerts=("NodeTextFileCollectorScrapeError",),
            ),
        ),
    )


def _errors(way: str) -> Query:
    labels = ("host", "device")
    failed = rate_by(f"node_network_{way}_errs_total", labels, DEVICE)
    packets = rate_by(f"node_network_{way}_packets_total", labels, DEVICE)
    return Query(only_some(f"{failed} / {packets}"), f"{{{{host}}}} {{{{device}}}} {way}")


def _network_row() -> Row:
    return Row(
        "Network and Clock",
        (
            SeriesPanel(
                "Network Traffic",
                "Bytes per second over the host's own devices; bridges of containers are left out.",
                BYTES_PER_SECOND,
                8,
                tuple(
                    Query(
                        rate_by(f"node_network_{way}_bytes_total", ("host",), DEVICE),
                        f"{{{{host}}}} {way}",
                    )
                    for way in ("receive", "transmit")
                ),
                NO_NODE,
            ),
            SeriesPanel(
                "Network Errors (Share of Packets)",
                "Packets that were broken, as a share of all. Devices without any draw no line.",
                RATIO,
                8,
                (_errors("receive"), _errors("transmit")),
                "✓ No errors",
                alerts=("NodeNetworkReceiveErrs", "NodeNetworkTransmitErrs"),
            ),
            SeriesPanel(
                "Connections Tracked (Share of the Limit)",
                "Entries of the firewall's table. At its limit new connections are dropped.",
                RATIO,
                8,
                (
                    Query(
                        f"{highest(_series('node_nf_conntrack_entries'), ('host',))} / "
                        f"{highest(_series('node_nf_conntrack_entries_limit'), ('host',))}",
                        "{{host}}",
                    ),
                ),
                "No connection tracking",
                alerts=("NodeHighNumberConntrackEntriesUsed",),
            ),
            SeriesPanel(
                "Clock Off By",
                "How far the clock is from the time servers', either way. Clocks that differ make "
                "timeouts of MongoDB hosts and traces wrong.",
                SECONDS,
                8,
                (
                    Query(
                        f"abs({highest(_series('node_timex_offset_seconds'), ('host',))})",
                        "{{host}}",
                    ),
                ),
                NO_NODE,
                alerts=("NodeClockSkewDetected", "NodeClockNotSynchronising"),
                limits=("NodeClockSkewDetected",),
            ),
            SeriesPanel(
                "Links Missing in Bonds",
                "Network cables that a bond should have and has not.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            f"max by (host, master) ({_series('node_bonding_slaves')}) - "
                            f"max by (host, master) ({_series('node_bonding_active')})"
                        ),
                        "{{host}} {{master}}",
                    ),
                ),
                "✓ None missing",
                alerts=("NodeBondingDegraded",),
            ),
            SeriesPanel(
                "Services That Failed",
                "Units of systemd that have failed; only where node-exporter is a service of the "
                "host.",
                NO_UNIT,
                8,
                (
                    Query(
                        only_some(
                            f"max by (host, name) ({_series('node_systemd_unit_state', FAILED)})"
                        ),
                        "{{host}} {{name}}",
                    ),
                ),
                "✓ None known to have failed",
                alerts=("NodeSystemdServiceFailed", "NodeSystemdServiceCrashlooping"),
                limits=("NodeSystemdServiceFailed",),
            ),
        ),
    )


def build(alerts: Alerts) -> dashboard_model.Dashboard:
    """Return the board, ready to be rendered."""
    rows = (_hosts_row(), containers.row(), _cpu_row(), _disk_row(), _network_row())
    return assemble(FRAME, rows, alerts)
