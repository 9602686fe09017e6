"""``agl store`` stops: who waits gets an answer first, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ports import free_port
from processes import running_agl, wait_until_answering, wait_until_read


def post(url: str, body: Any) -> tuple[int, str | None]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["retry-after"]


def enqueue(base: str) -> str:
    request = urllib.request.Request(
        f"{base}/queues/rollouts/enqueue",
        b'{"rollouts": [{"input": 1}]}',
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        rollout_id: str = json.load(answer)[0]["rollout_id"]
    return rollout_id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_everybody_who_waits_is_answered(number: signal.Signals) -> None:
    port = free_port("127.0.0.1")
    base = f"http://127.0.0.1:{port}/v1/agl"
    arguments = ("store", "--host", "127.0.0.1", "--port", str(port))
    with running_agl(*arguments) as process, ThreadPoolExecutor(20) as clients:
        wait_until_answering(f"{base}/health", process)
        body = {"rollout_ids": [enqueue(base)], "timeout": 60}
        waits = [clients.submit(post, f"{base}/waits/rollouts", body) for _ in range(10)]
        wait_until_read(port, len(waits))
        assert not any(wait.done() for wait in waits)
        process.send_signal(number)
        assert [wait.result() for wait in waits] == [(503, "1")] * 10
        log = finished(process)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_sighup_loses_nothing() -> None:
    port = free_port("127.0.0.1")
    base = f"http://127.0.0.1:{port}/v1/agl"
    with running_agl("store", "--host", "127.0.0.1", "--port", str(port)) as process:
        wait_until_answering(f"{base}/health", process)
        enqueue(base)
        process.send_signal(signal.SIGHUP)
        with urllib.request.urlopen(f"{base}/statistics", timeout=30) as answer:
            assert json.load(answer)["total_rollouts"] == 1
        process.send_signal(signal.SIGTERM)
        log = finished(process)
    assert process.returncode == 0
    assert log.count("SIGHUP: nothing is read again") == 1


def finished(process: subprocess.Popen[str]) -> str:
    """What it wrote until its end."""
    return "".join(process.communicate(timeout=60))
