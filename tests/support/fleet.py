"""A training cluster that is not there: what its exporters would serve at any moment.

Three hosts, one with the store and MongoDB, two with eight GPUs each, and around them vLLM, Ray,
LiteLLM and verl's rollout servers. Most of it is well; of every kind of trouble there is some, so
that no panel is empty: a GPU is missing, others report XIDs, a deployment is out, a disk is nearly
full. Values are functions of the time alone: the same moment always gives the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from rule_checks import ROOT

from agl.ops.alerting.tables import xid_classes

XID_TABLE = ROOT / "prometheus" / "data" / "xid.yml"

EPOCH = 1_767_000_000
RESTART = EPOCH + 1900 * 40
"""A moment at which the exporter of the store starts anew; it does so every 1900 seconds."""
SLOW_EDGES = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
CLAIM_EDGES = (0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
FAST_EDGES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


@dataclass(frozen=True)
class Sample:
    """One sample; ``kind`` is what its metric is: counter, gauge or histogram."""

    name: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    value: float

    @property
    def metric(self) -> str:
        """The name of the metric, without what a histogram's series add to it."""
        return self.name.removesuffix("_bucket") if self.kind == "histogram" else self.name


@dataclass(frozen=True)
class Scraped:
    """A target: where it is said to be."""

    job: str
    instance: str
    host: str


TARGETS = (
    Scraped("app", "app-exporter:4748", "store-01"),
    Scraped("node", "store-01:9100", "store-01"),
    Scraped("node", "gpu-01:9100", "gpu-01"),
    Scraped("node", "gpu-02:9100", "gpu-02"),
    Scraped("containers", "container-exporter:9101", "store-01"),
    Scraped("mongodb", "mongodb-exporter:9216", "store-01"),
    Scraped("dcgm", "gpu-01:9400", "gpu-01"),
    Scraped("dcgm", "gpu-02:9400", "gpu-02"),
    Scraped("vllm", "gpu-01:8000", "gpu-01"),
    Scraped("vllm", "gpu-02:8000", "gpu-02"),
    Scraped("rollout", "gpu-01:41873", "gpu-01"),
    Scraped("ray", "gpu-01:8090", "gpu-01"),
    Scraped("litellm", "store-01:4000", "store-01"),
    Scraped("alertmanager", "alertmanager:9093", "store-01"),
    Scraped("prometheus", "prometheus-2:9090", "gpu-01"),
)


def served(target: Scraped, at: float) -> Iterator[Sample]:
    """What a target serves at ``at``, seconds since the epoch."""
    yield from _SERVED[target.job](target, at)


