"""The push overlay against a real receiver of remote-write: another Prometheus."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle import COMPOSE_FILE, Stack, docker

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

NETWORK_ALIAS = "receiver"


def compose(stack: Stack, *arguments: str, **environ: str) -> None:
    """Compose on the bundle of the stack, as docs/push.md calls it."""
    folder = stack.root / "compose"
    files = [f"--env-file={name}" for name in (".env", ".env.images") if (folder / name).is_file()]
    done = subprocess.run(
        ["docker", "compose", *files, *arguments],
        cwd=folder,
        env={**stack.environ, **environ},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def receiver(stack: Stack) -> Iterator[str]:
    """The name of a container that takes what is pushed."""
    name = f"{stack.project}-receiver"
    docker(
        *("run", "--detach", "--name", name, "--user", "65534:65534"),
        *("--network", f"{stack.project}_default", "--network-alias", NETWORK_ALIAS),
        *("--tmpfs", "/tmp:mode=1777", "--entrypoint", "/bin/sh"),
        stack.container("prometheus")["Config"]["Image"],
        "-ec",
        "echo 'global: {}' >/tmp/empty.yml; exec /bin/prometheus"
        " --config.file=/tmp/empty.yml --storage.tsdb.path=/tmp/data"
        " --web.enable-remote-write-receiver",
    )
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


def received(name: str, expr: str) -> list[dict[str, object]]:
    """What the receiver knows of an expression."""
    program = ["/bin/promtool", "query", "instant", "--format=json", "http://127.0.0.1:9090", expr]
    done = subprocess.run(["docker", "exec", name, *program], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []


def test_what_prometheus_collects_reaches_a_receiver(
    stack: Stack, receiver: str, tmp_path: Path
) -> None:
    section = tmp_path / "remote-write.yml"
    section.write_text(
        "remote_write:\n"
        f"  - url: http://{NETWORK_ALIAS}:9090/api/v1/write\n"
        "    write_relabel_configs:\n"
        '      - {source_labels: [__name__], regex: "agl_.*|up", action: keep}\n'
    )
    overlaid = ("--file", COMPOSE_FILE, "--file", "compose.push.yml")
    alone = ("--file", COMPOSE_FILE)
    start = ("up", "--detach", "--no-deps", "--wait", "prometheus")
    compose(stack, *overlaid, *start, AGL_REMOTE_WRITE_CONFIG=str(section))
    try:
        deadline = time.monotonic() + 120
        while not received(receiver, 'up{job="app"} == 1'):
            assert time.monotonic() < deadline, docker("logs", "--tail", "20", receiver)
            time.sleep(1)
        assert received(receiver, "agl_rollouts_total")
        assert not received(receiver, "node_load1"), "the relabelling was not applied"
    finally:
        # As `up` does it: with --no-deps Compose would make it anew at the next one.
        compose(stack, *alone, "up", "--detach", "--wait", "prometheus")
