"""``agl bench scenario minimal`` against real ``agl store`` processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_support import (
    AGL,
    PATIENCE,
    benching,
    interrupted,
    post,
    statistics,
    stores,
    wait_for_rollouts,
)
from ports import free_port

from agl.bench.results import Result
from agl.bench.tasks import draw_task
from agl.bench.verify import expected_attempts, expected_status
from agl.cli import main

ROLLOUTS = 24

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store that the tests share; each leaves it idle."""
    port = free_port()
    with stores(port, tmp_path_factory.mktemp("store")) as start:
        start()
        yield f"http://127.0.0.1:{port}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def total_rollouts(url: str) -> int:
    return statistics(port_of(url))["total_rollouts"]


def work_left(url: str) -> int:
    """Rollouts that are not finished."""
    alive = {"status_in": ["queuing", "requeuing", "preparing", "running"]}
    return post(f"{url}/v1/agl/rollouts/search", alive)["total"]


def bench(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [AGL, "bench", "scenario", "minimal", "--store-url", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def fails_at_once(capsys: Capture, code: int, *options: str) -> str:
    """Run in this process what ends before any runner is started; return its one line."""
    assert main(["bench", "scenario", "minimal", *options]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("agl bench: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_every_rollout_is_played_and_verified(store_url: str) -> None:
    sizes = ("--rollouts", str(ROLLOUTS), "--batch-size", "16", "--runners", "2", "--seed", "5")
    done = bench(store_url, *sizes, "--json", "-")
    assert done.returncode == 0, done.stderr
    result = Result.model_validate_json(done.stdout)
    summary = result.details
    tasks = [draw_task(5, index) for index in range(ROLLOUTS)]
    attempts = [expected_attempts(task, "") for task in tasks]
    assert summary["verified"] == ROLLOUTS
    assert summary["statuses"] == {
        status: sum(expected_status(task) == status for task in tasks)
        for status in ("failed", "succeeded")
    }
    assert summary["statuses"]["failed"] == 1
    assert summary["attempts"] == sum(len(tries) for tries in attempts)
    assert summary["retries"] == sum(len(tries) - 1 for tries in attempts) > 0
    assert summary["spans"] == sum(len(one.spans) for tries in attempts for one in tries)
    assert summary["lost"] == summary["unfinished"] == []
    assert result.ok
    assert all(figure.median > 0 for figure in result.figures)
    assert done.stderr.splitlines() == [
        "batch 1: 16 of 24 rollouts finished",
        "batch 2: 24 of 24 rollouts finished",
    ]


def test_the_token_of_the_url_opens_store_and_otlp_and_stays_secret(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "token").write_text("s3cret-token")
    port = free_port()
    with stores(port, tmp_path) as start:
        start("--api-token-file", str(tmp_path / "token"))
        done = bench(
            f"http://agl:s3cret-token@127.0.0.1:{port}", "--rollouts", "6", "--runners", "1"
        )
        refused = fails_at_once(
            capsys, 1, "--store-url", f"http://agl:wr0ng-token@127.0.0.1:{port}"
        )
    assert done.returncode == 0, done.stderr
    assert "verified    6\n" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert "refuses the client" in refused
    assert "wr0ng" not in refused


def test_no_store_is_one_clear_line(capsys: Capture) -> None:
    port = free_port()
    line = fails_at_once(capsys, 1, "--store-url", f"http://agl:s3cret@127.0.0.1:{port}")
    assert f"no store answers at http://127.0.0.1:{port}" in line
    assert "s3cret" not in line


def test_no_prometheus_is_one_clear_line(store_url: str, capsys: Capture) -> None:
    nothing = f"http://127.0.0.1:{free_port()}"
    options = ("--store-url", store_url, "--prometheus-url", nothing)
    assert main(["bench", "scenario", "minimal", *options]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "waiting for a scrape to start from"
    assert lines[1].startswith(f"agl bench: error: Prometheus does not answer at {nothing}")
    assert len(lines) == 2


def test_a_store_with_work_of_others_is_left_alone(store_url: str, capsys: Capture) -> None:
    work = {"rollouts": [{"input": "of somebody else"}]}
    (rollout,) = post(f"{store_url}/v1/agl/queues/rollouts/enqueue", work)
    line = fails_at_once(capsys, 1, "--store-url", store_url)
    assert "1 rollouts waiting that are not part of this run" in line
    post(f"{store_url}/v1/agl/rollouts/{rollout['rollout_id']}", {"status": "cancelled"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rollouts", "0"], "--rollouts"),
        (["--runners", "two"], "--runners"),
        (["--timeout", "-1"], "--timeout"),
        (["--timeout", "inf"], "--timeout"),
        (["--store-url", "localhost:4747"], "--store-url"),
        (["--prometheus-url", "nowhere"], "--prometheus-url"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_bad_usage_is_one_clear_line(options: list[str], complaint: str, capsys: Capture) -> None:
    assert complaint in fails_at_once(capsys, 2, *options)


def test_a_store_killed_in_the_middle_is_reported(tmp_path: Path) -> None:
    port = free_port()
    options = ["--rollouts", "180", "--batch-size", "60", "--runners", "2", "--json", "-"]
    command = [AGL, "bench", "scenario", "minimal", "--store-url", f"http://127.0.0.1:{port}"]
    with stores(port, tmp_path) as start:
        first = start()
        run = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert run.stderr is not None
            assert run.stderr.readline().startswith("batch 1: 60 of 180")
            wait_for_rollouts(port, more_than=60)
            os.kill(first.pid, signal.SIGKILL)
            first.wait(10)
            start()
            output, errors = run.communicate(timeout=60)
        finally:
            run.kill()
            run.wait()
    result = Result.model_validate_json(output)
    summary = result.details
    assert run.returncode == 1
    assert 0 < len(summary["lost"]) <= 60
    assert result.problems[0] == (
        f"{len(summary['lost'])} rollouts were lost: "
        "the store is another process than at the start, which took its memory along"
    )
    assert summary["verified"] == 180 - len(summary["lost"]), "the last batch is played in full"
    assert summary["connection_retries"] > 0
    assert "the store lost" in errors
    assert "the store does not answer" in errors
    assert "the store answers again after" in errors


def test_time_that_is_over_is_reported_and_leaves_the_store_idle(store_url: str) -> None:
    sizes = ("--rollouts", "900", "--batch-size", "600", "--runners", "1", "--timeout", "3")
    done = bench(store_url, *sizes)
    assert done.returncode == 1
    assert "not done within 3 s" in done.stderr
    assert "rollouts did not finish, 300 rollouts were never enqueued" in done.stderr
    assert "of 900 rollouts not verified" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("partial result: not done within 3 s")
    assert work_left(store_url) == 0


SLEEPER = ("medium", "--runners", "1", "--sleep-seconds", "100000")
"""Whose agent sleeps for longer than any test waits."""


def test_a_stall_ends_the_run_and_names_who_is_to_blame(store_url: str) -> None:
    options = ("--rollouts", "3", "--batch-size", "2", "--stall-seconds", "4")
    with benching("scenario", *SLEEPER, *options, "--store-url", store_url) as run:
        output, errors = run.communicate(timeout=PATIENCE)
    result = Result.model_validate_json(output)
    assert run.returncode == 1
    assert result.partial is not None
    assert "no rollout was finished for a long time (limit 4 s); 2 pending: ro-" in result.partial
    assert "Worker-" in result.partial
    assert errors.splitlines()[0].startswith("warning: no rollout was finished")
    assert len(result.details["unfinished"]) == 2
    assert work_left(store_url) == 0


def test_ctrl_c_tells_what_was_done_and_leaves_nothing_running(store_url: str) -> None:
    before = total_rollouts(store_url)
    options = ("--rollouts", "5", "--batch-size", "2", "--store-url", store_url)
    with benching("scenario", *SLEEPER, *options) as run:
        wait_for_rollouts(port_of(store_url), more_than=before + 1)
        code, result, _ = interrupted(run, signal.SIGINT)
    assert code == 130
    assert result.partial == "interrupted by SIGINT"
    assert result.details["enqueued"] == len(result.details["unfinished"]) > 0
    assert work_left(store_url) == 0


def test_runs_beside_each_other_verify_their_own(store_url: str) -> None:
    small = ("--runners", "1", "--max-rounds", "2", "--sleep-seconds", "0.3")
    small = (*small, "--poll-seconds", "0.2", "--rollouts", "5", "--store-url", store_url)
    single = ("high-concurrency", "--concurrency", "4", *small)
    partial = ("long-queues", "--batch-size", "3", "--remaining", "2", *small, "--seed", "1")
    with benching("scenario", *single) as one, benching("scenario", *partial) as other:
        ended = [run.communicate(timeout=PATIENCE) for run in (one, other)]
    for run, (output, errors) in zip((one, other), ended, strict=True):
        assert run.returncode == 0, errors
        result = Result.model_validate_json(output)
        assert result.details["verified"] == 5
        assert result.details["statuses"] == {"succeeded": 5}
        assert result.details["spans"] >= 5 * 5
        assert result.figure("rollout_p95") is not None
    assert "5 of 5 rollouts finished" in ended[0][1]