def exposition(target: Scraped, at: float) -> str:
    """The same as text, as Prometheus scrapes it."""
    kinds: dict[str, str] = {}
    lines: list[str] = []
    for sample in sorted(served(target, at), key=lambda sample: sample.metric):
        if sample.metric not in kinds:
            kinds[sample.metric] = sample.kind
            lines.append(f"# TYPE {sample.metric} {sample.kind}")
        lines.append(f"{sample.name}{_shown(sample.labels)} {sample.value!r}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Serves every target of ``TARGETS`` at ``/<its number>``; gives the port on loopback.

    Its time begins with the first scrape, shortly before ``RESTART``.
    """
    first: list[float] = []

    def clock() -> float:
        first.append(time.time())
        return RESTART - 8 + time.time() - first[0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition(TARGETS[int(self.path.strip("/"))], clock()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            with contextlib.suppress(ConnectionError):  # Prometheus is gone, or took too long
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: a line for every scrape helps nobody."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def configuration(port: int, prometheus: int, rules: Path) -> str:
    """Of a Prometheus on the port ``prometheus`` that scrapes all this, itself, and nobody."""
    jobs = [
        _job(f"{target.job}-{number}", f"/{number}", f"127.0.0.1:{port}", target)
        for number, target in enumerate(TARGETS)
    ]
    itself = Scraped("prometheus", "prometheus:9090", "store-01")
    nobody = Scraped("tpu", "gpu-01:9999", "gpu-01")
    jobs.append(_job("self", "/metrics", f"127.0.0.1:{prometheus}", itself))
    jobs.append(_job("nobody", "/metrics", "127.0.0.1:1", nobody))
    return json.dumps(
        {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(rules / "rules" / "*.yml"), str(rules / "alerts" / "*.yml")],
            "scrape_configs": jobs,
        }
    )


def _job(name: str, path: str, address: str, target: Scraped) -> dict[str, object]:
    labels = {"job": target.job, "instance": target.instance, "host": target.host}
    return {
        "job_name": name,
        "metrics_path": path,
        "static_configs": [{"targets": [address], "labels": labels}],
    }


def past(start: int, end: int, step: int) -> Iterator[str]:
    """OpenMetrics text of everything from ``start`` to ``end``, what rules would make included."""
    lines: dict[str, tuple[str, list[str]]] = {}
    for at in range(start, end + 1, step):
        for target in TARGETS:
            where = (("job", target.job), ("instance", target.instance), ("host", target.host))
            up = Sample("up", "gauge", (), 1)
            slow = Sample("scrape_duration_seconds", "gauge", (), wave(at, 0.01, 0.3, target))
            for sample in (up, slow, *served(target, at)):
                shown = _shown((*where, *sample.labels))
                _, found = lines.setdefault(sample.metric, (sample.kind, []))
                found.append(f"{sample.name}{shown} {sample.value!r} {at}")
        for sample in _made(at):
            _, found = lines.setdefault(sample.metric, (sample.kind, []))
            found.append(f"{sample.name}{_shown(sample.labels)} {sample.value!r} {at}")
    for metric, (_, found) in sorted(lines.items()):
        yield f"# TYPE {metric} unknown"
        yield from sorted(found, key=lambda line: line.rpartition("} ")[0])
    yield "# EOF"


FIRED = (
    ("Watchdog", "none", "meta", "", ""),
    ("GpuXidCritical", "critical", "gpu", "gpu-01", "gpu-01:9400"),
    ("GpuCountUnexpected", "critical", "gpu", "gpu-02", ""),
    ("NodeFilesystemAlmostOutOfSpace", "warning", "node", "store-01", "store-01:9100"),
    ("GpuXidInfo", "info", "gpu", "gpu-02", "gpu-02:9400"),
)


def _made(at: int) -> Iterator[Sample]:
    """What rules and Prometheus itself make of it."""
    for name, severity, component, host, instance in FIRED:
        labels = {"alertname": name, "alertstate": "firing", "severity": severity}
        labels |= {"component": component} | ({"host": host} if host else {})
        labels |= {"instance": instance} if instance else {}
        if name == "Watchdog" or at % 7200 > 3000:
            yield _gauge("ALERTS", 1, **labels)
    for slo, burn in (("store_availability", 2.6), ("store_latency", 0.4), ("scheduling", 0.2)):
        for window in ("1h", "6h", "3d"):
            of = {"job": "app", "instance": "app-exporter:4748", "host": "store-01", "slo": slo}
            name = f"slo:error_budget:burn_rate{window}"
            yield _gauge(name, wave(at, burn / 2, burn * 2, slo, window), **of)
    classes = {
        str(xid): entry
        for entry in xid_classes(XID_TABLE)
        for xid in cast("list[int]", entry["xids"])
    }
    unknown = {"class": "unknown", "urgency": "warning", "action": "look it up"}
    for host, number, xid, times in XIDS:
        told = classes.get(xid, unknown)
        labels = {name: str(told[name]) for name in ("class", "urgency", "action")}
        where = {"job": "dcgm", "instance": f"{host}:9400", "host": host, "gpu": str(number)}
        yield _gauge("gpu:xid_errors:count", times, **where, xid=xid, **labels)


def _shown(labels: tuple[tuple[str, str], ...]) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


@cache
def _phase(*parts: object) -> float:
    return sum(ord(c) * (i + 1) for i, c in enumerate(repr(parts))) % 628 / 100


def wave(at: float, low: float, high: float, *who: object, period: float = 1500) -> float:
    """A value that goes up and down between ``low`` and ``high``."""
    share = 0.5 + 0.35 * math.sin(at / period * 6.28 + _phase(*who))
    share += 0.15 * math.sin(at / (period / 7) * 6.28 + 2 * _phase(*who))
    return low + (high - low) * share


def grown(at: float, rate: float, *who: object) -> float:
    """A counter that grows by ``rate`` a second, now faster, now slower."""
    turn = 6.28 / 1200
    return rate * (at - EPOCH + 0.6 / turn * math.sin(at * turn + _phase(*who)))


def _gauge(name: str, value: float, /, **labels: str) -> Sample:
    return Sample(name, "gauge", tuple(labels.items()), value)


def _counter(name: str, at: float, rate: float, /, **labels: str) -> Sample:
    return Sample(name, "counter", tuple(labels.items()), grown(at, rate, name, *labels.values()))


def _histogram(
    name: str, at: float, rate: float, middle: float, edges: tuple[float, ...], /, **labels: str
) -> Iterator[Sample]:
    total = grown(at, rate, name, *labels.values())
    for edge in (*edges, math.inf):
        share = 1 - math.exp(-((edge / middle) ** 1.3)) if edge < math.inf else 1.0
        le = "+Inf" if edge == math.inf else repr(float(edge))
        yield Sample(f"{name}_bucket", "histogram", (*labels.items(), ("le", le)), total * share)
    yield Sample(f"{name}_count", "histogram", tuple(labels.items()), total)
    yield Sample(f"{name}_sum", "histogram", tuple(labels.items()), total * middle)


CALLS = (
    ("POST", "/v1/agl/queues/rollouts/dequeue", "dequeue_rollout", "rollout_queue", 6.0, 0.004),
    ("POST", "/v1/agl/queues/rollouts/enqueue", "enqueue_rollout", "rollouts", 1.2, 0.006),
    ("POST", "/v1/agl/spans/batch", "add_many_spans", "spans", 22.0, 0.009),
    ("GET", "/v1/agl/rollouts/{rollout_id}", "get_rollout_by_id", "rollouts", 9.0, 0.002),
    ("POST", "/v1/agl/attempts/batch", "update_attempt", "attempts", 1.3, 0.005),
    ("GET", "/v1/agl/workers", "query_workers", "workers", 0.2, 0.003),
)


def _app(target: Scraped, at: float) -> Iterator[Sample]:
    for verb, path, method, collection, rate, middle in CALLS:
        fast = FAST_EDGES
        http = {"path": path, "method": verb}
        yield _counter("agl_http_total", at, rate, **http, status="200")
        yield _counter("agl_http_total", at, rate / 400, **http, status="503")
        yield from _histogram("agl_http_latency", at, rate, middle, fast, **http, status="200")
        store = {"method": method, "store_pubmeth": method}
        yield _counter("agl_store_total", at, rate, **store, status="OK")
        yield _counter("agl_store_total", at, rate / 300, **store, status="ConflictError")
        yield from _histogram("agl_store_latency", at, rate, middle / 2, fast, **store, status="OK")
        inner = {
            "store_pubmeth": method,
            "operation": "update",
            "collection": collection,
            "store_privmeth": method,
        }
        for status, share in (("OK", 1.0), ("ConflictError", 0.003)):
            yield from _histogram(
                "agl_collections_latency",
                at,
                rate * share,
                middle / 4,
                fast,
                **inner,
                status=status,
            )
    waits = {"path": "/v1/agl/waits/rollouts", "method": "POST", "status": "200"}
    yield from _histogram("agl_http_waits", at, 0.4, 6, SLOW_EDGES, **waits)
    for mode, share in (("train", 1.0), ("val", 0.2)):
        for status, part in (("succeeded", 0.94), ("failed", 0.05), ("cancelled", 0.01)):
            ended = {"status": status, "mode": mode}
            yield _counter("agl_rollouts_total", at, 1.2 * share * part, **ended)
            yield from _histogram(
                "agl_rollouts_duration", at, 1.2 * share * part, 40, SLOW_EDGES, **ended
            )
        for attempt, part in (("first", 0.9), ("retry", 0.1)):
            claim = {"attempt": attempt, "mode": mode}
            yield _counter("agl_rollouts_claims_total", at, 1.3 * share * part, **claim)
        yield from _histogram(
            "agl_rollouts_claim_delay", at, 1.2 * share, 20, CLAIM_EDGES, mode=mode
        )
    yield _counter("agl_http_refused_total", at, 0.1, reason="wrong")
    yield _counter("agl_rollouts_late_total", at, 0.02, event="span")
    yield _counter("agl_spans_duplicates_total", at, 0.03)
    yield _counter("agl_spans_evicted_total", at, 0.5)
    for command, rate in (("bulkWrite", 14.0), ("find", 20.0), ("aggregate", 1.0)):
        yield _counter("agl_mongo_commands_total", at, rate, command=command, status="OK")
        yield _counter("agl_mongo_commands_total", at, 0.02, command=command, status="refused")
        yield from _histogram(
            "agl_mongo_commands_latency", at, rate, 0.003, FAST_EDGES, command=command, status="OK"
        )
    yield _counter("agl_mongo_retries_total", at, 0.05, operation="write")
    yield _counter("agl_mongo_transactions_total", at, 0.04, outcome="aborted")
    yield from _histogram("agl_mongo_pool_wait", at, 30, 0.0004, FAST_EDGES, status="OK")
    yield from _exporter(at)
    yield from _state(at)


def _exporter(at: float) -> Iterator[Sample]:
    yield _gauge("agl_exporter_folder_up", 1)
    yield _gauge("agl_exporter_folder_bytes", wave(at, 2e6, 3e6, "folder"))
    yield _gauge("agl_exporter_folder_fill_ratio", wave(at, 0.1, 0.16, "fill"))
    yield _gauge("agl_exporter_newest_write_age_seconds", 1 + at % 3)
    for what in ("files", "keys", "values"):
        yield _gauge(f"agl_exporter_bad_{what}", 1 if what == "files" else 2)
    yield _counter("agl_metrics_dropped_total", at, 0.2)
    for phase in ("list", "read", "sum", "format", "compress"):
        for part, rate in (("sum", 0.002), ("count", 0.2)):
            name = f"agl_exporter_scrape_seconds_{part}"
            yield Sample(name, "counter", (("phase", phase),), grown(at, rate, "scrape", phase))
    for slot in ("0", "1"):
        since = at - (at - EPOCH) % 1900 if slot == "1" else EPOCH
        yield _gauge("agl_process_start_time_seconds", since, server_process=slot)
        yield _counter("agl_process_cpu_seconds_total", at, 0.4, server_process=slot)
        yield _gauge(
            "agl_process_resident_memory_bytes", wave(at, 4e8, 6e8, slot), server_process=slot
        )
        connections = round(wave(at, 6, 20, slot, "pool"))
        yield _gauge("agl_mongo_pool_size", connections, server_process=slot)
    yield _gauge("process_start_time_seconds", at - (at - EPOCH) % 1900)


def _state(at: float) -> Iterator[Sample]:
    queue = wave(at, 8, 60, "queue")
    busy = round(wave(at, 20, 30, "busy"))
    yield _gauge("agl_state_up", 1)
    yield _gauge("agl_state_age_seconds", at % 5)
    yield _gauge("agl_state_queue_depth", round(queue))
    yield _gauge("agl_state_oldest_queued_age_seconds", wave(at, 12, 90, "queue"))
    yield _gauge("agl_state_running_attempts", busy)
    yield _gauge("agl_state_oldest_running_age_seconds", wave(at, 60, 500, "age"))
    yield _gauge("agl_state_oldest_running_timeout_ratio", wave(at, 0.1, 0.83, "age"))
    under_way = (
        ("queuing", queue),
        ("requeuing", queue / 9),
        ("preparing", 2.0),
        ("running", float(busy)),
        ("succeeded", grown(at, 1.1, "done")),
        ("failed", grown(at, 0.06, "failed")),
    )
    for mode, share in (("train", 0.8), ("val", 0.2)):
        for status, value in under_way:
            yield _gauge("agl_state_rollouts", round(value * share), status=status, mode=mode)
        for what, rate in (("spans", 0.004), ("reward", 0.01)):
            name = f"agl_state_finished_without_{what}"
            yield _gauge(name, grown(at, rate, what, mode), mode=mode)
    for status, rate in (
        ("succeeded", 1.2),
        ("failed", 0.07),
        ("timeout", 0.03),
        ("unresponsive", 0.02),
    ):
        yield _gauge("agl_state_attempts", grown(at, rate, status), status=status)
    yield _gauge("agl_state_attempts", busy, status="running")
    yield _gauge("agl_state_retries", grown(at, 0.08, "retries"))
    for status, value in (("busy", busy), ("idle", 0 if busy > 21 else 4), ("unknown", 1)):
        yield _gauge("agl_state_workers", value, status=status)
        yield _gauge(
            "agl_state_worker_oldest_heartbeat_age_seconds",
            at % 30 if status != "unknown" else at % 900,
            status=status,
        )
    yield _gauge("agl_state_silent_workers", 1)
    yield _gauge("agl_state_spans_stored", wave(at, 4e5, 6e5, "spans"))
    yield _gauge("agl_state_spans_evicted", grown(at, 0.5, "evicted"))
    yield _gauge("agl_state_span_bytes", wave(at, 9e8, 1.6e9, "spans"))
    yield _gauge("agl_state_eviction_threshold_bytes", 1.7e9)
    yield _gauge("agl_state_safe_threshold_bytes", 1.4e9)
    yield _gauge("agl_state_memory_capacity_bytes", 2.1e9)


def _node(target: Scraped, at: float) -> Iterator[Sample]:
    host = target.host
    full = host == "store-01"
    for core in range(8):
        for mode, share in (("user", 0.5), ("system", 0.06), ("iowait", 0.02)):
            labels = {"cpu": str(core), "mode": mode}
            yield _counter("node_cpu_seconds_total", at, share, **labels)
        idle = at - EPOCH - 0.58 * grown(at, 1, host, core)
        labels = (("cpu", str(core)), ("mode", "idle"))
        yield Sample("node_cpu_seconds_total", "counter", labels, idle)
    yield _gauge("node_load1", wave(at, 3, 9, host))
    yield _gauge("node_boot_time_seconds", EPOCH - 86400 * 9)
    yield _gauge("node_memory_MemTotal_bytes", 64e9)
    yield _gauge("node_memory_MemAvailable_bytes", wave(at, 9e9, 40e9, host))
    yield _counter("node_vmstat_pgmajfault", at, 3)
    yield _counter("node_vmstat_oom_kill", at, 0.02 if full else 0)
    yield _gauge("node_filefd_allocated", wave(at, 4e3, 9e3, host))
    yield _gauge("node_filefd_maximum", 1e5)
    for mount, share in (("/", 0.4), ("/data", 0.045 if full else 0.6)):
        disk = {"device": f"/dev{mount}", "fstype": "ext4", "mountpoint": mount}
        yield _gauge("node_filesystem_size_bytes", 1e12, **disk)
        yield _gauge("node_filesystem_avail_bytes", 1e12 * share, **disk)
        yield _gauge("node_filesystem_files", 6e7, **disk)
        yield _gauge("node_filesystem_files_free", 6e7 * (share + 0.3), **disk)
        yield _gauge("node_filesystem_readonly", 0, **disk)
    yield _counter("node_disk_io_time_weighted_seconds_total", at, 2.5, device="nvme0n1")
    yield _counter("node_disk_read_bytes_total", at, 2e7, device="nvme0n1")
    yield _counter("node_disk_written_bytes_total", at, 6e7, device="nvme0n1")
    yield _gauge("node_md_disks_required", 2, device="md0")
    yield _gauge("node_md_disks", 1 if full else 2, device="md0", state="active")
    yield _gauge("node_md_disks", 1 if full else 0, device="md0", state="failed")
    yield _gauge("node_textfile_scrape_error", 1 if full else 0)
    for way in ("receive", "transmit"):
        yield _counter(f"node_network_{way}_bytes_total", at, 8e7, device="eth0")
        yield _counter(f"node_network_{way}_packets_total", at, 6e4, device="eth0")
        yield _counter(f"node_network_{way}_errs_total", at, 30 if full else 0, device="eth0")
    yield _gauge("node_nf_conntrack_entries", wave(at, 2e3, 9e3, host))
    yield _gauge("node_nf_conntrack_entries_limit", 262144)
    yield _gauge("node_timex_offset_seconds", wave(at, -0.002, 0.004, host))
    yield _gauge("node_timex_sync_status", 1)
    yield _gauge("node_timex_maxerror_seconds", 0.02)
    yield _gauge("node_bonding_slaves", 2, master="bond0")
    yield _gauge("node_bonding_active", 1 if full else 2, master="bond0")
    unit = {"name": "chrony.service", "state": "failed", "type": "notify"}
    yield _gauge("node_systemd_unit_state", 1 if full else 0, **unit)
    yield _gauge("process_start_time_seconds", EPOCH)
    if not full:
        yield _gauge("agl_node_gpus_expected", 8)


def _containers(target: Scraped, at: float) -> Iterator[Sample]:
    for service, limit in (("app", 4e9), ("app-exporter", 4e8), ("prometheus", 2e9)):
        full = service == "prometheus"
        share = 0.93 if full else wave(at, 0.3, 0.6, service)
        yield _gauge("agl_container_memory_bytes", limit * share, service=service)
        yield _gauge("agl_container_memory_limit_bytes", limit, service=service)
        yield _counter("agl_container_starts_total", at, 0.01 if full else 0, service=service)
        yield _counter("agl_container_oom_kills_total", at, 0.01 if full else 0, service=service)


def _mongodb(target: Scraped, at: float) -> Iterator[Sample]:
    rs = {"rs_nm": "rs0"}
    yield _gauge("mongodb_up", 1)
    yield _gauge("mongodb_ss_uptime", at - EPOCH + 2e5, **rs)
    yield _gauge("mongodb_ss_connections", wave(at, 60, 110, "c"), **rs, conn_type="current")
    yield _gauge("mongodb_ss_connections", 700, **rs, conn_type="available")
    for kind, rate in (("insert", 25), ("query", 40), ("update", 30), ("command", 20)):
        yield _counter("mongodb_ss_opcounters", at, rate, **rs, legacy_op_type=kind)
    for kind, rate in (("reads", 40), ("writes", 30), ("commands", 20)):
        yield _counter("mongodb_ss_opLatencies_ops", at, rate, **rs, op_type=kind)
        yield _counter("mongodb_ss_opLatencies_latency", at, rate * 900, **rs, op_type=kind)
    yield _gauge("mongodb_ss_repl_isWritablePrimary", 1, **rs)
    for index, role, number in (("0", "PRIMARY", 1), ("1", "SECONDARY", 2)):
        member = {**rs, "member_idx": index, "member_state": role}
        yield _gauge("mongodb_rs_members_health", 1, **member)
        yield _gauge("mongodb_rs_members_state", number, **member)
        late = 0 if role == "PRIMARY" else wave(at, 1, 9, "lag")
        yield _gauge("mongodb_rs_members_optimeDate", (at - late) * 1000, **member)
    yield _gauge("mongodb_mongod_replset_oplog_head_timestamp", at)
    yield _gauge("mongodb_mongod_replset_oplog_tail_timestamp", at - 3600 * 51)
    for kind in ("readers", "writers"):
        queued = round(wave(at, 1, 4, kind))
        yield _gauge("mongodb_ss_globalLock_currentQueue", queued, **rs, count_type=kind)
    for database, size in (("agentlightning", 8e9), ("local", 1e9)):
        for name, share in (("dataSize", 1), ("storageSize", 0.5), ("indexSize", 0.1)):
            yield _gauge(f"mongodb_dbstats_{name}", size * share, database=database)
        yield _gauge("mongodb_dbstats_objects", size / 2000, database=database)
        yield _gauge("mongodb_dbstats_fsUsedSize", 7.1e11, database=database)
        yield _gauge("mongodb_dbstats_fsTotalSize", 1e12, database=database)
    cache_of = "mongodb_ss_wt_cache"
    yield _gauge(f"{cache_of}_bytes_currently_in_the_cache", wave(at, 5e9, 6.4e9, "wt"), **rs)
    yield _gauge(f"{cache_of}_maximum_bytes_configured", 8e9, **rs)
    yield _gauge(f"{cache_of}_tracked_dirty_bytes_in_the_cache", wave(at, 1e8, 7e8, "dirty"), **rs)
    yield _gauge("mongodb_version_info", 1, mongodb="8.0.12", edition="Community", vendor="MongoDB")


XIDS = (("gpu-01", 3, "79", 1), ("gpu-02", 1, "31", 4), ("gpu-02", 5, "999", 2))


def _dcgm(target: Scraped, at: float) -> Iterator[Sample]:
    host = target.host
    for number in range(7 if host == "gpu-02" else 8):
        gpu = {
            "gpu": str(number),
            "UUID": f"GPU-{host}-{number}",
            "pci_bus_id": f"00000000:{number:02X}:00.0",
            "device": f"nvidia{number}",
            "modelName": "NVIDIA H100 80GB HBM3",
            "hostname": host,
        }
        bad = (host, number) == ("gpu-01", 3)
        heat = wave(at, 55, 74, host, number) + (14 if bad else 0)
        yield _gauge("DCGM_FI_DEV_GPU_TEMP", heat, **gpu)
        yield _gauge("DCGM_FI_DEV_MEMORY_TEMP", heat + 9, **gpu)
        yield _gauge("DCGM_FI_DEV_POWER_USAGE", wave(at, 380, 640, host, number), **gpu)
        yield _gauge("DCGM_FI_DEV_SM_CLOCK", 1200 if bad else 1980, **gpu)
        used = wave(at, 6e4, 7.4e4, host, number)
        yield _gauge("DCGM_FI_DEV_FB_USED", used, **gpu)
        yield _gauge("DCGM_FI_DEV_FB_FREE", 81559 - used, **gpu)
        blind = (host, number) == ("gpu-01", 6)
        busy = 97 if blind else wave(at, 60, 99, host, number)
        yield _gauge("DCGM_FI_DEV_GPU_UTIL", busy, **gpu)
        engine = 0.0 if blind else busy / 120
        yield _gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", engine, **gpu)
        yield _gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", engine / 2, **gpu)
        yield _counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", at, 5e5, **gpu)
        yield _gauge("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2 if bad else 0, **gpu)
        yield _gauge("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 2 if bad else 0, **gpu)
        # What a GPU cannot tell: a number near 2^63.
        failed = 9223372036854775794 if number == 7 else int(bad)
        yield _gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", failed, **gpu)
        yield _gauge("DCGM_FI_DEV_ROW_REMAP_PENDING", int(bad), **gpu)
        for kind in ("CRC_DATA", "REPLAY", "RECOVERY"):
            name = f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL"
            yield _counter(name, at, 0.4 if bad else 0, **gpu)
        if bad:
            event = {"clock_event": "hw_thermal", "window_size_in_ms": "300000"}
            yield _gauge("DCGM_EXP_CLOCK_EVENTS_COUNT", 7, **gpu, **event)
        for where, index, xid, times in XIDS:
            if (where, index) == (host, number):
                window = {"xid": xid, "window_size_in_ms": "300000"}
                yield _gauge("DCGM_EXP_XID_ERRORS_COUNT", times, **gpu, **window)


def _vllm(target: Scraped, at: float) -> Iterator[Sample]:
    stalled = target.host == "gpu-02"
    model = {"model_name": "judge-8b" if stalled else "policy-32b", "engine": "0"}
    yield _gauge("vllm:num_requests_running", wave(at, 30, 64, target), **model)
    yield _gauge("vllm:num_requests_waiting", wave(at, 2, 20, target), **model)
    usage = "gpu_cache_usage_perc" if stalled else "kv_cache_usage_perc"
    yield _gauge(f"vllm:{usage}", wave(at, 0.5, 0.97, target), **model)
    for name, rate in (
        ("num_preemptions", 0.3),
        ("prefix_cache_queries", 9000),
        ("prefix_cache_hits", 5200),
        ("prompt_tokens", 8000),
        ("generation_tokens", 0 if stalled else 2400),
    ):
        yield _counter(f"vllm:{name}_total", at, rate, **model)
    for reason, rate in (("stop", 3), ("length", 0.4), ("abort", 0.05)):
        yield _counter("vllm:request_success_total", at, rate, **model, finished_reason=reason)
    further = "time_per_output_token_seconds" if stalled else "inter_token_latency_seconds"
    for name, middle in (
        ("time_to_first_token_seconds", 0.4),
        (further, 0.15),
        ("request_queue_time_seconds", 0.6),
        ("e2e_request_latency_seconds", 9.0),
    ):
        yield from _histogram(f"vllm:{name}", at, 3, middle, SLOW_EDGES, **model)


def _ray(target: Scraped, at: float) -> Iterator[Sample]:
    for name, value in (("active", 2), ("pending", 1), ("failed", 1)):
        yield _gauge(f"ray_cluster_{name}_nodes", value)
    for state, value in (("RUNNING", 40), ("PENDING_NODE_ASSIGNMENT", 9), ("FINISHED", 900)):
        labels = {"State": state, "Name": "generate_sequences", "IsRetry": "0"}
        yield _gauge("ray_tasks", round(wave(at, value / 2, value, state)), **labels)
    for state, value in (("ALIVE", 24), ("RESTARTING", 1), ("DEAD", 2)):
        yield _gauge("ray_actors", value, State=state)
    for place, size in (("MMAP_SHM", 9e9), ("SPILLED", 2e9)):
        yield _gauge("ray_object_store_memory", wave(at, size / 2, size, place), Location=place)
    yield _counter("ray_memory_manager_worker_eviction_total", at, 0.02)
    yield _gauge("ray_node_cpu_utilization", wave(at, 20, 70, "ray"))
    yield _gauge("ray_node_gpus_utilization", wave(at, 60, 98, "rayg"))


def _litellm(target: Scraped, at: float) -> Iterator[Sample]:
    yield _counter("litellm_proxy_total_requests_metric_total", at, 12)
    yield _counter("litellm_proxy_failed_requests_metric_total", at, 0.3)
    for model, state in (("policy-32b", 0), ("judge-8b", 1), ("spare-8b", 2)):
        deployment = {"litellm_model_name": model}
        yield _gauge("litellm_deployment_state", state, **deployment)
        failure = {**deployment, "exception_status": "429"}
        for name in ("failure_responses", "cooled_down"):
            yield _counter(f"litellm_deployment_{name}_total", at, 0.1 * state, **failure)
    for name, middle in (
        ("litellm_request_total_latency_metric", 9.5),
        ("litellm_llm_api_latency_metric", 9.0),
        ("litellm_overhead_latency_metric", 0.3),
        ("litellm_llm_api_time_to_first_token_metric", 0.6),
    ):
        yield from _histogram(name, at, 12, middle, SLOW_EDGES)


def _alertmanager(target: Scraped, at: float) -> Iterator[Sample]:
    yield _gauge("alertmanager_config_last_reload_successful", 1)
    yield _gauge("alertmanager_cluster_members", 2)
    yield _gauge("alertmanager_cluster_failed_peers", 1)
    yield _counter("alertmanager_notifications_total", at, 0.05, integration="webhook")
    failed = {"integration": "webhook", "reason": "serverError"}
    yield _counter("alertmanager_notifications_failed_total", at, 0.002, **failed)


def _prometheus(target: Scraped, at: float) -> Iterator[Sample]:
    """A second Prometheus, of which hardly anything is well."""
    yield _gauge("process_start_time_seconds", EPOCH)
    yield _gauge("prometheus_config_last_reload_successful", 1)
    yield _gauge("prometheus_notifications_alertmanagers_discovered", 1)
    yield _gauge("prometheus_notifications_queue_length", wave(at, 1, 900, "queue"))
    yield _gauge("prometheus_notifications_queue_capacity", 10000)
    yield _gauge("prometheus_engine_queries", round(wave(at, 1, 6, "queries")))
    yield _gauge("prometheus_engine_queries_concurrent_max", 20)
    yield _gauge("prometheus_tsdb_head_series", wave(at, 9000, 11000, "head"))
    yield _counter("prometheus_tsdb_head_samples_appended_total", at, 1800, type="float")
    for name in (
        "prometheus_target_scrapes_sample_duplicate_timestamp_total",
        "prometheus_target_scrapes_sample_out_of_order_total",
        "prometheus_tsdb_reloads_failures_total",
        "prometheus_tsdb_compactions_failed_total",
        "prometheus_tsdb_wal_corruptions_total",
    ):
        yield _counter(name, at, 0.2)
    yield _counter("prometheus_target_sync_failed_total", at, 0.2, scrape_job="node")
    for number, group in enumerate(("gpu", "node", "store")):
        of = {"rule_group": f"/etc/agl/prometheus/alerts/{group}.yml;{group}"}
        name = "prometheus_rule_group_last_duration_seconds"
        yield _gauge(name, wave(at, 0.02, 0.9 * (number + 1), group), **of)
        yield _gauge("prometheus_rule_group_interval_seconds", 5, **of)
        yield _gauge("prometheus_rule_group_rules", 12, **of)
        for trouble in ("evaluation_failures", "group_iterations_missed"):
            yield _counter(f"prometheus_rule_{trouble}_total", at, 0.1 * number, **of)
    to = {"alertmanager": "http://alertmanager:9093/api/v2/alerts"}
    yield _counter("prometheus_notifications_sent_total", at, 0.6, **to)
    yield _counter("prometheus_notifications_errors_total", at, 0.004, **to)


_SERVED = {
    "app": _app,
    "node": _node,
    "containers": _containers,
    "mongodb": _mongodb,
    "dcgm": _dcgm,
    "vllm": _vllm,
    "rollout": _vllm,
    "ray": _ray,
    "litellm": _litellm,
    "alertmanager": _alertmanager,
    "prometheus": _prometheus,
}
