"""Three control nodes on loopback, and what the roles write for each of them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from processes import make_certificate

HERE = Path(__file__).resolve().parent
ANSIBLE = HERE.parents[1] / "ansible"
REMOTE_WRITE = [{"url": "https://mimir.example/api/v1/push", "basic_auth": {"username": "agl"}}]
HOSTS: dict[str, dict[str, Any]] = {
    "control1": {"agl_address": "127.0.0.2"},
    "control2": {"agl_address": "127.0.0.3", "haproxy_tls": "terminate"},
    "control3": {
        "agl_address": "127.0.0.4",
        "haproxy_tls": "passthrough",
        "prometheus_remote_write": REMOTE_WRITE,
    },
}
"""control1 balances plain HTTP, control2 ends TLS itself, control3 leaves it to the stores."""


@dataclass(frozen=True)
class Rendered:
    """What each host is given, by host, and the variables it was made from."""

    folder: Path
    hosts: dict[str, dict[str, Any]]
    files: dict[str, dict[str, Any]]

    def haproxy(self, host: str) -> Path:
        """A file that HAProxy can be run with: certificates are those of the test."""
        text = self.files[host]["haproxy"].replace("/etc/agl/haproxy/", f"{self.folder}/")
        path = self.folder / f"{host}.haproxy.cfg"
        path.write_text(text)
        return path

    def prometheus(self, host: str) -> Path:
        """A file of Prometheus in a folder with the bundle's rules."""
        folder = self.folder / f"{host}-prometheus"
        folder.mkdir(exist_ok=True)
        for name in ("alerts", "rules"):
            if not (folder / name).exists():
                (folder / name).symlink_to(ANSIBLE.parent / "prometheus" / name)
        path = folder / "prometheus.yml"
        path.write_text(self.files[host]["prometheus"])
        return path


def inventory() -> dict[str, dict[str, Any]]:
    """Variables of the hosts: each with ports that nobody else is given."""
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        "haproxy_certificate": "given",
        "haproxy_store_ca": "",
        "alertmanager_cluster_port": free_port(),
        "firewall_enabled": True,
        "store_root": "/nowhere",
    }
    alertmanager = free_port()
    told = [f"{known['agl_address']}:{alertmanager}" for known in HOSTS.values()]
    return {
        host: {
            **shared,
            **known,
            "store_address": "127.0.0.1",
            "haproxy_address": "127.0.0.1",
            "store_port": free_port(),
            "haproxy_port": free_port(),
            "haproxy_metrics_address": known["agl_address"],
            "haproxy_metrics_port": free_port(),
            "haproxy_store_ca": "given" if known.get("haproxy_tls") == "passthrough" else "",
            "prometheus_alertmanagers": told[:2],
        }
        for host, known in HOSTS.items()
    }


@pytest.fixture(scope="session")
def rendered(ansible_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    folder = tmp_path_factory.mktemp("rendered")
    hosts = inventory()
    groups = {
        "control": {"hosts": hosts},
        "gpu_nodes": {"hosts": {"gpu1": {}}},
        "cpu_nodes": {"hosts": {"control1": {}, "cpu1": {"node_exporter_port": 9200}}},
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    given = {"role_folder": str(ANSIBLE / "roles"), "folder": str(folder)}
    command = [ansible_bin / "ansible-playbook", "-i", folder / "hosts.json", HERE / "render.yml"]
    done = subprocess.run(
        [*command, "-e", json.dumps(given)],
        env={**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg")},
        cwd=ANSIBLE,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    certificate, key = make_certificate(folder, "made")
    (folder / "store.pem").write_text(certificate.read_text() + key.read_text())
    (folder / "store-ca.pem").write_text(certificate.read_text())
    files = {host: json.loads((folder / f"{host}.json").read_text()) for host in hosts}
    return Rendered(folder, hosts, files)
