#!/opt/lab/bin/python
"""LAB STAND-IN, not percona's mongodb_exporter: the few series that our panels and alerts use.

They have percona's own names and labels (native dialect, 0.53), and come from the same commands:
``serverStatus``, ``replSetGetStatus`` and ``dbStats``. What the server does not tell has no series.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

PORT = 9216
Sample = tuple[str, dict[str, str], float]

# Name -> path in serverStatus.
SERVER_STATUS = {
    "mongodb_ss_uptime": "uptime",
    "mongodb_ss_mem_resident": "mem.resident",
    "mongodb_ss_network_numRequests": "network.numRequests",
    "mongodb_ss_network_bytesIn": "network.bytesIn",
    "mongodb_ss_network_bytesOut": "network.bytesOut",
    "mongodb_ss_wt_cache_bytes_currently_in_the_cache": (
        "wiredTiger.cache.bytes currently in the cache"
    ),
    "mongodb_ss_wt_cache_maximum_bytes_configured": "wiredTiger.cache.maximum bytes configured",
    "mongodb_ss_wt_cache_tracked_dirty_bytes_in_the_cache": (
        "wiredTiger.cache.tracked dirty bytes in the cache"
    ),
}
# Name -> (path of an object in serverStatus, the label that its keys become).
LABELLED = {
    "mongodb_ss_connections": ("connections", "conn_type"),
    "mongodb_ss_opcounters": ("opcounters", "legacy_op_type"),
    "mongodb_ss_metrics_cursor_open": ("metrics.cursor.open", "csr_type"),
    "mongodb_ss_globalLock_currentQueue": ("globalLock.currentQueue", "count_type"),
}
# Keys of a latency's object -> name.
LATENCIES = {
    "latency": "mongodb_ss_opLatencies_latency",
    "ops": "mongodb_ss_opLatencies_ops",
}
DATABASE = ("dataSize", "storageSize", "indexSize", "objects", "fsUsedSize", "fsTotalSize")


def at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def of_server(status: Mapping[str, Any]) -> Iterator[Sample]:
    for name, path in SERVER_STATUS.items():
        if is_number(at(status, path)):
            yield name, {}, at(status, path)
    for name, (path, label) in LABELLED.items():
        for key, value in (at(status, path) or {}).items():
            if is_number(value):
                yield name, {label: key}, value
    for kind, values in (status.get("opLatencies") or {}).items():
        for key, name in LATENCIES.items():
            if is_number(values.get(key)):
                yield name, {"op_type": kind}, values[key]


def of_replica_set(status: Mapping[str, Any]) -> Iterator[Sample]:
    labels = {"rs_nm": str(status.get("set", ""))}
    yield "mongodb_rs_myState", labels, status["myState"]
    for member in status["members"]:
        who = {
            **labels,
            "member_idx": str(member["name"]),
            "member_state": str(member["stateStr"]),
        }
        for key in ("health", "state"):
            yield f"mongodb_rs_members_{key}", who, float(member[key])
        yield "mongodb_rs_members_optimeDate", who, member["optimeDate"].timestamp() * 1000


def of_version(client: pymongo.MongoClient[dict[str, Any]]) -> Iterator[Sample]:
    found = client.admin.command("buildInfo")
    edition = "Enterprise" if "enterprise" in found.get("modules", []) else "Community"
    labels = {"mongodb": str(found["version"]), "edition": edition, "vendor": "MongoDB"}
    yield "mongodb_version_info", labels, 1


def of_oplog(client: pymongo.MongoClient[dict[str, Any]]) -> Iterator[Sample]:
    """Both ends of the oplog; nothing for a server that keeps none."""
    for end, order in (("head", pymongo.DESCENDING), ("tail", pymongo.ASCENDING)):
        entry = client.local["oplog.rs"].find_one(sort=[("$natural", order)])
        if entry is not None:
            yield f"mongodb_mongod_replset_oplog_{end}_timestamp", {}, float(entry["ts"].time)


def ask(client: pymongo.MongoClient[dict[str, Any]]) -> Iterator[Sample]:
    yield "mongodb_up", {}, 1
    yield from of_server(client.admin.command("serverStatus"))
    hello = client.admin.command("hello")
    set_name = {"rs_nm": str(hello.get("setName", ""))}
    yield "mongodb_ss_repl_isWritablePrimary", set_name, int(hello["isWritablePrimary"])
    yield from of_replica_set(client.admin.command("replSetGetStatus"))
    yield from of_version(client)
    yield from of_oplog(client)
    for database in client.list_database_names():
        found = client[database].command("dbStats")
        for key in DATABASE:
            if is_number(found.get(key)):
                yield f"mongodb_dbstats_{key}", {"database": database}, found[key]


def samples(client: pymongo.MongoClient[dict[str, Any]]) -> list[Sample]:
    try:
        return list(ask(client))
    except PyMongoError as error:
        print(f"mongodb-exporter (lab stand-in): {error}", flush=True)
        return [("mongodb_up", {}, 0)]


def exposition(found: list[Sample]) -> bytes:
    by_name: dict[str, list[str]] = {}
    for name, labels, value in found:
        inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
        line = f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"
        by_name.setdefault(name, []).append(line)
    return "".join(
        f"# TYPE {name} untyped\n" + "\n".join(lines) + "\n" for name, lines in by_name.items()
    ).encode()


class Handler(BaseHTTPRequestHandler):
    client: pymongo.MongoClient[dict[str, Any]]

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404)
            return
        body = exposition(samples(self.client))
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


def access() -> dict[str, Any]:
    """User and password from the environment, as the bundle's image of the real one does it."""
    user = os.environ.get("MONGODB_USER")
    if not user or "@" in os.environ["MONGODB_URI"]:
        return {}
    password = Path(os.environ["MONGODB_PASSWORD_FILE"]).read_text("utf-8").strip()
    return {"username": user, "password": password, "authSource": "admin"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="mongodb-exporter", allow_abbrev=False)
    parser.add_argument("--web.listen-address", default=f":{PORT}", dest="address")
    parser.add_argument("--mongodb.global-conn-pool", action="store_true")
    parser.add_argument(
        "--mongodb.direct-connect", action=argparse.BooleanOptionalAction, default=True
    )
    parser.add_argument("--compatible-mode", action="store_true")
    for collector in ("diagnosticdata", "replicasetstatus", "dbstats"):
        parser.add_argument(f"--collector.{collector}", action="store_true")
    host, _, port = parser.parse_args().address.rpartition(":")
    Handler.client = pymongo.MongoClient(
        os.environ["MONGODB_URI"],
        serverSelectionTimeoutMS=5000,
        appname="lab-mongodb-exporter",
        **access(),
    )
    print("This is a LAB STAND-IN for mongodb_exporter: for trials and tests only.", flush=True)
    ThreadingHTTPServer((host or "0.0.0.0", int(port)), Handler).serve_forever()


main()
