"""What runs in the containers of a drill: it takes pages, and plays a host with GPUs.

``POST /page`` takes Alertmanager's JSON and writes one line of JSON to stdout, where the drill
reads it. ``GET /metrics`` serves the file that the drill has written, or nothing.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agl.ops.drill.scaling import PORT
from agl.ops.options import LineParser
from agl.ops.shapes import items, mapping

METRICS_FILE = Path("/tmp/metrics")  # noqa: S108  # a container's own tmpfs
MAX_BODY = 8 << 20


def page_line(body: bytes, at: float) -> str:
    """One line for a page that came at ``at``; ValueError when it is none of Alertmanager."""
    document = json.loads(body)
    if not isinstance(document, dict) or "alerts" not in document:
        raise ValueError("no alerts in it")
    alerts = items(mapping(document)["alerts"])
    return json.dumps({"at": at, "alerts": [_alert(alert) for alert in alerts]})


def _alert(alert: dict[str, Any]) -> dict[str, str]:
    labels = mapping(alert.get("labels"))
    return {
        "name": labels.get("alertname", ""),
        "status": alert.get("status", ""),
        "drill": labels.get("drill", ""),
        "host": labels.get("host", ""),
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/page" or not 0 < size <= MAX_BODY:
            self._answer(404)
            return
        try:
            line = page_line(self.rfile.read(size), time.time())
        except ValueError:
            self._answer(400)
            return
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self._answer(200)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            served = METRICS_FILE.read_bytes() if METRICS_FILE.is_file() else b""
            self._answer(200, served)
        else:
            self._answer(200 if self.path == "/health" else 404)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Pages are the log."""


def main(argv: list[str], prog: str) -> int:
    """Serve until ended; returns 0."""
    parser = LineParser(prog=prog, description="Take the pages of a drill.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    options = parser.parse_args(argv)
    with ThreadingHTTPServer((options.host, options.port), _Handler) as server:
        server.serve_forever()
    return 0
