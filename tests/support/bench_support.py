"""Stores that ``agl bench`` measures in tests, and what is seen of its runs from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from agl.bench.results import Result

AGL = str(Path(sys.executable).with_name("agl"))
PATIENCE = 60.0

StartStore = Callable[..., subprocess.Popen[bytes]]


@contextmanager
def stores(port: int, folder: Path) -> Iterator[StartStore]:
    """Start stores on one port, one after the other; each has answered when the call returns."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        with (folder / "store.log").open("ab") as log:
            command = [AGL, "store", "--host", "127.0.0.1", "--port", str(port), *options]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        started.append(process)
        limit = time.monotonic() + PATIENCE
        while not answers(port):
            assert process.poll() is None, (folder / "store.log").read_text()
            assert time.monotonic() < limit, "the store did not answer within 60 s"
            time.sleep(0.05)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            process.wait(20)


def answers(port: int) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/agl/health", timeout=1).close()
        return True
    return False


def statistics(port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/v1/agl/statistics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def wait_for_rollouts(port: int, more_than: int) -> None:
    """Until the store on this port has more than so many."""
    limit = time.monotonic() + PATIENCE
    while statistics(port)["total_rollouts"] <= more_than:
        assert time.monotonic() < limit
        time.sleep(0.01)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@contextmanager
def benching(command: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``agl bench COMMAND`` with its result on standard output."""
    process = subprocess.Popen(
        [AGL, "bench", command, *options, "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, Result, str]:
    """Send the signal; exit code, result and standard error. Nothing may be left running."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    return process.returncode, Result.model_validate_json(output), errors
