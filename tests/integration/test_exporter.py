"""The exporter over a folder that real processes write into."""

from __future__ import annotations

import contextlib
import gzip
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from ports import free_port
from processes import environment, run_agl, running_agl, unprivileged_folder, wait_until_answering

from agl.cli.prometheus import checked_metrics_path, create_prometheus_app, ensure_prometheus_dir
from agl.errors import EnvironmentFault, UsageError

WRITER = """
import os, sys
from agl.utils.metrics import PrometheusMetricsBackend
backend = PrometheusMetricsBackend()
backend.register_counter("agl.test.total", ["path", "method", "status"])
backend.register_histogram("agl.test.latency", ["path"], buckets=[0.1, 1.0])
labels = {"path": "/x", "method": "GET", "status": "200"}
backend.touch_counter("agl.test.total", labels)
backend.touch_histogram("agl.test.latency", {"path": "/x"})
print(os.getpid(), flush=True)
for line in sys.stdin:
    if line == "exec\\n":
        os.execv(sys.executable, [sys.executable, "-c", os.environ["WRITER"]])
    for _ in range(int(line)):
        backend.inc("agl.test.total", labels)
        backend.observe("agl.test.latency", 0.5, {"path": "/x"})
    print("done", flush=True)
"""


class Writer:
    """A process that counts on request."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            env=environment({"PROMETHEUS_MULTIPROC_DIR": str(folder), "WRITER": WRITER}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._read()

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def _write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def count(self, times: int) -> None:
        self._write(str(times))
        assert self._read() == "done"

    def restart_with_the_same_pid(self) -> None:
        before, self.pid = self.pid, ""
        self._write("exec")
        self.pid = self._read()
        assert self.pid == before

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(path))
    return ensure_prometheus_dir()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[], Writer]]:
    with contextlib.ExitStack() as stack:

        def new() -> Writer:
            writer = Writer(folder)
            stack.callback(writer.kill)
            return writer

        yield new


@pytest.fixture
async def exporter(folder: Path) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_prometheus_app("/v1/prometheus"))
    return httpx.AsyncClient(transport=transport, base_url="http://exporter")


async def sample(exporter: httpx.AsyncClient, series: str) -> float | None:
    answer = await exporter.get("/v1/prometheus")
    assert answer.status_code == 200
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in answer.text.splitlines()
        if line.startswith(f"{series} ")
    ]
    assert len(values) <= 1
    return values[0] if values else None


TOTAL = 'agl_test_total{method="GET",path="/x",status="200"}'


async def test_sum_of_two_processes_from_zero(
    start: Callable[[], Writer], exporter: httpx.AsyncClient
) -> None:
    assert await sample(exporter, TOTAL) is None
    first, second = start(), start()
    assert await sample(exporter, TOTAL) == 0
    first.count(1)
    assert await sample(exporter, TOTAL) == 1
    first.count(9)
    second.count(30)
    assert await sample(exporter, TOTAL) == 40
    assert await sample(exporter, 'agl_test_latency_count{path="/x"}') == 40
    assert await sample(exporter, 'agl_test_latency_sum{path="/x"}') == 20
    assert await sample(exporter, 'agl_test_latency_bucket{le="0.1",path="/x"}') == 0
    assert await sample(exporter, 'agl_test_latency_bucket{le="1.0",path="/x"}') == 40


async def test_totals_survive_restarts_of_the_writer(
    start: Callable[[], Writer], exporter: httpx.AsyncClient
) -> None:
    writer = start()
    writer.count(5)
    writer.restart_with_the_same_pid()
    assert await sample(exporter, TOTAL) == 5
    writer.count(2)
    assert await sample(exporter, TOTAL) == 7
    writer.kill()
    assert await sample(exporter, TOTAL) == 7
    other = start()
    assert other.pid != writer.pid
    other.count(3)
    assert await sample(exporter, TOTAL) == 10


async def test_health_and_both_forms_of_the_path(exporter: httpx.AsyncClient) -> None:
    health = await exporter.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    for path in ("/v1/prometheus", "/v1/prometheus/"):
        answer = await exporter.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for path in ("/", "/docs", "/redoc", "/v1", "/v1/prometheus/x"):
        assert (await exporter.get(path)).status_code == 404


def counted(text: str) -> list[str]:
    """The samples that server processes have written."""
    return [line for line in text.splitlines() if line.startswith("agl_test")]


async def test_formats_by_negotiation(
    start: Callable[[], Writer], exporter: httpx.AsyncClient
) -> None:
    start().count(3)
    plain = await exporter.get("/v1/prometheus", headers={"Accept-Encoding": "identity"})
    zipped = await exporter.get("/v1/prometheus", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert counted(plain.text) == counted(zipped.text)
    open_metrics = await exporter.get(
        "/v1/prometheus", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")
    assert TOTAL in open_metrics.text


@pytest.mark.parametrize(
    "path", ["", "v1", "/", "//", "/a b", "/a?b", "/{x}", "/health", "/health/", "/ä", "/a//b"]
)
def test_paths_that_cannot_be_served(path: str) -> None:
    with pytest.raises(UsageError, match="--metrics-path"):
        create_prometheus_app(path)


def test_a_final_slash_makes_no_difference() -> None:
    assert checked_metrics_path("/metrics/") == checked_metrics_path("/metrics") == "/metrics"


@pytest.mark.parametrize("path", ["v1/prometheus", "/"])
def test_bad_path_is_a_usage_error(path: str, tmp_path: Path) -> None:
    ended = run_agl(
        "prometheus", "--metrics-path", path, env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("agl prometheus: error: argument --metrics-path: ")
    assert ended.stderr.count("\n") == 1


def test_folder_faults_end_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    cases = {
        None: "is not set",
        "": "empty",
        str(tmp_path / "no" / "parent"): "missing and cannot be created",
        str(file): "is not a directory",
    }
    for folder, text in cases.items():
        env = {} if folder is None else {"PROMETHEUS_MULTIPROC_DIR": folder}
        ended = run_agl("prometheus", "--port", str(free_port()), env=env)
        assert (ended.returncode, ended.stdout) == (1, ""), ended
        assert ended.stderr.startswith("agl prometheus: error: PROMETHEUS_MULTIPROC_DIR")
        assert text in ended.stderr
        assert folder is None or folder in ended.stderr
        assert " - " in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_folder_that_this_user_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with unprivileged_folder(0o300) as folder:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
        with pytest.raises(EnvironmentFault, match=r"is not readable for uid .* - "):
            ensure_prometheus_dir()


def test_it_creates_the_folder_and_never_wipes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    assert ensure_prometheus_dir() == folder
    assert folder.is_dir()
    (folder / "counter_1.db").write_bytes(b"kept")
    ensure_prometheus_dir()
    assert (folder / "counter_1.db").read_bytes() == b"kept"


def test_port_taken(tmp_path: Path) -> None:
    port = str(free_port())
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with running_agl("prometheus", "--port", port, env=env) as first:
        wait_until_answering(f"http://127.0.0.1:{port}/health", first)
        ended = run_agl("prometheus", "--port", port, env=env)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"agl prometheus: error: port {port} on 0.0.0.0 is taken - ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_real_process_serves_and_ends_cleanly(
    number: signal.Signals, folder: Path, start: Callable[[], Writer]
) -> None:
    start().count(4)
    port = free_port()
    arguments = ("prometheus", "--host", "127.0.0.1", "--port", str(port))
    with running_agl(*arguments, env={"PROMETHEUS_MULTIPROC_DIR": str(folder)}) as process:
        wait_until_answering(f"http://127.0.0.1:{port}/health", process)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/prometheus", headers={"Accept-Encoding": "gzip"}
        )
        with urllib.request.urlopen(request) as answer:
            assert f"{TOTAL} 4.0" in gzip.decompress(answer.read()).decode()
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert err == ""
    assert "Traceback" not in out
    assert "Received shutdown signal" in out.splitlines()[-1]
