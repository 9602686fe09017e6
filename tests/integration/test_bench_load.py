"""``agl bench load`` and its load generator against real servers."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_support import benching, interrupted, stores, wait_for_rollouts
from ports import free_port
from processes import run_agl

from agl.bench.loader import REQUESTS_PER_ROLLOUT, Load, Loader
from agl.bench.results import Result
from agl.cli import main

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A store that asks for a token, and that the tests share."""
    folder, port = tmp_path_factory.mktemp("store"), free_port()
    (folder / "token").write_text("s3cret-token")
    with stores(port, folder) as start:
        start("--api-token-file", str(folder / "token"))
        yield port


def test_a_closed_loop_plays_whole_rollouts_and_keeps_the_token_secret(
    port: int, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    options = ("--clients", "2", "--seconds", "2", "--warmup", "0", "--rounds", "2")
    options = (*options, "--server-pid", str(os.getpid()), "--json", str(file))
    url = f"http://agl:s3cret-token@127.0.0.1:{port}"
    done = run_agl("bench", "load", "--store-url", url, *options, seconds=60)
    result = Result.model_validate_json(file.read_bytes())
    assert done.returncode == (0 if result.ok else 1), done.stderr
    assert [one["failures"] for one in result.details["rounds"]] == [0, 0]
    for name in ("rollouts_per_second", "add_span_p99", "share_of_ceiling", "latency_max"):
        figure = result.figure(name)
        assert figure is not None
        assert len(figure.samples) == 2
        assert all(sample > 0 for sample in figure.samples)
    assert result.figure("server_cpu_per_request") is not None
    assert result.details["ceiling_requests_per_second"] > 0
    assert "s3cret" not in done.stdout + done.stderr + file.read_text()


def test_a_wrong_token_is_said_at_once(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "--store-url", f"http://agl:wr0ng@127.0.0.1:{port}"]) == 1
    shown = capsys.readouterr().err
    assert "refuses the client: HTTP 401" in shown
    assert "wr0ng" not in shown


def test_an_open_loop_counts_every_request_that_was_due(port: int) -> None:
    load = Load(connections=4, seconds=0.51, rate=30.0)
    run = Loader(f"http://agl:s3cret-token@127.0.0.1:{port}").play(load)
    assert run.failures == run.broken == 0
    assert run.latencies["all"].count == math.ceil(30 * REQUESTS_PER_ROLLOUT * 0.51)
    assert run.requests > 0


@contextlib.contextmanager
def mute_server() -> Iterator[int]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def test_a_server_that_stops_hides_nothing_that_was_due() -> None:
    with mute_server() as port:
        run = Loader(f"http://127.0.0.1:{port}").play(Load(2, seconds=0.51, rate=20.0))
    due = math.ceil(20 * REQUESTS_PER_ROLLOUT * 0.51)
    assert run.latencies["all"].count == run.unanswered == due
    assert run.requests == 0
    assert run.latencies["all"].percentile(0.5) >= 0.25, "half of them waited half the time"


def test_nobody_there_is_given_up() -> None:
    run = Loader(f"http://127.0.0.1:{free_port()}").play(Load(connections=2, seconds=60))
    assert run.gave_up
    assert run.requests == 0


def test_a_store_that_comes_back_and_a_run_that_is_ended(tmp_path: Path) -> None:
    port = free_port()
    options = ("--clients", "2", "--seconds", "300", "--warmup", "0", "--rounds", "1")
    options = (*options, "--patience", "100", "--store-url", f"http://127.0.0.1:{port}")
    with stores(port, tmp_path) as start:
        first = start()
        with benching("load", *options) as run:
            wait_for_rollouts(port, more_than=5)
            first.kill()
            first.wait(20)
            start()
            wait_for_rollouts(port, more_than=5)
            code, result, _ = interrupted(run, signal.SIGTERM)
    assert code == 130
    assert result.partial == "interrupted by SIGTERM"
    (problem,) = [line for line in result.problems if "away" in line]
    assert "requests lost their answer" in problem
    rate = result.figure("rollouts_per_second")
    assert rate is not None
    assert rate.median > 0
    assert result.details["latencies"]["all"]["count"] > 5 * REQUESTS_PER_ROLLOUT
