"""The running bundle: who may reach and read what, and what it tells Prometheus."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from bundle import (
    COMPOSE_FILE,
    VARIABLES,
    Stack,
    clone_to,
    docker,
    leftovers,
    local_images,
)

import agl

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

PLAIN = {
    "COMPOSE_PROJECT_NAME": "agl-plain-test",
    "AGL_PORT": "15747",
    "AGL_GRAFANA_PORT": "16091",
    "AGL_PROMETHEUS_PORT": "16090",
    "AGL_ALERTMANAGER_PORT": "16093",
    "AGL_RUNBOOKS_PORT": "16096",
    "AGL_NODE_EXPORTER_PORT": "16100",
    "AGL_SUBNET": "172.31.246.0/24",
    "AGL_GATEWAY": "172.31.246.1",
}
SERVICES = (
    "app",
    "app-exporter",
    "container-exporter",
    "node-exporter",
    "prometheus",
    "alertmanager",
    "runbooks",
)


def test_every_target_is_up_and_says_which_host(stack: Stack) -> None:
    found = {item["metric"]["job"]: item for item in stack.query("up")}
    assert set(found) == {"app", "node", "prometheus", "alertmanager", "containers"}
    for job, item in found.items():
        assert item["value"][1] == "1", job
        assert item["metric"]["host"] == socket.gethostname()
        assert item["metric"]["instance"]


def test_node_exporter_sees_the_hosts_interfaces(stack: Stack) -> None:
    ours = {name for _, name in socket.if_nameindex() if not name.startswith(("lo", "veth"))}
    seen = {item["metric"]["device"] for item in stack.query("node_network_info")}
    assert ours & seen, f"host has {ours}, node-exporter shows {seen}"


def test_panels_show_the_dashboards_at_grafanas_address(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.environ['AGL_GRAFANA_PORT']}"
    if "application" not in httpx.get(f"{url}/api/health").json():
        pytest.skip("Grafana's image could be had, so Grafana shows them")
    assert httpx.get(url).headers["location"] == "/d/agl-overview/overview"
    for uid in ("agl-overview", "agl-store"):
        board = httpx.get(f"{url}/api/boards/{uid}", timeout=60).json()
        assert {v["name"]: v["problem"] for v in board["variables"]}["job"] == ""
        for row in board["rows"]:
            for panel in row["panels"]:
                query = {"panel": panel["key"], "width": "600"}
                data = httpx.get(f"{url}/api/boards/{uid}/data", params=query, timeout=60).json()
                assert not [r["error"] for r in data["results"] if "error" in r], panel["title"]
    assert "Meaning" in httpx.get(f"{url}/api/runbooks/TargetDown").json()["text"]


def test_the_link_of_an_alert_leads_to_its_runbook(stack: Stack) -> None:
    (watchdog,) = stack.alerts("Watchdog")
    link = watchdog["annotations"]["runbook_url"]
    assert link == f"http://localhost:{stack.environ['AGL_RUNBOOKS_PORT']}/runbooks/Watchdog"
    page = httpx.get(link)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    text = httpx.get(link.replace("/runbooks/", "/api/runbooks/")).json()["text"]
    assert text.startswith("# Watchdog")
    assert "\nrunbooks " in stack.script("status")


@pytest.mark.parametrize("service", SERVICES)
def test_service_is_hardened(stack: Stack, service: str) -> None:
    host = stack.container(service)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert host["LogConfig"]["Config"]["max-size"]


@pytest.mark.parametrize("service", SERVICES)
def test_no_process_is_root(stack: Stack, service: str) -> None:
    pid = stack.container(service)["State"]["Pid"]
    uids = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Uid:" in line
    )
    assert "0" not in uids.split()[1:]


@pytest.mark.usefixtures("stack")
def test_nothing_listens_beyond_loopback_and_the_bridge() -> None:
    listening = subprocess.run(
        ["ss", "-Hltn"], check=True, capture_output=True, text=True
    ).stdout.split("\n")
    ports = {VARIABLES[name] for name in VARIABLES if name.endswith("_PORT")}
    addresses = [line.split()[3] for line in listening if line]
    ours = [address for address in addresses if address.rpartition(":")[2] in ports]
    assert len(ours) >= 3
    for address in ours:
        assert address.rpartition(":")[0] in {"127.0.0.1", VARIABLES["AGL_GATEWAY"]}, address


def test_secrets_belong_to_their_consumers_alone(stack: Stack) -> None:
    listing = docker(
        *("run", "--rm", "--volume", f"{stack.project}_secrets:/s:ro", "--entrypoint", "stat"),
        *("--user", "0", stack.container("app")["Config"]["Image"]),
        *("-c", "%n %a %u", "/s/api-token", "/s/grafana-admin-password"),
    )
    assert listing.split("\n")[:2] == [
        "/s/api-token 400 10001",
        "/s/grafana-admin-password 400 472",
    ]


def test_second_up_changes_nothing(stack: Stack) -> None:
    before = {name: stack.container(name) for name in SERVICES}
    stack.script("up", "--yes")
    after = {name: stack.container(name) for name in SERVICES}
    for name in SERVICES:
        assert after[name]["Id"] == before[name]["Id"], name
        assert after[name]["State"]["StartedAt"] == before[name]["State"]["StartedAt"], name


def test_the_store_image_is_small(stack: Stack) -> None:
    """What it adds to its base: 120 MB at most, as everybody who pulls it is promised."""
    image = docker("inspect", "--format", "{{.Image}}", f"{stack.project}-app-1").strip()
    size = int(docker("image", "inspect", "--format", "{{.Size}}", image))
    base = int(docker("image", "inspect", "--format", "{{.Size}}", "debian:trixie-slim"))
    assert size - base <= 120e6


def test_status_agrees(stack: Stack) -> None:
    said = stack.script("status")
    for service in SERVICES:
        assert service in said


def test_the_plain_compose_command_works_from_a_fresh_clone(tmp_path: Path) -> None:
    """The command of the README, without the scripts; local images through the variables."""
    clone = clone_to(tmp_path / "plain")
    environ = {**os.environ, **PLAIN, **local_images()}
    compose = ["docker", "compose", "-f", COMPOSE_FILE]
    folder = clone / "compose"
    log = tmp_path / "log"
    with log.open("w") as output:
        up = subprocess.Popen(
            [*compose, "up"], cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        bundle = Stack(clone, environ)
        deadline = time.monotonic() + 240
        while bundle.up_targets() != {"app", "node", "prometheus", "alertmanager", "containers"}:
            assert up.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(1)
        assert httpx.get(f"{bundle.store_url}/v1/agl/statistics").json()["total_rollouts"] == 0
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(timeout=60)
        subprocess.run([*compose, "down", "-v"], cwd=folder, env=environ, check=True, timeout=90)
    assert leftovers(PLAIN["COMPOSE_PROJECT_NAME"]) == {
        "containers": [],
        "volumes": [],
        "networks": [],
    }


def test_beyond_loopback_the_token_is_demanded(stack: Stack) -> None:
    """The same clone, published on the address of the bridge: what another machine would see."""
    bind = VARIABLES["AGL_GATEWAY"]
    other = Stack(stack.root, {**stack.environ, "AGL_BIND": bind})
    url = f"http://{bind}:{VARIABLES['AGL_PORT']}"
    try:
        with pytest.raises(AssertionError, match="rollouts it holds in memory are lost"):
            other.script("up")
        said = other.script("up", "--yes")
        assert httpx.get(f"{url}/v1/agl/health").status_code == 200
        assert httpx.get(f"{url}/v1/agl/statistics").status_code == 401
        token = other.script("up", "--yes").partition("http://agl:")[2].partition("@")[0]
        assert token
        assert f"http://agl:{token}@{bind}" in said
        answer = httpx.get(f"{url}/v1/agl/statistics", auth=("agl", token))
        assert answer.status_code == 200
    finally:
        stack.script("up", "--yes")
    assert httpx.get(f"{stack.store_url}/v1/agl/statistics").status_code == 200


def test_status_fails_while_a_service_is_down(stack: Stack) -> None:
    docker("stop", f"{stack.project}-app-exporter-1")
    try:
        done = subprocess.run(
            [stack.root / "scripts" / "status"],
            env=stack.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "app-exporter" in done.stdout + done.stderr
    finally:
        stack.script("up", "--yes")


def test_health_tells_which_instance(stack: Stack) -> None:
    first = httpx.get(f"{stack.store_url}/v1/agl/health").json()
    time.sleep(0.1)
    second = httpx.get(f"{stack.store_url}/v1/agl/health").json()
    assert first["status"] == "ok"
    assert first["instance_id"] == second["instance_id"]
    assert first["version"] == agl.__version__
