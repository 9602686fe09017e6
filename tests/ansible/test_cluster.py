"""The playbooks on real hosts: bare, finished, sick, lost; upgraded, verified, restored.

The tests build on each other: each finds the cluster as the one before has left it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from lab.cluster import (
    GROUPS,
    HOST_PYTHON,
    LAB,
    NEW,
    OLD,
    PASSWORD,
    Cluster,
    cluster,
    docker,
    wait_for,
)
from mongo_bundle import documents_of, play

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1800)]
HOSTS = [host for members in GROUPS.values() for host in members]
TOGETHER = ("-e", '{"agl_serial": [2]}')  # where batches are not what it is about
# Written by what runs, not by those who use the store.
BOOKKEEPING = {"counters", "partitions", "servers"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def states(hosts: Cluster, *names: str) -> dict[str, str]:
    return {name: hosts.state(name) for name in names}


def test_a_dry_run_on_bare_hosts_changes_nothing(hosts: Cluster) -> None:
    before = states(hosts, *HOSTS)
    for command, arguments in (("doctor", ()), ("apply", ("--check", "--diff"))):
        run = hosts.run(command, *arguments)
        assert run.code == 0, run.said
        assert all("python" in run.of(host, "warn") for host in HOSTS), run.said
    assert states(hosts, *HOSTS) == before


def test_one_run_makes_bare_hosts_a_cluster(hosts: Cluster) -> None:
    run = hosts.run("apply", *TOGETHER)
    assert run.code == 0, run.said
    assert not any(run.of(host) for host in HOSTS), run.said
    for host in GROUPS["gpu_nodes"]:
        assert hosts.driver(host) == OLD
        held = set(hosts.on(host, "apt-mark showhold").split())
        assert {"cuda-drivers-580", "nvidia-container-toolkit"} <= held


def test_the_run_after_changes_nothing(hosts: Cluster) -> None:
    """Nor does it touch GPU work that runs, or what the user has added to daemon.json; a switch
    that is given as text is read."""
    content = json.loads(hosts.on("gpu1", "cat /etc/docker/daemon.json"))
    assert content["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    content["max-concurrent-downloads"] = 7
    hosts.on("gpu1", f"cat >/etc/docker/daemon.json <<'X'\n{json.dumps(content)}\nX")
    hosts.on("gpu1", "echo '4242, python train.py' >/opt/lab/apps")
    before = states(hosts, "gpu1", "cpu1")
    # To a dry run the second GPU node is like the first.
    for arguments in ((), ("--check", "--diff", "--limit", "!gpu2")):
        run = hosts.run("apply", *TOGETHER, "-e", "firewall_enabled=false", *arguments)
        assert (run.code, run.changed) == (0, []), run.said
    assert "1 use GPUs" in run.of("gpu1", "ok")["gpu work"]
    assert states(hosts, "gpu1", "cpu1") == before


def test_verify_asks_the_cluster(hosts: Cluster) -> None:
    docker("cp", "-q", str(LAB / "receiver.py"), f"{hosts.container('cpu1')}:/root/receiver.py")
    hosts.on("cpu1", "systemd-run --unit receiver python3 /root/receiver.py 8080 /root/pages")
    run = hosts.run("verify")
    assert run.code == 0, run.said
    assert run.of("gpu1", "ok")["gpus"] == "a container sees 2 of 2"
    assert {"targets", "rollout", "test alert"} <= run.of("control1", "ok").keys()
    assert '"alertname":"ClusterVerify"' in hosts.on("cpu1", "cat /root/pages")


def test_exporters_ask_for_a_password_over_tls(hosts: Cluster) -> None:
    for target in ("gpu1", 9100), ("gpu1", 9400), ("cpu1", 9100):
        url = f"https://{hosts.address(target[0])}:{target[1]}/metrics"
        call = ["curl", "--silent", "--cacert", hosts.folder / "tls.crt", "-w", "\n%{http_code}"]
        answers = [
            subprocess.run([*call, *more, url], capture_output=True, text=True, check=True).stdout
            for more in ((), ("--user", "agl:wrong"), ("--user", f"agl:{PASSWORD}"))
        ]
        assert [answer.rpartition("\n")[2] for answer in answers] == ["401", "401", "200"], url
        assert ("DCGM_FI_DEV_GPU_TEMP{" in answers[2]) == (target[1] == 9400)
        plain = subprocess.run(["curl", "--silent", "--fail", url.replace("https", "http")])
        assert plain.returncode != 0


def test_verify_names_what_is_not_well(hosts: Cluster) -> None:
    hosts.on("cpu1", "systemctl stop prometheus-node-exporter")
    hosts.on("gpu2", "touch /opt/lab/pci/0000:02/broken; systemctl restart dcgm-exporter")
    run = hosts.run("verify", "-e", "agl_verify_seconds=25")
    hosts.on("gpu2", "rm /opt/lab/pci/0000:02/broken; systemctl restart dcgm-exporter")
    hosts.on("cpu1", "systemctl start prometheus-node-exporter")
    assert run.code == 1
    assert set(run.of("cpu1")) == {"unit prometheus-node-exporter", "nofile"}, run.said
    assert run.of("gpu2") == {"gpus": "a container sees 1 of 2"}, run.said
    assert "cpu1:9100" in run.of("control1")["targets"], run.said


FAULTS = {
    "control1": (
        "sed -i 's/^ID=.*/ID=plan9/' /etc/os-release",
        "sed -i 's/^ID=.*/ID=debian/' /etc/os-release",
        {"system"},
    ),
    "gpu1": (
        # GPU work runs since the test of the second run; an earlier run was cut off.
        "dpkg --unpack /opt/lab-apt/nvidia-fabricmanager-580_*5.05-1_all.deb >/dev/null 2>&1;"
        " echo '{' >>/etc/docker/daemon.json",
        "dpkg --purge nvidia-fabricmanager-580 >/dev/null 2>&1;"
        " sed -i '$d' /etc/docker/daemon.json; rm /opt/lab/apps",
        {"packages", "daemon.json", "gpu work"},
    ),
    "gpu2": (
        "mv /opt/lab/pci /opt/lab/pulled; systemctl stop prometheus-node-exporter;"
        " systemd-run -q --unit squatter python3 -m http.server 9100",
        "mv /opt/lab/pulled /opt/lab/pci; systemctl stop squatter;"
        " systemctl start prometheus-node-exporter",
        {"gpus", "port"},
    ),
}


def test_sick_hosts_are_left_out_before_any_change(hosts: Cluster) -> None:
    """Even where the run would bring something new; the healthy host is seen to."""
    hosts.inventory(nvidia_driver_version=NEW)
    for host, (break_it, _, _) in FAULTS.items():
        hosts.on(host, break_it)
    wait_for("the port is taken", lambda: "9100" in hosts.on("gpu2", "ss -Hltn"))
    before = states(hosts, *FAULTS)
    run = hosts.run("apply")
    assert states(hosts, *FAULTS) == before
    for host, (_, mend_it, checks) in FAULTS.items():
        hosts.on(host, mend_it)
        assert set(run.of(host)) == checks, run.said
    assert (run.code, run.of("cpu1"), run.changed) == (1, {}, [])
    assert run.fixes and all(run.fixes), run.said


def test_what_a_look_finds(hosts: Cluster) -> None:
    """A host that is off, one with a password for sudo, one whose facts hang, one out of step."""
    docker("stop", hosts.container("cpu1"))
    hosts.on("gpu1", "echo 'ops ALL=(ALL) ALL' >/etc/sudoers.d/ops")
    hang = "/etc/ansible/facts.d/hang.fact"
    hosts.on("gpu2", f"mkdir -p /etc/ansible/facts.d; printf '#!/bin/sh\nsleep 600' >{hang}")
    hosts.on("gpu2", f"chmod +x {hang}")
    clock = "import time; real = time.time; time.time = lambda: real() + 3600"
    hosts.on("control1", f"echo '{clock}' >/etc/python{HOST_PYTHON}/sitecustomize.py")
    disk = {"/var/lib": 10**6}
    own = {"gpu2": {"preflight_facts_seconds": 1}, "cpu1": {"ansible_timeout": 5}}
    hosts.inventory(own, agl_nofile=10**9, preflight_disk_gb=disk)
    run = hosts.run("doctor", "-e", "ansible_become_password=wrong")
    hosts.on("control1", f"rm /etc/python{HOST_PYTHON}/sitecustomize.py")
    hosts.on("gpu1", "echo 'ops ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/ops")
    hosts.on("gpu2", "rm -r /etc/ansible/facts.d")
    hosts.restart("cpu1")
    hosts.on("cpu1", "systemd-run -q --unit receiver python3 /root/receiver.py 8080 /root/pages")
    assert run.code == 1
    assert {host: set(run.of(host)) for host in HOSTS} == {
        "cpu1": {"reachable"},
        "gpu1": {"root"},
        "gpu2": {"facts"},
        "control1": {"nofile", "disk", "clock"},
    }, run.said
    assert all(run.fixes), run.said


def test_an_upgrade_stops_at_the_host_that_fails(hosts: Cluster) -> None:
    hosts.inventory(nvidia_driver_version=NEW)
    hosts.on("gpu1", "touch /opt/lab/pci/0000:01/broken")
    before = states(hosts, "gpu2", "cpu1", "control1")
    run = hosts.run("upgrade")
    hosts.on("gpu1", "rm /opt/lab/pci/0000:01/broken")
    assert run.code == 1
    assert "shows 1 of 2 GPUs" in str(run.of("gpu1")), run.said
    assert states(hosts, *before) == before
    assert (hosts.driver("gpu1"), hosts.driver("gpu2")) == (NEW, OLD)


def test_a_host_that_vanishes_at_its_reboot_stops_the_rollout(hosts: Cluster) -> None:
    hosts.inventory({"gpu2": {"nvidia_driver_reboot_seconds": 15}}, nvidia_driver_version=NEW)
    docker("update", "--restart", "no", hosts.container("gpu2"))
    before = states(hosts, "cpu1", "control1")
    run = hosts.run("apply", *TOGETHER)
    gone = docker("inspect", "-f", "{{.State.Status}}", hosts.container("gpu2"))
    hosts.restart("gpu2")
    assert (run.code, gone) == (1, "exited"), run.said
    assert "Reboot" in str(run.of("gpu2")), run.said
    assert "lost after the first change: gpu2" in str(run.of("gpu1")), run.said
    assert not any(line.startswith("control1") for line in run.changed)
    assert states(hosts, *before) == before


def test_an_upgrade_goes_through(hosts: Cluster) -> None:
    hosts.inventory(nvidia_driver_version=NEW)
    run = hosts.run("upgrade", *TOGETHER)
    assert run.code == 0, run.said
    assert hosts.driver("gpu2") == NEW
    assert hosts.on("control1", "ls /opt/agl/backups").endswith(".gz")


def test_a_backup_comes_back_into_an_empty_control_node(hosts: Cluster) -> None:
    play(hosts.store_url(), 20)
    before = backed_up(hosts, "before")
    assert len(before["rollouts"]) > 20  # those of verify as well
    assert before["spans"]
    hosts.on("control1", "systemctl stop agl-stack; docker volume prune -af; rm -rf /opt/agl")
    hosts.on("control1", "rm /etc/systemd/system/agl-stack.service; systemctl daemon-reload")
    # A node that is down does not keep the control node from coming back.
    hosts.on("cpu1", "systemctl stop prometheus-node-exporter")
    run = hosts.run("apply", "--limit", "control1")
    assert run.code == 0, run.said
    (file,) = (hosts.folder / "before").iterdir()
    run = hosts.run("restore", "-e", f"agl_backup={file}")
    assert run.code == 0, run.said
    assert backed_up(hosts, "after") == before


def backed_up(hosts: Cluster, name: str) -> dict[str, dict[Any, dict[str, Any]]]:
    """What a backup holds of the users' documents, by collection and id."""
    target = hosts.folder / name
    run = hosts.run("backup", "-e", f"agl_backup_to={target}")
    assert run.code == 0, run.said
    (file,) = target.iterdir()
    return {name: one for name, one in documents_of(file).items() if name not in BOOKKEEPING}
