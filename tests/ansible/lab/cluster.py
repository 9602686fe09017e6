"""Hosts for the scenario: containers that run systemd, on a network of their own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bundle import clone_to, lend_environment

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "tests" / "ansible" / "lab"
HOST_IMAGE, DCGM_IMAGE = "agl-cluster-host:lab", "agl-cluster-dcgm:lab"
HOST_PYTHON = "3.13"
PASSWORD = "lab-password"
PASSWORD_HASH = "$2b$04$/dukaLpMboDqdGd8XGLUf.Jcz1ZI89k4fusBV8bFivyK8NajMTSYK"
OLD, NEW = "580.95.05-1", "580.105.08-1"
SYSTEMD = (
    "/sbin/init",
    "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",
    "systemd.unified_cgroup_hierarchy=0",
)
CA = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
SSH_ARGUMENTS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
GROUPS = {"control": ["control1"], "gpu_nodes": ["gpu1", "gpu2"], "cpu_nodes": ["cpu1"]}


def docker(*arguments: str, stdin: str | None = None, seconds: float = 600) -> str:
    done = subprocess.run(
        ["docker", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)


@dataclass
class Run:
    """What a run of scripts/cluster said and found."""

    code: int
    report: dict[str, Any]
    said: str

    def of(self, host: str, status: str = "fail") -> dict[str, str]:
        """Name of each check of ``host`` with this status, and what was found."""
        checks = self.report["hosts"].get(host, [])
        return {check["name"]: check["found"] for check in checks if check["status"] == status}

    @property
    def fixes(self) -> list[str]:
        """What is to be done about each failed check."""
        checks = [check for found in self.report["hosts"].values() for check in found]
        return [check["fix"] for check in checks if check["status"] == "fail"]

    @property
    def changed(self) -> list[str]:
        return self.report["changed"]


@dataclass
class Cluster:
    """A control node, two nodes with two GPUs each, and one without."""

    folder: Path
    name: str
    subnet: str
    runs: int = 0

    def container(self, host: str) -> str:
        return f"{self.name}-{host}"

    def address(self, host: str) -> str:
        hosts = [host for members in GROUPS.values() for host in members]
        return f"{self.subnet}.{10 + hosts.index(host)}"

    def on(self, host: str, script: str) -> str:
        """What a shell script prints on ``host``, as root."""
        return docker("exec", "-i", self.container(host), "sh", "-eu", stdin=script)

    def start(self, host: str) -> None:
        name = self.container(host)
        options = ["--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--cgroupns", "host"]
        options += [
            "--security-opt",
            "seccomp=unconfined",
            "-v",
            "/sys/fs/cgroup:/sys/fs/cgroup:rw",
        ]
        options += ["--tmpfs", "/run", "-e", "container=docker", "--restart", "always"]
        options += ["-v", f"{name}:/var/lib/docker", "-v", f"{CA}:/usr/local/share/ca.pem:ro"]
        options += ["--network", self.name, "--ip", self.address(host), "--hostname", host]
        docker("run", "-d", "--name", name, *options, HOST_IMAGE, *SYSTEMD)
        key = (self.folder / "key.pub").read_text()
        keys = "/home/ops/.ssh/authorized_keys"
        self.on(host, f"echo '{key.strip()}' >{keys}; chown ops:ops {keys}; chmod 600 {keys}")
        if host in GROUPS["gpu_nodes"]:
            docker("cp", "-q", str(self.folder / "apt"), f"{name}:/opt/lab-apt")
            for slot in ("01", "02"):
                self.plug(host, slot, "0x030200")

    def plug(self, host: str, slot: str, kind: str) -> None:
        """A device of NVIDIA's on the stand-in of the PCI bus."""
        place = f"/opt/lab/pci/0000:{slot}"
        self.on(host, f"mkdir -p {place}; echo 0x10de >{place}/vendor; echo {kind} >{place}/class")

    def restart(self, host: str) -> None:
        """Switch a host on that has been switched off, or did not come back."""
        docker("start", self.container(host))
        docker("update", "--restart", "always", self.container(host))
        self.wait(host)

    def store_url(self) -> str:
        token = self.on("control1", "docker exec agl-app-1 cat /run/agl/secrets/api-token")
        return f"http://agl:{token}@{self.address('control1')}:4747"

    def wait(self, host: str) -> None:
        def answers() -> bool:
            probe = ["docker", "exec", self.container(host), "systemctl", "is-active", "ssh"]
            return subprocess.run(probe, capture_output=True, check=False).returncode == 0

        wait_for(f"{host} answers", answers)

    def inventory(self, own: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> None:
        """The inventory as a file; ``own`` are variables of single hosts, ``changes`` of all."""
        shared = {
            "ansible_user": "ops",
            "ansible_become": True,
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": SSH_ARGUMENTS,
            "agl_nofile": 20000,
            "common_time_service": False,
            "store_environment": {
                "PIP_CERT": "/usr/local/share/ca.pem",
                "SSL_CERT_FILE": "/usr/local/share/ca.pem",
            },
            "store_settings": {
                "MONGO_IMAGE": "agl-stack/lab-mongod:lab",
                "AGL_MONGO_OPLOG_MB": 128,
            },
            # One of the network's alone: others are those of the machine that runs the tests.
            "common_sysctl": {"net.core.somaxconn": 8192},
            "alertmanager_settings": {
                "AGL_ALERT_WEBHOOK_URL": f"http://{self.address('cpu1')}:8080/"
            },
            "node_exporter_tls_cert": str(self.folder / "tls.crt"),
            "node_exporter_tls_key": str(self.folder / "tls.key"),
            "node_exporter_password_hash": PASSWORD_HASH,
            "dcgm_exporter_web_config": str(self.folder / "web.yml"),
            "prometheus_tls_ca": str(self.folder / "tls.crt"),
            "prometheus_exporter_password": PASSWORD,
            "preflight_pci_path": "/opt/lab/pci",
            "nvidia_driver_repository": "file:/opt/lab-apt",
            "nvidia_driver_trusted": True,
            "nvidia_driver_version": OLD,
            "nvidia_driver_headers": False,
            "nvidia_driver_reboot_seconds": 300,
            "preflight_facts_seconds": 300,
            "nvidia_driver_loaded_file": "/run/nvidia-lab/loaded",
            "nvidia_driver_installed_command": ["cat", "/usr/share/nvidia-lab/version"],
            "nvidia_driver_boot_command": "systemctl show --property=UserspaceTimestampMonotonic",
            "dcgm_exporter_image": DCGM_IMAGE,
            "dcgm_exporter_archive": str(self.folder / "dcgm.tar"),
            **changes,
        }
        known = own or {}
        groups: dict[str, Any] = {
            group: {
                "hosts": {
                    host: {"ansible_host": self.address(host), **known.get(host, {})}
                    for host in members
                }
            }
            for group, members in GROUPS.items()
        }
        groups["gpu_nodes"]["vars"] = {"agl_gpus": 2}
        path = self.folder / "hosts.yml"
        path.write_text(yaml.safe_dump({"all": {"vars": shared, "children": groups}}))

    def run(self, command: str, *arguments: str) -> Run:
        """scripts/cluster COMMAND, with its report, of a clone that nobody writes into."""
        call = [str(self.folder / "clone" / "scripts" / "cluster"), command, "--json"]
        call += ["-i", str(self.folder / "hosts.yml")]
        if command in {"apply", "upgrade"}:
            call += ["--images", str(self.folder / "images.tar")]
        self.runs += 1
        log = self.folder / f"{self.runs:02}-{command}.log"
        done = subprocess.run(
            [*call, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
            env={
                **os.environ,
                "AGL_CLUSTER_VENV": str(ROOT / ".cache" / "cluster-venv"),
                "ANSIBLE_LOG_PATH": str(log),  # every task with its time
            },
        )
        log.with_suffix(".json").write_text(done.stdout)
        said = done.stdout + done.stderr
        report = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return Run(done.returncode, report, said)

    def state(self, host: str) -> str:
        """What must stay where nothing may change: packages, and the times of files and units."""
        return self.on(host, "dpkg -l; find /etc /opt -type f -printf '%T@ %p\\n' | sort")

    def driver(self, host: str) -> str:
        return self.on(host, "dpkg-query -W -f '${Version}' cuda-drivers-580 2>/dev/null || true")


def certificate(folder: Path, addresses: Sequence[str]) -> None:
    """One certificate for the exporters of all hosts, and dcgm-exporter's file with it."""
    call = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
    call += ["-subj", "/CN=lab", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
    names = ",".join(f"IP:{address}" for address in addresses)
    call += ["-addext", f"subjectAltName={names}"]
    subprocess.run(call, check=True, capture_output=True)
    files = {"cert": "tls.crt", "key": "tls.key"}
    secured = {name: (folder / file).read_text() for name, file in files.items()}
    web = {"tls_server_config": secured, "basic_auth_users": {"agl": PASSWORD_HASH}}
    (folder / "web.yml").write_text(yaml.safe_dump(web))


def archive_images(folder: Path) -> subprocess.Popen[bytes]:
    """Begins to write the archive of the bundle's images, which takes a while.

    The clone remembers which they are, and not the tree whose other tests run beside this.
    """
    save = [folder / "clone" / ".venv" / "bin" / "agl-stack", "stack", "images", "save"]
    environment = {**os.environ, "MONGO_IMAGE": "agl-stack/lab-mongod:lab"}
    command = [*save, folder / "images.tar", "--mode", "mongo", "--python", HOST_PYTHON]
    with (folder / "images.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def prepare(folder: Path) -> None:
    """The hosts' image, packages, key: everything else that is not a host."""
    docker("build", "-q", "-t", HOST_IMAGE, str(LAB))
    docker("build", "-q", "-t", DCGM_IMAGE, str(LAB / "dcgm"))
    docker("save", DCGM_IMAGE, "-o", str(folder / "dcgm.tar"))
    subprocess.run([LAB / "packages.sh", folder / "apt", OLD, NEW], check=True)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"]
    subprocess.run(keygen, check=True)


def make_network(name: str) -> str:
    """Makes a /24 that no other network of Docker has; its first three numbers. Those from 240 on
    are tests/support/bundle.py's."""
    for number in range(200, 240):
        subnet = f"172.31.{number}"
        call = ["docker", "network", "create", "--subnet", f"{subnet}.0/24", name]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return subnet
    raise AssertionError(done.stderr)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Bare hosts, gone at the end."""
    hosts = [host for members in GROUPS.values() for host in members]
    name = f"agl-cluster-{os.getpid()}"
    made = Cluster(folder, name, make_network(name))
    lend_environment(clone_to(folder / "clone"))
    archive = archive_images(folder)
    try:
        prepare(folder)
        certificate(folder, [made.address(host) for host in hosts])
        for host in hosts:
            made.start(host)
        for host in hosts:
            made.wait(host)
        made.inventory()
        assert archive.wait(600) == 0, (folder / "images.log").read_text()
        yield made
    finally:
        archive.kill()
        archive.wait()
        containers = [made.container(host) for host in hosts]
        for remove in ("rm", "--force", "--volumes"), ("volume", "rm", "--force"):
            subprocess.run(["docker", *remove, *containers], capture_output=True, check=False)
        network = ["docker", "network", "rm", made.name]
        subprocess.run(network, capture_output=True, check=False)
