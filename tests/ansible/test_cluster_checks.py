"""What ``verify`` asks of Prometheus, against answers of its API."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from processes import make_certificate


def scraped(when: float, health: str, error: str) -> dict[str, Any]:
    """A target of ``/api/v1/targets`` that was scraped ``when``, in seconds from now."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + when))
    return {
        "labels": {"instance": "gpu1:9100"},
        "health": health,
        "lastError": error,
        "lastScrape": f"{at}.123456789Z",
        "scrapeUrl": "http://gpu1:9100/metrics",
    }


@pytest.mark.parametrize(
    ("when", "health", "wanted", "found"),
    [
        (60, "up", "gpu1:9100", "1 up"),
        (-60, "up", "gpu1:9100", "gpu1:9100: not scraped since this began"),
        (60, "down", "gpu1:9100", "gpu1:9100: connection refused"),
        (60, "up", "gpu2:9100", "gpu2:9100: not known"),
    ],
)
def test_a_target_is_up_by_what_was_seen_since(
    ansible_module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    when: float,
    health: str,
    wanted: str,
    found: str,
) -> None:
    target = scraped(when, health, "" if health == "up" else "connection refused")
    checks = ansible_module("cluster_checks")
    monkeypatch.setattr(checks, "ask", lambda _: {"data": {"activeTargets": [target]}})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (said,) = checks.targets("http://127.0.0.1:9090", [wanted], -1)
    assert said["found"] == found
    assert (said["status"] == "ok") == (found == "1 up")


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_a_store_with_tls_is_known_by_the_certificate_it_was_given(
    ansible_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks = ansible_module("cluster_checks")
    certificate, key = make_certificate(tmp_path, "given")
    another, _ = make_certificate(tmp_path, "another")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(checks, "run", lambda *_: (0, certificate.read_text()))
        assert checks.ask(url, tls=checks.trusting_its_own()) == {}
        monkeypatch.setattr(checks, "run", lambda *_: (0, another.read_text()))
        with pytest.raises(OSError, match="certificate"):
            checks.ask(url, tls=checks.trusting_its_own())
        server.shutdown()
