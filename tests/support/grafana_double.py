"""A server that answers as Grafana's documentation says Grafana's HTTP API does.

It is no Grafana: it was written from the pages of the HTTP API (health, data sources, dashboards,
annotations, snapshots, `/api/ds/query`, and the Prometheus-compatible list of rules), as of Grafana
13. What the documentation does not tell, it cannot know. It parses each query with a real PromQL
parser after filling in the variables that Grafana's backend fills in (`$__rate_interval` and the
like), and refuses one that has others, as Prometheus would. The same tests run against a real
Grafana where GRAFANA_URL and GRAFANA_TOKEN_FILE are set.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import promql_parser

TOKEN = "glsa_of-an-editor"
VIEWER = "glsa_of-a-viewer"
_MACROS = re.compile(r"\$\{?__(rate_interval|interval|range|range_s|interval_ms)\}?")

Answer = tuple[int, Any]


@dataclass
class GrafanaDouble:
    """The state of the double; a test changes it to break something.

    Attributes:
        results: Frames by expression; a query of another one finds nothing.
        errors: What Prometheus says to an expression, instead of frames.
        multi_status: Whether a failed query is told with status 207, or 400 as before 9.
    """

    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    provisioned: set[str] = field(default_factory=set)
    datasources: dict[str, dict[str, Any]] = field(default_factory=dict)
    health: Answer = (200, {"status": "OK", "message": "Successfully queried the Prometheus API."})
    database: str = "ok"
    rules: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    multi_status: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, target: str, body: Any, token: str) -> Answer:
        parts = urlsplit(target)
        path = parts.path
        self.calls.append(f"{method} {path}")
        if path == "/api/health":
            status = 200 if self.database == "ok" else 503
            return status, {"commit": "c0ffee", "database": self.database, "version": "13.1.3"}
        if token not in {TOKEN, VIEWER}:
            return 401, {"message": "Invalid API key", "messageId": "api-key.invalid"}
        writes = method == "POST" and path != "/api/ds/query"
        if writes and token == VIEWER:
            need = "Permissions needed: dashboards:write"
            return 403, {"message": f"You'll need additional permissions. {need}"}
        for pattern, handle in (
            (r"GET /api/datasources/uid/([^/]+)", self._datasource),
            (r"GET /api/datasources/uid/([^/]+)/health", self._datasource_health),
            (r"GET /api/dashboards/uid/([^/]+)", self._dashboard),
            (r"GET /api/prometheus/([^/]+)/api/v1/rules", self._rules),
        ):
            found = re.fullmatch(pattern, f"{method} {path}")
            if found:
                return handle(found[1])
        query = parse_qs(parts.query)
        known: dict[str, Any] = {
            "POST /api/dashboards/db": lambda: self._save(body),
            "POST /api/ds/query": lambda: self._query(body),
            "GET /api/annotations": lambda: self._find_annotations(query),
            "POST /api/annotations": lambda: self._annotate(body),
            "POST /api/snapshots": lambda: self._snapshot(body),
        }
        handler = known.get(f"{method} {path}")
        return handler() if handler else (404, {"message": "Not found"})

    def _datasource(self, uid: str) -> Answer:
        found = self.datasources.get(uid)
        return (200, found) if found else (404, {"message": "Data source not found"})

    def _datasource_health(self, uid: str) -> Answer:
        return self.health if uid in self.datasources else (404, {"message": "not found"})

    def _dashboard(self, uid: str) -> Answer:
        found = self.dashboards.get(uid)
        if found is None:
            return 404, {"message": "Dashboard not found"}
        meta = {"provisioned": uid in self.provisioned, "url": f"/d/{uid}/board", "slug": "board"}
        return 200, {"dashboard": found, "meta": meta}

    def _save(self, body: Any) -> Answer:
        board = body["dashboard"]
        if not board.get("title"):
            return 400, {"message": "Dashboard title cannot be empty", "status": "empty-name"}
        uid = board["uid"]
        if uid in self.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        there = self.dashboards.get(uid)
        if there and not body.get("overwrite"):
            message = "The dashboard has been changed by someone else"
            return 412, {"message": message, "status": "version-mismatch"}
        version = there["version"] + 1 if there else 1
        number = there["id"] if there else len(self.dashboards) + 1
        self.dashboards[uid] = {**board, "id": number, "version": version}
        said = {"id": number, "uid": uid, "url": f"/d/{uid}/board", "status": "success"}
        return 200, {**said, "version": version, "slug": "board"}

    def _query(self, body: Any) -> Answer:
        if not body.get("queries") or not str(body.get("from")).isdigit():
            return 400, {"message": "bad request data"}
        results: dict[str, Any] = {}
        for query in body["queries"]:
            self.asked.append(query)
            uid = query["datasource"]["uid"]
            if uid not in self.datasources:
                return 404, {"message": "Data source not found", "status": 404}
            error = self.errors.get(query["expr"]) or _fault(query["expr"])
            if error:
                results[query["refId"]] = {"error": error, "errorSource": "downstream"}
                results[query["refId"]]["status"] = 400
            else:
                frames = self.results.get(query["expr"], [])
                results[query["refId"]] = {"status": 200, "frames": frames}
        failed = any("error" in result for result in results.values())
        status = (207 if self.multi_status else 400) if failed else 200
        return status, {"results": results}

    def _rules(self, uid: str) -> Answer:
        if uid not in self.datasources:
            return 404, {"message": "unable to find the data source"}
        groups = [{"name": "all", "file": "alerts.yml", "rules": self.rules, "interval": 15}]
        return 200, {"status": "success", "data": {"groups": groups}}

    def _find_annotations(self, query: dict[str, list[str]]) -> Answer:
        start, end = int(query["from"][0]), int(query["to"][0])
        tags = set(query.get("tags", []))
        found = [
            entry
            for entry in self.annotations
            if entry["timeEnd"] >= start and entry["time"] <= end and tags <= set(entry["tags"])
        ]
        return 200, found[: int(query.get("limit", ["100"])[0])]

    def _annotate(self, body: Any) -> Answer:
        if not body.get("text"):
            return 400, {"message": "Failed to save annotation: text field should not be empty"}
        number = len(self.annotations) + 1
        self.annotations.append({"id": number, **body})
        return 200, {"id": number, "message": "Annotation added"}

    def _snapshot(self, body: Any) -> Answer:
        key = f"key{len(self.snapshots) + 1}"
        self.snapshots[key] = body
        return 200, {
            "key": key,
            "deleteKey": f"delete-{key}",
            "url": f"{self.url}/dashboard/snapshot/{key}",
            "deleteUrl": f"{self.url}/api/snapshots-delete/delete-{key}",
        }


def series(labels: dict[str, str], times: list[int], values: list[float]) -> dict[str, Any]:
    """A data frame as `/api/ds/query` answers with for one series; times in milliseconds."""
    fields = [
        {"name": "Time", "type": "time", "typeInfo": {"frame": "time.Time"}, "config": {}},
        {"name": "Value", "type": "number", "labels": labels, "config": {}},
    ]
    return {
        "schema": {"refId": "A", "meta": {"type": "timeseries-multi"}, "fields": fields},
        "data": {"values": [times, values]},
    }


def _fault(expr: str) -> str:
    filled = _MACROS.sub(lambda found: "60000" if found[1].endswith("ms") else "1m", expr)
    if "$" in filled:
        return f"bad_data: invalid parameter 'query': unexpected character: '$' in {filled}"
    try:
        promql_parser.parse(filled)
    except ValueError as exc:
        return f"bad_data: invalid parameter 'query': parse error: {exc}"
    return ""


@contextlib.contextmanager
def serving(double: GrafanaDouble) -> Iterator[str]:
    """Serve the double on a free port of loopback; its address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, said = double.answer(self.command, self.path, body, token)
            raw = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _answer  # noqa: N815 - the names that the server calls

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        double.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield double.url
        finally:
            server.shutdown()
            thread.join()
