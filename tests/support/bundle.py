"""A bundle for tests: a clone of this tree under its own project name, ports and subnet, so that
it can stand beside a bundle in use, and beside that of another run of pytest (``AGL_TEST_SLOT``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = "compose.prometheus-memory-store.yml"
SLOT = int(os.environ.get("AGL_TEST_SLOT", "0"))
VARIABLES = {
    "COMPOSE_PROJECT_NAME": f"agl-stack-test-{SLOT}",
    "AGL_PORT": str(14747 + 20 * SLOT),
    "AGL_GRAFANA_PORT": str(19091 + 20 * SLOT),
    "AGL_PROMETHEUS_PORT": str(19090 + 20 * SLOT),
    "AGL_ALERTMANAGER_PORT": str(19093 + 20 * SLOT),
    "AGL_RUNBOOKS_PORT": str(19096 + 20 * SLOT),
    "AGL_NODE_EXPORTER_PORT": str(19100 + 20 * SLOT),
    "AGL_SUBNET": f"172.31.{240 + SLOT}.0/24",
    "AGL_GATEWAY": f"172.31.{240 + SLOT}.1",
    "AGL_MULTIPROC_SIZE": "16m",  # small enough to be filled
}


FLUSH_SECONDS = 2.0
"""What the store has counted is in its files after this time."""


class NotReady(Exception):
    """The server answers already, and says that it cannot yet."""


@dataclass(frozen=True)
class Stack:
    """The bundle of a clone."""

    root: Path
    environ: dict[str, str]

    @property
    def store_url(self) -> str:
        return f"http://127.0.0.1:{self.environ['AGL_PORT']}"

    @property
    def prometheus_url(self) -> str:
        return f"http://127.0.0.1:{self.environ['AGL_PROMETHEUS_PORT']}"

    @property
    def alertmanager_url(self) -> str:
        return f"http://127.0.0.1:{self.environ['AGL_ALERTMANAGER_PORT']}"

    @property
    def project(self) -> str:
        return self.environ["COMPOSE_PROJECT_NAME"]

    def script(self, name: str, *arguments: str, timeout: float = 600) -> str:
        """Run scripts/NAME of the clone; what it printed. Fails the test when it fails."""
        done = subprocess.run(
            [self.root / "scripts" / name, *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"scripts/{name} {arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def container(self, service: str) -> dict[str, Any]:
        """What `docker inspect` says of a service's container."""
        name = f"{self.project}-{service}-1"
        return json.loads(docker("inspect", name))[0]

    def kill(self, service: str) -> None:
        """SIGKILL to the process inside, past Docker, which therefore restarts it."""
        os.kill(self.container(service)["State"]["Pid"], 9)

    def wait_for_restart(self, service: str, restarts_before: int, timeout: float = 60) -> None:
        """Until the service runs again, healthy where it has a healthcheck."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.container(service)
            state = found["State"]
            health = state.get("Health", {"Status": "healthy"})["Status"]
            if found["RestartCount"] > restarts_before and state["Running"] and health == "healthy":
                return
            time.sleep(0.5)
        raise AssertionError(f"{service} did not come back within {timeout} s: {found['State']}")

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The instant vector of a PromQL expression."""
        answer = httpx.get(f"{self.prometheus_url}/api/v1/query", params={"query": expr})
        if answer.status_code == 503:
            raise NotReady(f"Prometheus is still starting: {answer.text.strip()}")
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]["result"]

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """The pending and firing alerts of this name."""
        found = httpx.get(f"{self.prometheus_url}/api/v1/alerts").json()["data"]["alerts"]
        return [alert for alert in found if alert["labels"]["alertname"] == name]

    def up_targets(self) -> set[str]:
        """Jobs whose targets Prometheus could scrape; none while it is not ready to answer."""
        try:
            return {item["metric"]["job"] for item in self.query("up == 1")}
        except (httpx.TransportError, NotReady):
            return set()

    def wait_for_scrapes(self, times: int = 1, timeout: float = 120) -> None:
        """Until Prometheus has read what the store has counted up to now, ``times`` times over."""
        deadline = time.monotonic() + timeout
        for _ in range(times):
            since = time.time() + FLUSH_SECONDS
            while not self._scraped_after(since):
                assert time.monotonic() < deadline, "Prometheus does not scrape the store"
                time.sleep(0.5)

    def _scraped_after(self, moment: float) -> bool:
        try:
            found = self.query('timestamp(up{job="app"} == 1)')
        except (httpx.TransportError, NotReady):
            return False
        return bool(found) and float(found[0]["value"][1]) > moment

    def value(self, expr: str) -> float:
        """The one value of an expression."""
        result = self.query(expr)
        assert len(result) == 1, f"{expr}: {result}"
        return float(result[0]["value"][1])


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"docker {arguments}: {done.stderr}"
    return done.stdout


def local_images() -> dict[str, str]:
    """The variables that name the local images; scripts/images of this tree wrote them."""
    lines = (ROOT / "compose" / ".env.images").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def leftovers(project: str) -> dict[str, list[str]]:
    """Containers, volumes and networks that still carry the project's label."""
    label = f"label=com.docker.compose.project={project}"
    return {
        kind: docker(*command, "--quiet", "--filter", label).split()
        for kind, command in {
            "containers": ("ps", "--all"),
            "volumes": ("volume", "ls"),
            "networks": ("network", "ls"),
        }.items()
    }


def clone_to(target: Path) -> Path:
    """The tree as git would hand it out, with what is not committed yet, for its owner alone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = ROOT / name, target / name
        if not source.is_file():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o700 if os.access(source, os.X_OK) else 0o600)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o700)
    return target


def lend_environment(clone: Path) -> None:
    """Give a clone a .venv with this tree's packages and the clone's own code, in no time.

    It is what a developer's own is to the scripts, which therefore install nothing; a test of what
    they install must not call this.
    """
    venv.create(clone / ".venv", symlinks=True)
    packages = Path(sysconfig.get_path("purelib"))
    own = clone / ".venv" / packages.relative_to(sys.prefix)
    (own / "lent.pth").write_text(f"{clone / 'app'}\n{packages}\n")
    program = clone / ".venv" / "bin" / "agl-stack"
    program.write_text(
        f"""#!/bin/sh
exec "{program.with_name("python")}" -c '
import sys; from agl.cli import main; sys.exit(main(sys.argv[1:]))' "$@"
"""
    )
    program.chmod(0o755)
