"""The playbooks on real hosts: bare, finished, sick, lost; upgraded, verified, restored.

The tests build on each other: each finds the cluster as the one before has left it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import GROUPS, NEW, OLD, Cluster, cluster, docker

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1800)]
HOSTS = [host for members in GROUPS.values() for host in members]
ROLLOUT = """
python3 - <<'PROBE'
import json, urllib.request, subprocess
token = subprocess.check_output(
    ["docker", "exec", "agl-app-1", "cat", "/run/agl/secrets/api-token"], text=True)
url = "http://ADDRESS:4747/v1/agl/" + "PATH"
data = BODY
request = urllib.request.Request(url, data=data and json.dumps(data).encode(), headers={
    "Authorization": "Bearer " + token, "Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
PROBE
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def store(hosts: Cluster, path: str, body: object = None) -> dict[str, object]:
    script = ROLLOUT.replace("ADDRESS", hosts.address("control1")).replace("PATH", path)
    return json.loads(hosts.on("control1", script.replace("BODY", repr(body))))


def test_a_dry_run_on_bare_hosts_changes_nothing(hosts: Cluster) -> None:
    before = {host: hosts.state(host) for host in HOSTS}
    for command, arguments in (("doctor", ()), ("apply", ("--check", "--diff"))):
        run = hosts.run(command, *arguments)
        assert run.code == 0, run.said
        assert all("python" in run.of(host, "warn") for host in HOSTS)
    assert {host: hosts.state(host) for host in HOSTS} == before


def test_a_sick_host_is_left_out_and_the_others_are_made(hosts: Cluster) -> None:
    hosts.on("gpu2", "mv /opt/lab/pci /opt/lab/pulled")
    run = hosts.run("apply")
    hosts.on("gpu2", "mv /opt/lab/pulled /opt/lab/pci")
    assert run.code == 1
    assert list(run.of("gpu2")) == ["gpus"], run.said
    assert not any(run.of(host) for host in HOSTS if host != "gpu2"), run.said
    assert (hosts.driver("gpu1"), hosts.driver("gpu2")) == (OLD, "")
    assert not any(line.startswith("gpu2: ") and "Python" not in line for line in run.changed)


def test_the_next_run_makes_the_host_that_was_sick(hosts: Cluster) -> None:
    run = hosts.run("apply")
    assert run.code == 0, run.said
    assert hosts.driver("gpu2") == OLD
    assert not [line for line in run.changed if line.startswith(("gpu1: ", "cpu1: "))]


def test_the_run_after_changes_nothing(hosts: Cluster) -> None:
    for arguments in ((), ("--check", "--diff")):
        run = hosts.run("apply", *arguments)
        assert (run.code, run.changed) == (0, []), run.said


def test_verify_asks_the_cluster(hosts: Cluster) -> None:
    run = hosts.run("verify")
    assert run.code == 0, run.said
    assert run.of("gpu1", "ok")["gpus"] == "a container sees 2 of 2"
    assert {"targets", "rollout"} <= run.of("control1", "ok").keys()
    held = hosts.on("gpu1", "apt-mark showhold").split()
    assert {"cuda-drivers-580", "nvidia-container-toolkit"} <= set(held)
    hosts.on("cpu1", "systemctl stop prometheus-node-exporter")
    run = hosts.run("verify")
    hosts.on("cpu1", "systemctl start prometheus-node-exporter")
    assert run.code == 1
    assert "cpu1:9100" in run.of("control1")["targets"]


def test_keys_of_the_users_daemon_json_stay(hosts: Cluster) -> None:
    content = json.loads(hosts.on("gpu1", "cat /etc/docker/daemon.json"))
    assert content["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    content["max-concurrent-downloads"] = 7
    hosts.on("gpu1", f"cat >/etc/docker/daemon.json <<'X'\n{json.dumps(content)}\nX")
    run = hosts.run("apply", "--limit", "gpu1")
    assert (run.code, run.changed) == (0, []), run.said


def test_running_gpu_work_is_left_alone(hosts: Cluster) -> None:
    hosts.on("gpu1", "echo '4242, python train.py' >/opt/lab/apps")
    assert hosts.run("apply", "--limit", "gpu1").code == 0
    hosts.inventory(nvidia_driver_version=NEW)
    run = hosts.run("apply", "--limit", "gpu1")
    assert list(run.of("gpu1")) == ["gpu work"], run.said
    assert hosts.driver("gpu1") == OLD
    hosts.on("gpu1", "rm /opt/lab/apps")


def test_an_upgrade_stops_at_the_host_that_fails(hosts: Cluster) -> None:
    hosts.inventory(nvidia_driver_version=NEW)
    hosts.on("gpu1", "touch /opt/lab/pci/0000:01/broken")
    before = {host: hosts.state(host) for host in ("gpu2", "cpu1", "control1")}
    run = hosts.run("upgrade")
    hosts.on("gpu1", "rm /opt/lab/pci/0000:01/broken")
    assert run.code == 1
    assert "shows 1 of 2 GPUs" in str(run.of("gpu1")), run.said
    assert {host: hosts.state(host) for host in before} == before
    assert (hosts.driver("gpu1"), hosts.driver("gpu2")) == (NEW, OLD)


def test_a_host_that_vanishes_at_its_reboot_stops_the_rollout(hosts: Cluster) -> None:
    hosts.inventory(nvidia_driver_version=NEW)
    docker("update", "--restart", "no", hosts.container("gpu2"))
    before = {host: hosts.state(host) for host in ("cpu1", "control1")}
    run = hosts.run("upgrade", "-e", '{"agl_serial": [2]}')
    assert run.code == 1
    assert run.of("gpu2"), run.said
    assert "lost after the first change: gpu2" in str(run.of("gpu1")), run.said
    assert {host: hosts.state(host) for host in before} == before
    docker("start", hosts.container("gpu2"))
    docker("update", "--restart", "always", hosts.container("gpu2"))
    hosts.wait("gpu2")
    run = hosts.run("upgrade")
    assert run.code == 0, run.said
    assert hosts.driver("gpu2") == NEW


def test_a_backup_comes_back_into_an_empty_control_node(hosts: Cluster) -> None:
    made = [store(hosts, "rollouts", {"input": {"n": n}}) for n in range(5)]
    target = hosts.folder / "backups"
    run = hosts.run("backup", "-e", f"agl_backup_to={target}")
    assert run.code == 0, run.said
    (file,) = target.iterdir()
    hosts.on("control1", "systemctl stop agl-stack; docker volume prune -af; rm -rf /opt/agl")
    hosts.on("control1", "rm /etc/systemd/system/agl-stack.service; systemctl daemon-reload")
    run = hosts.run("apply", "--limit", "control1")
    assert run.code == 0, run.said
    run = hosts.run("restore", "-e", f"agl_backup={file}")
    assert run.code == 0, run.said
    for rollout in made:
        found = store(hosts, f"rollouts/{rollout['rollout_id']}")
        assert found["input"] == rollout["input"]


@pytest.mark.parametrize(
    ("host", "break_it", "mend_it", "check"),
    [
        (
            "cpu1",
            "systemctl stop prometheus-node-exporter;"
            " systemd-run --unit squatter python3 -m http.server 9100",
            "systemctl stop squatter; systemctl start prometheus-node-exporter",
            "port",
        ),
        (
            "gpu1",
            "echo '{' >>/etc/docker/daemon.json",
            "sed -i '$d' /etc/docker/daemon.json",
            "daemon.json",
        ),
        (
            "cpu1",
            "sed -i 's/^ID=.*/ID=plan9/' /etc/os-release",
            "sed -i 's/^ID=.*/ID=debian/' /etc/os-release",
            "system",
        ),
        ("gpu1", "rm -r /opt/lab/pci/0000:02", "", "gpus"),
        (
            "cpu1",
            "echo 'ops ALL=(ALL) ALL' >/etc/sudoers.d/ops",
            "echo 'ops ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/ops",
            "root",
        ),
    ],
)
def test_faults_are_found_before_any_change(
    hosts: Cluster, host: str, break_it: str, mend_it: str, check: str
) -> None:
    hosts.inventory(nvidia_driver_version=NEW)
    hosts.on(host, break_it)
    before = hosts.state(host)
    run = hosts.run("apply", "--limit", host)
    assert hosts.state(host) == before
    hosts.on(host, mend_it or "true")
    assert run.code == 1
    assert list(run.of(host)) == [check], run.said


def test_limits_disk_and_absence_are_told(hosts: Cluster, tmp_path: Path) -> None:
    hosts.inventory(agl_nofile=10**9, preflight_disk_gb={"/var/lib": 10**6})
    run = hosts.run("doctor", "--limit", "cpu1")
    assert set(run.of("cpu1")) == {"nofile", "disk"}, run.said
    docker("stop", hosts.container("cpu1"))
    run = hosts.run("doctor", "--limit", "cpu1")
    assert list(run.of("cpu1")) == ["reachable"], run.said
