"""A metrics folder with no room left: the store goes on, says so, and recovers by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from bundle import Stack, docker
from test_faults import finished, run_rollouts, with_client

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

FILLER = "/run/agl/multiproc/filler"
PYTHON = "/opt/agl/bin/python"


def in_app(stack: Stack, code: str) -> str:
    return docker("exec", f"{stack.project}-app-1", PYTHON, "-c", code)


def fill(stack: Stack) -> None:
    in_app(
        stack,
        f"""
import os
fd = os.open({FILLER!r}, os.O_WRONLY | os.O_CREAT)
size = 1 << 20
while size >= 4096:
    try:
        os.posix_fallocate(fd, os.fstat(fd).st_size, size)
    except OSError:
        size //= 2
""",
    )


def eventually(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(1)


def said(stack: Stack, text: str) -> int:
    lines = docker("logs", f"{stack.project}-app-1").splitlines()
    return sum(text in json.loads(line)["message"] for line in lines if line.startswith("{"))


def test_a_really_full_tmpfs(stack: Stack) -> None:
    with_client(stack, lambda client: run_rollouts(client, 3))
    eventually(lambda: finished(stack) >= 3)
    time.sleep(12)
    before = finished(stack)
    warned = said(stack, "takes no more metrics")

    fill(stack)
    # Whoever maps what cannot be backed dies of it; a new process finds no room for any file.
    restarts = stack.container("app")["RestartCount"]
    stack.kill("app")
    stack.wait_for_restart("app", restarts)
    with_client(stack, lambda client: run_rollouts(client, 20))
    eventually(lambda: stack.value("agl_exporter_folder_fill_ratio") > 0.99)
    assert finished(stack) == before
    assert said(stack, "takes no more metrics") == warned + 1
    assert stack.container("app")["RestartCount"] == restarts + 1

    in_app(stack, f"import os; os.unlink({FILLER!r})")
    eventually(lambda: finished(stack) == before + 20)
    assert stack.value("agl_metrics_dropped_total") > 0
    assert said(stack, "takes metrics again") >= 1
    assert stack.container("app")["RestartCount"] == restarts + 1
