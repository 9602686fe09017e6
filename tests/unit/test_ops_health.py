"""Is the bundle up: containers judged by tables, endpoints asked over real HTTP."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from rich.console import Console as RichConsole

from agl.ops.compose import Service
from agl.ops.engine import Container, Engine
from agl.ops.health import (
    FAILED,
    READY,
    STARTING,
    Endpoint,
    ServiceHealth,
    Target,
    endpoints,
    fetch,
    judge,
    read_targets,
    refuses,
)
from agl.ops.lifecycle import telling
from agl.ops.status import Row, Status, show
from agl.ops.view import (
    View,
    as_running,
    client_token,
    client_url,
    lab_stand_ins,
    progress_lines,
    running_mode,
)

RUNNING = Container(
    id="1",
    name="agl-app-1",
    service="app",
    state="running",
    health="",
    exit_code=0,
    restarts=0,
    started_at="",
    image="i",
    image_id="sha256:i",
    memory_limit=0,
    error="",
)
STARVED = replace(RUNNING, out_of_memory=True, exit_code=137, memory_limit=20 << 20)
TOO_SMALL = "killed since its memory limit of 20 MiB is too small"
PLAIN = Service("app", "i", one_shot=False, healthcheck=False)
CHECKED = Service("app", "i", one_shot=False, healthcheck=True)
ONE_SHOT = Service("app", "i", one_shot=True, healthcheck=False)


@pytest.mark.parametrize(
    ("service", "container", "reached", "state", "detail"),
    [
        (PLAIN, None, None, STARTING, "waiting"),
        (PLAIN, replace(RUNNING, state="created"), None, STARTING, "waiting"),
        (PLAIN, replace(RUNNING, state="created", error="port taken"), None, FAILED, "port taken"),
        (PLAIN, RUNNING, None, READY, "running"),
        (PLAIN, RUNNING, True, READY, "answers"),
        (PLAIN, RUNNING, False, STARTING, "does not answer yet"),
        (PLAIN, replace(RUNNING, state="restarting", restarts=1), None, STARTING, "restarting"),
        (PLAIN, replace(RUNNING, restarts=3), None, FAILED, "restarted 3 times"),
        (PLAIN, replace(RUNNING, state="exited", exit_code=2), None, FAILED, "ended with code 2"),
        (PLAIN, replace(RUNNING, state="exited"), None, FAILED, "ended with code 0"),
        (PLAIN, replace(STARVED, restarts=3), None, FAILED, f"restarted 3 times, {TOO_SMALL}"),
        (PLAIN, replace(STARVED, state="dead"), None, FAILED, f"ended with code 137, {TOO_SMALL}"),
        (CHECKED, replace(RUNNING, health="starting"), None, STARTING, "not ready yet"),
        (CHECKED, replace(RUNNING, health="healthy"), True, READY, "healthy"),
        (CHECKED, replace(RUNNING, health="healthy"), False, STARTING, "does not answer yet"),
        (CHECKED, replace(RUNNING, health="unhealthy"), True, FAILED, "its healthcheck fails"),
        (ONE_SHOT, RUNNING, None, STARTING, "at work"),
        (ONE_SHOT, replace(RUNNING, state="exited"), None, READY, "done"),
        (
            ONE_SHOT,
            replace(RUNNING, state="exited", exit_code=1),
            None,
            FAILED,
            "ended with code 1",
        ),
    ],
)
def test_one_service(
    service: Service, container: Container | None, reached: bool | None, state: str, detail: str
) -> None:
    answers = {} if reached is None else {"app": reached}
    found = judge({"app": service}, [container] if container else [], answers)
    assert found == [ServiceHealth("app", state, detail)]


def test_restarts_of_an_earlier_start_do_not_count() -> None:
    container = replace(RUNNING, restarts=7)
    assert judge({"app": PLAIN}, [container], {}, {"1": 7})[0].state == READY
    assert judge({"app": PLAIN}, [container], {}, {"1": 4})[0].detail == "restarted 3 times"


class TestEndpoints:
    VARIABLES: ClassVar = {
        "AGL_BIND": "0.0.0.0",
        "AGL_PORT": "1",
        "AGL_GRAFANA_BIND": "::",
        "AGL_GRAFANA_PORT": "2",
        "AGL_PROMETHEUS_PORT": "3",
        "AGL_GATEWAY": "172.31.0.1",
        "AGL_NODE_EXPORTER_PORT": "4",
        "AGL_RUNBOOKS_PORT": "5",
    }

    def test_addresses_as_seen_from_the_host(self) -> None:
        services = ["app", "grafana", "runbooks", "prometheus", "node-exporter", "init"]
        found = endpoints(self.VARIABLES, services)
        assert {name: endpoint.url for name, endpoint in found.items()} == {
            "app": "http://127.0.0.1:1",
            "grafana": "http://[::1]:2",
            "runbooks": "http://[::1]:5",
            "prometheus": "http://127.0.0.1:3",
            "node-exporter": "http://172.31.0.1:4",
        }

    def test_only_of_services_that_are_run(self) -> None:
        assert list(endpoints(self.VARIABLES, ["app"])) == ["app"]


Answer = tuple[int, bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    servers: list[HTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class TestProbes:
    def test_answer(self, serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert fetch(serve((200, b"fine"))) == b"fine"

    def test_error_is_no_answer(self, serve: Callable[[Answer], str]) -> None:
        assert fetch(serve((503, b""))) is None

    def test_nobody_there(self) -> None:
        assert fetch("http://127.0.0.1:1/") is None

    def test_targets(self, serve: Callable[[Answer], str]) -> None:
        active = [
            {
                "labels": {"job": "node", "instance": "n:1"},
                "health": "down",
                "lastError": "refused",
            },
            {"labels": {"job": "app", "instance": "a:1"}, "health": "up", "lastError": ""},
            {
                "labels": {"job": "dcgm", "instance": "gpu1:9400"},
                "discoveredLabels": {"__meta_filepath": "/etc/agl/targets/dcgm.yml"},
                "health": "down",
            },
        ]
        body = json.dumps({"status": "success", "data": {"activeTargets": active}}).encode()
        assert read_targets(serve((200, body))) == [
            Target("app", "a:1", "up", ""),
            Target("dcgm", "gpu1:9400", "down", "", elsewhere=True),
            Target("node", "n:1", "down", "refused"),
        ]

    @pytest.mark.parametrize(("code", "refused"), [(200, False), (401, True), (503, False)])
    def test_a_token_the_store_does_not_take(
        self, serve: Callable[[Answer], str], code: int, refused: bool
    ) -> None:
        assert refuses(serve((code, b"")), "token") is refused
        assert not refuses("http://127.0.0.1:1", "token")

    def test_what_is_no_prometheus(self, serve: Callable[[Answer], str]) -> None:
        assert read_targets(serve((200, b"<html>"))) is None


class TestView:
    UP = Target("app", "a:1", "up", "")
    DOWN = Target("node", "n:1", "down", "refused")
    PROMETHEUS: ClassVar = {"prometheus": Endpoint("prometheus", "u", "p")}
    GOOD = ServiceHealth("app", READY, "healthy")

    def view(self, *targets: Target, state: str = READY, prometheus: bool = True) -> View:
        health = (replace(self.GOOD, state=state),)
        known = self.PROMETHEUS if prometheus else {}
        return View((), health, targets if prometheus else None, known)

    def test_ready_needs_every_target(self) -> None:
        assert self.view(self.UP).ready
        assert not self.view(self.UP, self.DOWN).ready
        assert not self.view().ready
        assert not self.view(self.UP, state=STARTING).ready

    def test_a_host_elsewhere_that_is_down_holds_up_no_start(self) -> None:
        far = Target("dcgm", "gpu1:9400", "down", "no route", elsewhere=True)
        assert self.view(self.UP, far).ready
        assert not self.view(self.UP, self.DOWN, far).ready
        assert not self.view(far).ready

    def test_without_prometheus_there_are_no_targets_to_wait_for(self) -> None:
        assert self.view(prometheus=False).ready

    def test_progress_names_what_is_waited_for(self) -> None:
        lines = progress_lines(self.view(self.UP, self.DOWN))
        assert lines[-1] == "· scrape targets  1 of 2 up, waiting for node"


def test_no_client_url_while_the_store_listens_on_loopback() -> None:
    # No daemon behind this engine: the token must not even be asked for.
    assert client_token({"AGL_BIND": "127.0.0.1"}, Engine(None, "agl")) == ""


def test_a_store_with_a_certificate_has_https_addresses() -> None:
    secure = {"AGL_TLS_CERT": "./secrets/tls-cert.pem", "AGL_BIND": "192.0.2.1"}
    assert client_url(secure, "t") == "https://agl:t@192.0.2.1:4747"
    known = endpoints(secure, ["app", "prometheus"])
    assert known["app"].probe == "https://192.0.2.1:4747/v1/agl/health"
    assert known["prometheus"].url == "http://127.0.0.1:9090"


@pytest.mark.parametrize("columns", [40, 120])
def test_status_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(
        *("app-exporter", READY, "healthy [since 5 min]", 2, 2**26, 2**29, "agl/store:1"),
        stand_in=False,
        lab=True,
    )
    down = Target("node", "node-exporter:9100", "down", "connection refused")
    view = View((), (), (down,), {})
    written = io.StringIO()
    terminal = RichConsole(file=written, width=columns, force_terminal=True, no_color=True)
    monkeypatch.setattr("agl.ops.status.RichConsole", lambda **_: terminal)
    show(Status((row,), view, ()), {})
    text = re.sub("\x1b[^m]*m", "", written.getvalue())
    assert all(len(line) <= columns for line in text.splitlines())
    shown = ("app-exporter", "healthy [since 5 min]", "64 MiB", "512 MiB", "agl/store:1")
    for part in (*shown, "(LAB STAND-IN)"):
        assert part in text
    assert "connection refused" in text


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        (["compose.store.yml"], "store"),
        (["compose.prometheus-memory-store.yml"] * 2, "memory"),
        (["compose.prometheus-mongo-store.yml"], "mongo"),
        (["somebody-elses.yml"], "memory"),
        ([], "memory"),
    ],
)
def test_mode_of_what_is_there(files: list[str], mode: str) -> None:
    assert running_mode(replace(RUNNING, compose_file=file) for file in files) == mode


def test_mode_is_the_stores_when_other_containers_outlived_a_change_of_mode() -> None:
    kept = replace(
        RUNNING, service="node-exporter", compose_file="compose.prometheus-memory-store.yml"
    )
    store = replace(RUNNING, compose_file="compose.prometheus-mongo-store.yml")
    assert running_mode([kept, store]) == "mongo"
    assert running_mode([kept]) == "memory"


def test_lab_stand_ins_are_named() -> None:
    lab = replace(RUNNING, service="mongo", image="agl-stack/lab-mongod:lab")
    real = replace(RUNNING, service="app", image="mongo:8.0.26")
    assert lab_stand_ins([lab, real]) == [
        "mongo is a LAB STAND-IN (agl-stack/lab-mongod:lab), for trials and tests only"
    ]


class TestTellingLines:
    def test_a_short_log_is_shown_whole(self) -> None:
        assert telling(["error: one", "two"]) == ["error: one", "two"]

    def test_errors_far_above_are_shown_before_the_tail(self) -> None:
        log = ["quiet", "Error parsing: bad", "Error parsing: bad", *map(str, range(40))]
        shown = telling(log)
        assert shown[:2] == ["Error parsing: bad", "..."]
        assert shown[2:] == [str(i) for i in range(25, 40)]


def test_addresses_are_those_the_containers_were_started_with() -> None:
    app = replace(RUNNING, published={"4747/tcp": ("0.0.0.0", "5000")})
    node = replace(
        RUNNING, service="node-exporter", command=("--web.listen-address=10.0.0.1:9101",)
    )
    panels = replace(RUNNING, service="panels", published={"3000/tcp": ("10.0.0.2", "5001")})
    runbooks = replace(RUNNING, service="runbooks", published={"3000/tcp": ("10.0.0.2", "5002")})
    assert as_running([app, node, panels, runbooks]) == {
        "AGL_GRAFANA_BIND": "10.0.0.2",
        "AGL_GRAFANA_PORT": "5001",
        "AGL_RUNBOOKS_PORT": "5002",
        "AGL_BIND": "0.0.0.0",
        "AGL_PORT": "5000",
        "AGL_GATEWAY": "10.0.0.1",
        "AGL_NODE_EXPORTER_PORT": "9101",
    }
