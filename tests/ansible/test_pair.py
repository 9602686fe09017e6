"""A real pair of Prometheus and two real Alertmanagers, as roles configure them, page once."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from history import tool
from ports import free_port
from processes import wait_until_answering
from rendered import ANSIBLE, Rendered, rendered

from agl.ops.alertmanager import configuration
from agl.ops.alertmanager import rendered as as_text

__all__ = ["rendered"]
OVERLAY = ANSIBLE.parent / "compose" / "compose.alertmanagers.yml"
PAIR = ("control1", "control2")
PATIENCE_SECONDS = 120.0
# A second one waits so long for word of the first; not the default 15 s, for the test's sake.
PEER_TIMEOUT = "--cluster.peer-timeout=5s"


@contextmanager
def pages() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where pages are sent, and those that came."""
    came: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", came
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def running(command: list[str | Path], ready: str, log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
    try:
        wait_until_answering(ready, process)
        yield
    finally:
        process.terminate()
        process.wait(60)


def alertmanager(rendered: Rendered, host: str, config: Path) -> tuple[list[str | Path], str]:
    """Command and address: the flags are those of the overlay, as Compose would fill them in."""
    given = rendered.files[host]["alertmanager"] | {"AGL_ALERTMANAGER_EXTERNAL_URL": ""}
    service = yaml.safe_load(OVERLAY.read_text())["services"]["alertmanager"]
    flags = re.sub(r"\$\{(\w+)\}", lambda name: str(given[name[1]]), service["command"]).split()
    address = given["AGL_ALERTMANAGER_BIND"]
    port = given["AGL_ALERTMANAGER_CLUSTER_PORT"]
    # What differs outside of a container, where both share one network.
    own = {
        "--config.file": config,
        "--storage.path": config.with_name(f"{host}-alertmanager"),
        "--cluster.listen-address": f"{address}:{port}",
    }
    flags = [
        f"{name}={own.get(name, value)}" for name, _, value in (f.partition("=") for f in flags)
    ]
    (web,) = (it for it in rendered.hosts[host]["prometheus_alertmanagers"] if address in it)
    command = [tool("alertmanager"), *flags, f"--web.listen-address={web}", PEER_TIMEOUT]
    return command, f"http://{web}"


def prometheus(rendered: Rendered, host: str) -> tuple[list[str | Path], str]:
    config = rendered.prometheus(host)
    listen = f"127.0.0.1:{free_port()}"
    data = config.with_name("data")
    flags = [f"--config.file={config}", f"--storage.tsdb.path={data}"]
    return [tool("prometheus"), *flags, f"--web.listen-address={listen}"], f"http://{listen}"


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def queries(url: str) -> float:
    """How often an Alertmanager has looked whether a page was sent before."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(r"^alertmanager_nflog_queries_total (\S+)", answer.read().decode(), re.M)
    return float(found[1]) if found else 0


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_an_alert_that_fires_in_both_is_paged_once(
    rendered: Rendered, tmp_path: Path, ansible_module: Callable[[str], ModuleType]
) -> None:
    """``verify`` counts the members before the alert comes."""
    checks = ansible_module("cluster_checks")
    with ExitStack() as stack:
        url, came = stack.enter_context(pages())
        (tmp_path / "deadman-url").write_text(url)
        config = tmp_path / "alertmanager.yml"
        settings = {"AGL_ALERT_PAGERDUTY_URL": "https://events.pagerduty.com/v2/enqueue"}
        config.write_bytes(as_text(configuration(settings, {"deadman-url"}, folder=tmp_path)))
        members = []
        for host in PAIR:
            command, address = alertmanager(rendered, host, config)
            log = tmp_path / f"{host}-alertmanager.log"
            stack.enter_context(running(command, f"{address}/-/ready", log))
            members.append(address)
        for member in members:
            status = f"{member}/api/v2/status"
            until("cluster", lambda at=status: len(asked(at)["cluster"]["peers"]) == len(PAIR))
            for wanted, verdict in (2, "ok"), (3, "fail"):
                (found,) = checks.cluster_of_alertmanagers(member, wanted, 0)
                assert found["status"] == verdict
                assert found["found"] == f"2 of {wanted} see each other"
                assert bool(found["fix"]) == (verdict == "fail")
        for host in PAIR:
            command, address = prometheus(rendered, host)
            log = tmp_path / f"{host}-prometheus.log"
            stack.enter_context(running(command, f"{address}/-/ready", log))
            labels = yaml.safe_load(asked(f"{address}/api/v1/status/config")["data"]["yaml"])
            assert labels["global"]["external_labels"]["replica"] == host
            told = f"{address}/api/v1/alertmanagers"
            until(
                "Alertmanager",
                lambda at=told: len(asked(at)["data"]["activeAlertmanagers"]) == len(PAIR),
            )
        for member in members:
            until("decision", lambda at=member: queries(at) >= 1)
        until("page", lambda: bool(came))
        time.sleep(2)  # for a second page, which must not come
        assert [[alert["labels"]["alertname"] for alert in page["alerts"]] for page in came] == [
            ["Watchdog"]
        ]
        for member in members:
            (alert,) = asked(f"{member}/api/v2/alerts?filter=alertname=Watchdog")
            assert "replica" not in alert["labels"]
            assert alert["labels"]["stack"] == "agl"
