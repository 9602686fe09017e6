"""up, down, status, images and secrets against the real daemon, beside the running bundle.

What must fail is run as a second project on ports and a subnet of its own, so that "nothing is
left" can be asked of Docker.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

SECOND = {
    "COMPOSE_PROJECT_NAME": "agl-lifecycle-test",
    "AGL_PORT": "24747",
    "AGL_GRAFANA_PORT": "29091",
    "AGL_PROMETHEUS_PORT": "29090",
    "AGL_ALERTMANAGER_PORT": "29093",
    "AGL_RUNBOOKS_PORT": "29096",
    "AGL_NODE_EXPORTER_PORT": "29100",
    "AGL_SUBNET": "172.31.249.0/24",
    "AGL_GATEWAY": "172.31.249.1",
}
STORE_IMAGE = "agl-stack/store:lifecycle-test"
CALL = "import sys; from agl.cli import main; sys.exit(main(sys.argv[1:]))"


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"docker {arguments}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def last_error(self) -> str:
        return self.err.strip().splitlines()[-1]


@dataclass(frozen=True)
class Second:
    """Another project of the same clone, or of a copy of it."""

    root: Path
    python: Path
    environ: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-c", CALL, "stack", *arguments]

    def run(self, *arguments: str, **variables: str) -> Answer:
        done = subprocess.run(
            self.command(*arguments),
            env={**self.environ, **variables},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def left(self, *kinds: str) -> list[str]:
        label = f"label=com.docker.compose.project={SECOND['COMPOSE_PROJECT_NAME']}"
        commands = {
            "containers": ("ps", "--all"),
            "volumes": ("volume", "ls"),
            "networks": ("network", "ls"),
        }
        found = (docker(*commands[kind], "--quiet", "--filter", label) for kind in kinds)
        return [item for text in found for item in text.split()]


def second_of(root: Path, python: Path, environ: dict[str, str]) -> Second:
    return Second(root, python, {**environ, **SECOND, "PYTHONPATH": str(root / "app")})


@pytest.fixture
def second(stack: Any) -> Iterator[Second]:
    made = second_of(stack.root, stack.root / ".venv/bin/python", stack.environ)
    yield made
    answer = made.run("down", "--volumes")
    assert answer.code == 0, answer.err
    assert made.left("containers", "volumes", "networks") == []


@pytest.fixture
def copy(stack: Any, tmp_path: Path) -> Second:
    """A copy of the clone with an env file of images of its own."""
    root = tmp_path / "copy"
    shutil.copytree(stack.root, root, ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    return second_of(root, stack.root / ".venv/bin/python", stack.environ)


def started(project: str) -> dict[str, str]:
    """When each container of the project was started, by its id."""
    ids = docker("ps", "--quiet", "--no-trunc", "--filter", f"name=^{project}-").split()
    lines = docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", *ids).splitlines()
    return dict(line.split() for line in lines)


class TestRunning:
    def test_up_again_changes_nothing_and_is_quick(self, stack: Any) -> None:
        before = started(stack.project)
        start = time.monotonic()
        said = stack.script("up")
        took = time.monotonic() - start
        assert len(before) >= 4
        assert started(stack.project) == before
        assert took < 20
        assert stack.store_url in said
        assert stack.prometheus_url in said

    def test_status_shows_every_service_and_target(self, stack: Any) -> None:
        status = json.loads(stack.script("status", "--json"))
        assert status["healthy"] is True
        services = {row["service"]: row for row in status["services"]}
        assert {"app", "app-exporter", "init", "node-exporter", "prometheus"} <= set(services)
        assert {row["state"] for row in services.values()} == {"ready"}
        for name in ("app", "prometheus"):
            assert 0 < services[name]["memory_bytes"] < services[name]["memory_limit_bytes"]
        assert {target["job"] for target in status["targets"]} == {
            *("app", "node", "prometheus", "alertmanager", "containers")
        }
        assert {target["health"] for target in status["targets"]} == {"up"}
        assert status["urls"]["app"] == stack.store_url

    def test_status_for_people(self, stack: Any) -> None:
        said = stack.script("status")
        assert re.search(
            r"^app +ready +healthy +\d+ +\d+ MiB +\d+ MiB +agl-stack/store", said, re.M
        )
        assert stack.prometheus_url in said

    def test_a_stopped_service_is_seen(self, stack: Any) -> None:
        name = f"{stack.project}-node-exporter-1"
        docker("stop", name)
        try:
            done = subprocess.run(
                [stack.root / "scripts/status", "--json"],
                env=stack.environ,
                capture_output=True,
                text=True,
            )
        finally:
            docker("start", name)
        assert done.returncode == 1
        rows = json.loads(done.stdout)["services"]
        assert [r["service"] for r in rows if r["state"] != "ready"] == ["node-exporter"]
        stack.script("up")

    def test_a_secret_is_shown(self, stack: Any) -> None:
        agl = stack.root / ".venv/bin/agl-stack"
        shown = subprocess.run(
            [agl, "stack", "secrets", "show", "api-token"],
            env=stack.environ,
            capture_output=True,
            text=True,
        )
        assert len(shown.stdout.strip()) >= 32
        assert shown.stderr == ""


class TestFailingStart:
    def test_a_service_that_cannot_start_is_named_and_nothing_is_left(self, second: Second) -> None:
        answer = second.run("up", PROMETHEUS_RETENTION_TIME="nonsense")
        assert answer.code == 1
        assert "error: prometheus: " in answer.last_error
        assert "nonsense" in answer.err  # its own last lines say what is wrong
        assert second.left("containers", "networks") == []

    def test_kept_to_be_looked_at(self, second: Second) -> None:
        answer = second.run("up", "--keep", PROMETHEUS_RETENTION_TIME="nonsense")
        assert answer.code == 1
        assert "its containers were kept" in answer.last_error
        assert len(second.left("containers")) >= 4

    def test_a_taken_port(self, second: Second) -> None:
        with socket.create_server(("127.0.0.1", int(SECOND["AGL_PORT"]))):
            answer = second.run("up")
        assert (answer.code, len(answer.err.splitlines())) == (1, 1)
        assert f"{SECOND['AGL_PORT']} is taken by " in answer.err
        assert second.left("containers", "volumes", "networks") == []

    def test_a_port_of_another_container(self, stack: Any, second: Second) -> None:
        answer = second.run("up", AGL_PORT=stack.environ["AGL_PORT"])
        assert answer.code == 1
        assert f"taken by the container {stack.project}-app-1" in answer.err

    def test_a_subnet_of_another_network(self, stack: Any, second: Second) -> None:
        answer = second.run(
            "up",
            AGL_SUBNET=stack.environ["AGL_SUBNET"],
            AGL_GATEWAY=stack.environ["AGL_GATEWAY"],
        )
        assert answer.code == 1
        assert f"of the Docker network {stack.project}_default" in answer.err
        assert second.left("containers", "networks") == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_interrupted(self, second: Second, number: signal.Signals) -> None:
        with subprocess.Popen(
            second.command("up"),
            env=second.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            deadline = time.monotonic() + 60
            while not second.left("containers") and time.monotonic() < deadline:
                time.sleep(0.1)
            os.killpg(process.pid, number)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in err
        assert "interrupted" in err
        assert second.left("containers", "networks") == []

    def test_two_at_once(self, second: Second) -> None:
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: second.run("up", "store"), range(2)))
        assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * 2
        assert sum("waiting for its end" in answer.out for answer in answers) == 1
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: second.run("down", "--volumes"), range(2)))
        assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * 2

    def test_too_late(self, second: Second) -> None:
        answer = second.run("up", "--timeout", "0.5")
        assert answer.code == 1
        assert "after 0 s" in answer.last_error or "after 1 s" in answer.last_error
        assert second.left("containers", "networks") == []


class TestOpenStore:
    def test_open_port_needs_the_token_that_the_client_url_carries(self, second: Second) -> None:
        up = second.run("up", "store", AGL_BIND="0.0.0.0")
        assert up.code == 0, up.err
        url = re.search(r"http://agl:(\S+)@(\S+):24747", up.out)
        assert url, up.out
        assert url[1] == second.run("secrets", "show", "api-token").out.strip()
        statistics = "http://127.0.0.1:24747/v1/agl/statistics"
        assert httpx.get(statistics).status_code == 401
        assert httpx.get(statistics, auth=("agl", url[1])).status_code == 200

    def test_a_token_changed_while_the_store_runs(self, copy: Second) -> None:
        try:
            assert "newer than" not in copy.run("up", "store", AGL_BIND="0.0.0.0").out
            (copy.root / "compose/secrets/api-token").write_text("changed-token\n")
            assert "newer than" in copy.run("up", "store", AGL_BIND="0.0.0.0").out
            assert copy.run("down").code == 0
            assert "newer than" not in copy.run("up", "store", AGL_BIND="0.0.0.0").out
        finally:
            assert copy.run("down", "--volumes").code == 0

    def test_down_keeps_the_data_until_told(self, second: Second) -> None:
        assert second.run("up", "store").code == 0
        token = second.run("secrets", "show", "api-token").out
        down = second.run("down")
        assert (down.code, second.left("containers", "networks")) == (0, [])
        assert "--volumes deletes them" in down.out
        assert second.run("up", "store").code == 0
        assert second.run("secrets", "show", "api-token").out == token
        assert second.run("down", "--volumes").code == 0
        assert second.left("containers", "volumes", "networks") == []

    def test_the_size_of_the_metrics_folder_counts_after_down(self, second: Second) -> None:
        sizes: list[int] = []
        for size in ("64m", "32m"):
            up = second.run("up", AGL_MULTIPROC_SIZE=size)
            assert up.code == 0, up.err
            name = f"{SECOND['COMPOSE_PROJECT_NAME']}-app-1"
            code = "import os; s = os.statvfs('/run/agl/multiproc'); print(s.f_blocks * s.f_frsize)"
            sizes.append(int(docker("exec", name, "/opt/agl/bin/python", "-c", code)))
            assert "5 volumes with data kept" in second.run("down").out
        assert sizes == [64 << 20, 32 << 20]

    def test_down_of_nothing_is_fine(self, second: Second) -> None:
        answer = second.run("down", "--volumes")
        assert (answer.code, answer.err) == (0, "")
        assert "nothing was running" in answer.out

    def test_status_and_secrets_of_nothing(self, second: Second) -> None:
        for arguments in (["status"], ["secrets", "show", "api-token"]):
            answer = second.run(*arguments)
            assert (answer.code, len(answer.err.splitlines())) == (1, 1)
            assert "scripts/up" in answer.err


@pytest.mark.parametrize(
    "arguments", [["up"], ["down"], ["status"], ["images"], ["secrets", "show", "api-token"]]
)
def test_a_daemon_that_does_not_answer(second: Second, arguments: list[str]) -> None:
    answer = second.run(*arguments, DOCKER_HOST="tcp://127.0.0.1:1")
    assert (answer.code, answer.out) == (1, "")
    assert len(answer.err.splitlines()) == 1
    assert "daemon does not answer at tcp://127.0.0.1:1" in answer.err


class TestArchive:
    def test_images_go_through_a_file_and_damage_is_found_before_docker_sees_it(
        self, copy: Second, tmp_path: Path
    ) -> None:
        target = tmp_path / "bundle.tar"
        names = {"AGL_STORE_IMAGE": STORE_IMAGE}
        saved = copy.run("images", "save", str(target), **names)
        assert saved.code == 0, saved.err
        layers = docker("inspect", "-f", "{{json .RootFS.Layers}}", STORE_IMAGE)
        docker("rmi", STORE_IMAGE)
        (copy.root / "compose" / ".env.images").unlink()

        damaged = tmp_path / "damaged.tar"
        shutil.copy(target, damaged)
        with damaged.open("r+b") as file:
            file.seek(target.stat().st_size // 2)
            file.write(b"damage")
        answer = copy.run("images", "load", str(damaged), **names)
        assert answer.code == 1
        assert re.search(r"damaged at images.tar: \S+ \(of agl-stack/\S+.*\): its", answer.err)
        assert not docker("images", "--quiet", STORE_IMAGE)
        assert not (copy.root / "compose" / ".env.images").exists()

        loaded = copy.run("images", "load", str(target), **names)
        assert loaded.code == 0, loaded.err
        assert docker("inspect", "-f", "{{json .RootFS.Layers}}", STORE_IMAGE) == layers
        env = (copy.root / "compose" / ".env.images").read_text()
        assert f"AGL_STORE_IMAGE={STORE_IMAGE}\n" in env
        docker("rmi", STORE_IMAGE)

    def test_a_folder_that_is_not_there(self, copy: Second, tmp_path: Path) -> None:
        answer = copy.run("images", "save", str(tmp_path / "absent" / "bundle.tar"))
        assert answer.code == 1
        assert "there is no folder" in answer.err


def _layer() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        member = tarfile.TarInfo("hello")
        member.size = 5
        layer.addfile(member, io.BytesIO(b"hello"))
    return out.getvalue()


class Registry(BaseHTTPRequestHandler):
    """A registry with the one image ``prometheus:1``."""

    layer = _layer()
    packed = gzip.compress(layer, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
    ).encode()

    @classmethod
    def described(cls, kind: str, content: bytes) -> dict[str, object]:
        return {
            "mediaType": f"application/vnd.docker.{kind}",
            "size": len(content),
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        }

    @classmethod
    def manifest(cls) -> bytes:
        return json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": cls.described("container.image.v1+json", cls.config),
                "layers": [cls.described("image.rootfs.diff.tar.gzip", cls.packed)],
            }
        ).encode()

    def do_GET(self) -> None:
        manifest = self.manifest()
        blobs = {
            f"/v2/prometheus/blobs/sha256:{hashlib.sha256(content).hexdigest()}": content
            for content in (self.packed, self.config)
        }
        if self.path == "/v2/":
            self.reply(200, b"{}", "application/json")
        elif self.path in blobs:
            self.reply(200, blobs[self.path], "application/octet-stream")
        elif self.path.startswith("/v2/prometheus/manifests/") and not self.path.endswith("/2"):
            kind = "application/vnd.docker.distribution.manifest.v2+json"
            self.reply(200, manifest, kind)
        else:
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            self.reply(404, json.dumps(error).encode(), "application/json")

    do_HEAD = do_GET  # noqa: N815

    def reply(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(content).hexdigest()}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class TestPulling:
    def test_a_pinned_image_is_pulled_where_a_registry_answers(
        self, copy: Second, registry: str
    ) -> None:
        name = f"{registry}/prometheus:1"
        answer = copy.run("images", PROMETHEUS_IMAGE=name, GRAFANA_IMAGE=name)
        assert answer.code == 0, answer.err
        assert f"pulled {name}" in answer.out
        assert "grafana is left out" not in answer.out
        env = (copy.root / "compose" / ".env.images").read_text()
        assert f"PROMETHEUS_IMAGE={name}\n" in env
        assert "COMPOSE_PROFILES=grafana,mongo,mongodb-exporter\n" in env
        docker("rmi", name)

    def test_an_image_the_registry_does_not_have_is_an_error(
        self, copy: Second, registry: str
    ) -> None:
        answer = copy.run("images", PROMETHEUS_IMAGE=f"{registry}/prometheus:2")
        assert answer.code == 1
        assert len(answer.err.splitlines()) == 1
        assert "could not be pulled" in answer.err
        assert "--stand-ins" in answer.err

    def test_a_silent_registry_is_asked_once_and_the_stand_ins_take_over(
        self, copy: Second
    ) -> None:
        (copy.root / "compose" / ".env.images").unlink(missing_ok=True)
        dead = "127.0.0.1:1"
        names = {
            "PROMETHEUS_IMAGE": f"{dead}/prometheus:1",
            "NODE_EXPORTER_IMAGE": f"{dead}/node-exporter:1",
            "ALERTMANAGER_IMAGE": f"{dead}/alertmanager:1",
            "GRAFANA_IMAGE": f"{dead}/grafana:1",
        }
        answer = copy.run("images", **names)
        assert answer.code == 0, answer.err
        assert answer.out.count(f"the registry {dead} does not answer") == 1
        assert "built from Debian packages instead" in answer.out
        assert answer.out.count("grafana is left out") == 1
        again = copy.run("images", **names)
        assert "does not answer" not in again.out
        assert copy.run("images", "--refresh", **names).out.count("does not answer") == 1

    def test_nothing_to_build_from_and_nothing_built(self, copy: Second) -> None:
        answer = copy.run("images", "--no-build", AGL_STORE_IMAGE="agl-stack/store:absent")
        assert answer.code == 1
        assert "agl-stack/store:absent is not here" in answer.err

    def test_the_plain_compose_command_runs_with_the_file(self, copy: Second) -> None:
        answer = copy.run("images")
        assert answer.code == 0, answer.err
        command = next(line for line in answer.out.splitlines() if "docker compose" in line)
        done = subprocess.run(
            [*command.split()[:-1], "config", "--images"],
            cwd=copy.root / "compose",
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        for image in done.stdout.split():
            docker("image", "inspect", image)
