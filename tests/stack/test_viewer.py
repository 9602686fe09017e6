"""An archive of a run against the bundle, opened in the viewer's own containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from bundle import Stack, leftovers
from ports import free_port

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

AGL = str(Path(sys.executable).with_name("agl"))


def bench(stack: Stack, *arguments: str) -> str:
    """Run ``agl bench`` of the clone; what it printed."""
    done = subprocess.run(
        [stack.root / ".venv" / "bin" / "agl-stack", "bench", *arguments],
        env=stack.environ,
        cwd=stack.root,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


def ask(url: str, query: str) -> list[tuple[dict[str, str], str]]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=30).json()
    assert answer["status"] == "success", answer
    return [(one["metric"], one["value"][1]) for one in answer["data"]["result"]]


def test_the_overlay_starts_nothing_of_a_bundle_that_does_not_run(
    stack: Stack, tmp_path: Path
) -> None:
    project, output = f"{stack.project}-none", tmp_path / "run.tar.gz"
    options = ("--prometheus", stack.prometheus_url, "--overlay", "--output", str(output))
    done = subprocess.run(
        [stack.root / ".venv" / "bin" / "agl-stack", "bench", "archive", *options],
        env={**stack.environ, "COMPOSE_PROJECT_NAME": project},
        cwd=stack.root,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert f"no Prometheus runs in the bundle '{project}'" in done.stderr
    assert leftovers(project) == {"containers": [], "volumes": [], "networks": []}
    assert not output.exists()


def test_the_archive_of_a_run_opens_in_the_viewer(stack: Stack, tmp_path: Path) -> None:
    run, archive = tmp_path / "run.json", tmp_path / "run.tar.gz"
    sizes = ("--rollouts", "10", "--batch-size", "10", "--runners", "1", "--seed", "9")
    where = ("--store-url", stack.store_url, "--prometheus-url", stack.prometheus_url)
    subprocess.run(
        [AGL, "bench", "scenario", "minimal", *sizes, *where, "--json", str(run)],
        check=True,
        timeout=200,
    )
    finished = stack.value("sum(agl_rollouts_total)")
    before = {name: stack.container(name) for name in ("prometheus", "app", "app-exporter")}
    options = ("--prometheus", stack.prometheus_url, "--results", str(run), "--overlay")
    bench(stack, "archive", *options, "--output", str(archive))
    after = {name: stack.container(name) for name in before}
    assert [name for name in before if after[name]["Id"] != before[name]["Id"]] == ["prometheus"]
    commands = [one["prometheus"]["Config"]["Cmd"] for one in (before, after)]
    assert commands[0] == commands[1]
    stack.script("up", "--yes")
    assert stack.container("prometheus")["Id"] == after["prometheus"]["Id"], "started anew by up"

    port, prometheus = (str(free_port()) for _ in range(2))
    project = f"{stack.project}-view"
    viewer = ("--project", project, "--port", port, "--prometheus-port", prometheus)
    try:
        shown = bench(stack, "open", str(archive), *viewer)
        assert "scenario minimal" in shown
        url = f"http://127.0.0.1:{prometheus}"
        window = "[12h]"
        assert ask(url, f"sum(last_over_time(agl_rollouts_total{window}))") == [
            ({}, f"{finished:g}")
        ]
        marks = ask(url, f"max_over_time(agl_bench_run{window})")
        assert [(labels["run"], value) for labels, value in marks] == [("1: scenario minimal", "1")]
        targets = httpx.get(f"{url}/api/v1/targets", timeout=30).json()["data"]["activeTargets"]
        assert targets == [], "the viewer scrapes something"
        page = httpx.get(f"http://127.0.0.1:{port}/d/agl-overview", timeout=30)
        assert page.status_code == 200
    finally:
        bench(stack, "open", "--close", "--project", project)
    assert leftovers(project) == {"containers": [], "volumes": [], "networks": []}
