"""Alerts of the running bundle: loaded, sent to somebody, and drilled from fault to page."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from bundle import Stack, docker

from agl.ops.alerting.rules import load_alerts
from agl.ops.drill.catalogue import DRILLS, SYMPTOMS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

PROMISED_SECONDS = 60
"""From a fault to its page, for a critical alert with windows as they are."""
# MongoDB is not part of this bundle.
IN_EARNEST = "GpuXidCritical"
"""Drilled by itself: an alert that fires still, or again, is not drilled."""

HERE = [name for name in DRILLS if not name.startswith("MongoDB") and name != IN_EARNEST]


def drill(stack: Stack, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [stack.root / ".venv/bin/agl-stack", "stack", "drill", "--json", *arguments],
        env=stack.environ,
        capture_output=True,
        text=True,
        timeout=500,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("\n[") :])


def running(stack: Stack) -> dict[str, str]:
    """Container id by name."""
    listed = docker(
        *("ps", "--no-trunc", "--format", "{{.Names}} {{.ID}}"),
        *("--filter", f"label=com.docker.compose.project={stack.project}"),
    )
    return dict(line.split() for line in listed.splitlines())


def alertmanagers_file(stack: Stack) -> str:
    name = f"{stack.project}-alertmanager-1"
    return docker("exec", name, "cat", "/etc/agl/alertmanager/alertmanager.yml")


def test_every_alert_is_loaded(stack: Stack) -> None:
    body = httpx.get(f"{stack.prometheus_url}/api/v1/rules?type=alert").json()
    loaded = {rule["name"] for group in body["data"]["groups"] for rule in group["rules"]}
    assert loaded == {alert.name for alert in load_alerts(stack.root / "prometheus/alerts")}
    broken = [rule for group in body["data"]["groups"] for rule in group["rules"]]
    assert not [rule["name"] for rule in broken if rule["health"] == "err"]


def test_prometheus_has_its_alertmanager_and_does_not_say_otherwise(stack: Stack) -> None:
    # The first scrape of Prometheus by itself may be older than its discovery.
    deadline = time.monotonic() + 60
    while stack.value("prometheus_notifications_alertmanagers_discovered") != 1:
        assert time.monotonic() < deadline
        time.sleep(1)
    name = "PrometheusNotConnectedToAlertmanagers"
    assert stack.query(f'ALERTS{{alertname="{name}"}}') == []
    deadline = time.monotonic() + 60
    while True:
        found = httpx.get(f"{stack.alertmanager_url}/api/v2/alerts").json()
        if any(alert["labels"]["alertname"] == "Watchdog" for alert in found):
            break
        assert time.monotonic() < deadline, found
        time.sleep(1)
    (watchdog,) = [a for a in found if a["labels"]["alertname"] == "Watchdog"]
    assert watchdog["labels"]["deployment"] == "agl"


def test_targets_carry_the_deployment(stack: Stack) -> None:
    assert {item["metric"]["deployment"] for item in stack.query("up")} == {"agl"}


def test_a_bad_alert_never_replaces_a_good_one_and_its_line_is_named(stack: Stack) -> None:
    path = stack.root / "prometheus/alerts/meta.yml"
    good = path.read_text()
    lines = good.splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "expr: vector(1)" in line)
    path.write_text(good.replace("expr: vector(1)", "expr: vector(1"))
    try:
        with pytest.raises(AssertionError, match=rf"prometheus/alerts/meta\.yml: {number}:\d+: "):
            stack.script("up", "--yes")
        name = f"{stack.project}-prometheus-1"
        assert (
            docker("exec", name, "cat", "/etc/agl/prometheus/alerts/meta.yml") != path.read_text()
        )
        assert stack.up_targets() == {"app", "node", "prometheus", "alertmanager", "containers"}
    finally:
        path.write_text(good)
        stack.script("up", "--yes")


def test_each_container_tells_its_memory_and_limit_by_service(stack: Stack) -> None:
    services = {"app", "app-exporter", "container-exporter", "node-exporter", "prometheus"}
    for name in (*services, "alertmanager"):
        told = f'agl_container_memory_limit_bytes{{service="{name}"}}'
        assert stack.value(told) == stack.container(name)["HostConfig"]["Memory"]
        used = stack.value(f'agl_container_memory_bytes{{service="{name}"}}')
        assert 1 << 20 < used < stack.container(name)["HostConfig"]["Memory"]


def test_a_restart_of_a_container_is_counted(stack: Stack) -> None:
    starts = 'agl_container_starts_total{service="app-exporter"}'
    before = stack.value(starts)
    docker("restart", f"{stack.project}-app-exporter-1")
    deadline = time.monotonic() + 60
    while stack.value(starts) != before + 1:
        assert time.monotonic() < deadline
        time.sleep(1)
    stack.wait_for_restart("app-exporter", -1)


class Hook:
    """A web server on the bridge, which containers reach, that keeps what it is sent."""

    def __init__(self, host: str) -> None:
        self.bodies: dict[str, list[dict[str, Any]]] = {}
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.bodies.setdefault(self.path, []).append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self.server.server_address[1]}"

    def wait_for(self, path: str, timeout: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while not self.bodies.get(path):
            assert time.monotonic() < deadline, self.bodies
            time.sleep(0.5)
        return self.bodies[path][0]


@pytest.fixture
def hook(stack: Stack) -> Iterator[Hook]:
    made = Hook(stack.environ["AGL_GATEWAY"])
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_status_and_up_say_who_is_paged_and_the_watchdog_is_called(
    stack: Stack, hook: Hook
) -> None:
    stack.wait_for_scrapes()  # the module before has started the exporter anew
    assert "NOBODY WILL BE PAGED" in stack.script("status")
    assert "NOBODY WILL BE PAGED" in stack.script("up", "--yes")
    secret = stack.root / "compose/secrets/deadman-url"
    secret.write_text(f"{hook.url}/alive\n")
    paged = Stack(stack.root, {**stack.environ, "AGL_ALERT_WEBHOOK_URL": f"{hook.url}/page"})
    before = running(stack)
    try:
        said = paged.script("up", "--yes")
        assert "pages go to" in said
        assert "NOBODY" not in said + stack.script("status")
        after = running(stack)
        changed = {name for name in before if after.get(name) != before[name]}
        assert changed <= {f"{stack.project}-alertmanager-1"}, "nothing else is started anew"
        assert hook.url not in alertmanagers_file(stack)
        (alert,) = hook.wait_for("/alive")["alerts"]
        assert alert["labels"]["alertname"] == "Watchdog"
    finally:
        secret.unlink()
        stack.script("up", "--yes")
    assert "NOBODY WILL BE PAGED" in stack.script("status")


def test_silences_outlive_alertmanager(stack: Stack) -> None:
    name = f"{stack.project}-alertmanager-1"
    tool = ("amtool", "--alertmanager.url=http://127.0.0.1:9093", "silence")
    made = docker("exec", name, *tool, "add", "--comment=test", "alertname=Nothing").strip()
    restarts = stack.container("alertmanager")["RestartCount"]
    docker("stop", name)
    docker("start", name)
    stack.wait_for_restart("alertmanager", restarts - 1)
    assert made in docker("exec", name, *tool, "query")
    docker("exec", name, *tool, "expire", made)


def test_every_drill_ends_with_its_page_and_leaves_nothing(stack: Stack) -> None:
    before = running(stack)
    outcomes = {outcome["alert"]: outcome for outcome in drill(stack, *HERE)}
    assert outcomes.keys() == {*HERE, *SYMPTOMS}
    for name, outcome in outcomes.items():
        symptom = DRILLS[name].symptom if name in DRILLS else ""
        assert outcome["silenced"] == ([symptom] if symptom else []), name
        assert outcome["seconds"] > 0
        assert outcome["speed"] > 1
    assert running(stack) == before
    assert not stack.container("app")["State"]["Paused"]
    assert '"drill ' not in alertmanagers_file(stack)
    left = docker("exec", f"{stack.project}-app-exporter-1", "ls", "/run/agl/multiproc")
    assert "drill" not in left
    assert "counter_999999999" not in left
    assert httpx.get(f"{stack.store_url}/v1/agl/health").status_code == 200
    stack.script("up", "--yes")


def test_a_critical_alert_pages_in_earnest(stack: Stack) -> None:
    (outcome,) = drill(stack, IN_EARNEST, "--speed=1")
    assert outcome["speed"] == 1
    assert outcome["seconds"] <= PROMISED_SECONDS


def test_a_page_that_does_not_come_is_an_error_and_the_fault_is_taken_out(stack: Stack) -> None:
    done = subprocess.run(
        [
            *(stack.root / ".venv/bin/agl-stack", "stack", "drill", "TargetDown"),
            *("--speed=1", "--timeout=5"),
        ],
        env={**os.environ, **stack.environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "TargetDown: no page of TargetDown after 5 s" in done.stdout
    assert not stack.container("container-exporter")["State"]["Paused"]
    assert not [name for name in running(stack) if "drill" in name]
