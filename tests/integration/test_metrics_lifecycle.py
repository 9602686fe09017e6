"""Counts as Prometheus sees them while writers, the folding process and the exporter are killed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ports import free_port
from processes import environment, run_agl, running_agl, wait_until_answering

from agl.utils.metrics_folding import fold_dead

PARENT = """
import os, random, signal, sys, time
from pathlib import Path
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.metrics_folding import fold_dead
from agl.utils.process_metrics import report_this_process

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
folder, ledgers = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), Path(sys.argv[1])
backend = PrometheusMetricsBackend()
backend.register_counter("t.events.total", ["kind"])
backend.register_histogram("t.seconds", ["kind"], buckets=[0.1, 1])

def work():
    ledger = os.open(ledgers / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    report_this_process()
    chance = random.Random(os.getpid())
    while True:
        kind = {"kind": str(chance.randrange(8))}
        os.write(ledger, b"i")
        backend.inc("t.events.total", kind)
        os.write(ledger, b"d")
        backend.observe("t.seconds", chance.random(), kind)
        time.sleep(0.0005)

def fold():
    while True:
        fold_dead(folder)
        time.sleep(0.005)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        {"work": work, "fold": fold}[line.strip()]()
    print(child, flush=True)
"""


class Parent:
    """Starts counting and folding processes, which can be killed one by one."""

    def __init__(self, folder: Path, ledgers: Path) -> None:
        ledgers.mkdir()
        self._ledgers = ledgers
        self._process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(ledgers)],
            env=environment({"PROMETHEUS_MULTIPROC_DIR": str(folder)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.alive: list[int] = []

    def start(self, what: str) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self.alive.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.alive.remove(pid)
        wait_for(lambda: not Path(f"/proc/{pid}").exists())

    def ledger(self) -> tuple[int, int]:
        """Events begun and events done, of the dead and the living."""
        books = [path.read_bytes() for path in self._ledgers.iterdir()]
        return sum(book.count(b"i") for book in books), sum(book.count(b"d") for book in books)

    def end(self) -> None:
        for pid in list(self.alive):
            self.kill(pid)
        self._process.kill()
        self._process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Exporter:
    """``agl prometheus``, which may be killed and started again on its port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._arguments = ("prometheus", "--host", "127.0.0.1", "--port", str(self.port), *options)
        self._env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
        self._stack = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self._process = self._stack.enter_context(running_agl(*self._arguments, env=self._env))
        wait_until_answering(f"http://127.0.0.1:{self.port}/health", self._process, 60)

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self.start()

    def scrape(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.port}/v1/prometheus"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def end(self) -> None:
        self._stack.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "metrics"
    made.mkdir()
    return made


@pytest.fixture
def parent(folder: Path, tmp_path: Path) -> Iterator[Parent]:
    made = Parent(folder, tmp_path / "ledgers")
    yield made
    made.end()


@pytest.fixture
def exporter(folder: Path) -> Iterator[Exporter]:
    made = Exporter(folder)
    yield made
    made.end()


def events(scrape: dict[str, float]) -> float:
    return sum(value for name, value in scrape.items() if name.startswith("t_events_total"))


def counting(scrape: dict[str, float]) -> dict[str, float]:
    """Everything that may only grow."""
    return {n: v for n, v in scrape.items() if re.match(r"t_|agl_process_\w+_total", n)}


def only_grew(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    assert not [name for name in before if name not in now]
    assert not {name: (value, now[name]) for name, value in before.items() if now[name] < value}
    return now


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_kills_lose_and_invent_nothing(
    seed: int, parent: Parent, exporter: Exporter
) -> None:
    chance = random.Random(seed)
    workers = [parent.start("work") for _ in range(3)]
    folder_pid = parent.start("fold")
    wait_for(lambda: events(exporter.scrape()) > 0)
    before: dict[str, float] = {}
    killed = 0
    for _ in range(40):
        victim = chance.choice(("worker", "worker", "fold", "fold", "exporter", "nobody"))
        if victim == "worker":
            parent.kill(workers.pop(chance.randrange(len(workers))))
            workers.append(parent.start("work"))
            killed += 1
        elif victim == "fold":
            parent.kill(folder_pid)
            folder_pid = parent.start("fold")
        elif victim == "exporter":
            exporter.restart()
        for _ in range(chance.randrange(1, 6)):
            _, done = parent.ledger()
            before = only_grew(before, counting(exporter.scrape()))
            begun, _ = parent.ledger()
            assert done <= events(before) <= begun
    for pid in (*workers, folder_pid):
        parent.kill(pid)
    killed += len(workers)
    fold_dead(Path(exporter._env["PROMETHEUS_MULTIPROC_DIR"]))
    last = exporter.scrape()
    only_grew(before, counting(last))
    begun, done = parent.ledger()
    assert done <= events(last) <= begun <= done + killed
    assert last["agl_exporter_resets_total"] == 0
    assert last["agl_exporter_bad_files"] == 0
    assert last['agl_exporter_files{kind="live"}'] <= 3  # the parent's, which lives


def test_slots_are_handed_on_and_figures_of_the_dead_go(parent: Parent, exporter: Exporter) -> None:
    def slots() -> set[str]:
        name = r'agl_process_resident_memory_bytes\{server_process="(\d+)"\}'
        return {m[1] for key in exporter.scrape() if (m := re.fullmatch(name, key))}

    pids = [parent.start("work") for _ in range(3)]
    wait_for(lambda: slots() == {"0", "1", "2"})
    parent.kill(pids[1])
    wait_for(lambda: len(slots()) == 2)
    parent.start("work")
    wait_for(lambda: slots() == {"0", "1", "2"})
    wait_for(lambda: exporter.scrape()['agl_process_cpu_seconds_total{server_process="0"}'] > 0)
    collections = 'agl_process_gc_collections_total{generation="0",server_process="0"}'
    assert exporter.scrape()[collections] >= 0


def test_a_folder_that_is_wiped_is_a_counted_reset_and_counting_goes_on(
    parent: Parent, exporter: Exporter, folder: Path
) -> None:
    parent.kill(parent.start("work"))
    parent.start("work")
    wait_for(lambda: events(exporter.scrape()) > 20)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    exporter.scrape()
    assert exporter.scrape()["agl_exporter_folder_up"] == 0
    wait_for(lambda: events(exporter.scrape()) > 20)
    scrape = exporter.scrape()
    assert scrape["agl_exporter_folder_up"] == 1
    assert scrape["agl_exporter_resets_total"] == 1


def test_ten_impatient_scrapers_share_reads(parent: Parent, exporter: Exporter) -> None:
    parent.start("work")
    wait_for(lambda: events(exporter.scrape()) > 0)
    stop = threading.Event()

    def scrape() -> int:
        seen, before = 0, 0.0
        while not stop.is_set():
            now = events(exporter.scrape())
            assert now >= before
            before = now
            seen += 1
        return seen

    with ThreadPoolExecutor(10) as pool:
        scrapers = [pool.submit(scrape) for _ in range(10)]
        wait_for(lambda: exporter.scrape()["agl_exporter_shared_reads_total"] > 100)
        stop.set()
        scrapes = sum(scraper.result() for scraper in scrapers)
    last = exporter.scrape()
    assert last["agl_exporter_reads_total"] < scrapes


def test_two_exporters_on_one_folder_say_the_same(parent: Parent, folder: Path) -> None:
    parent.kill(parent.start("work"))
    wait_for(lambda: parent.ledger()[1] > 0 or parent.start("work"))
    for pid in list(parent.alive):
        parent.kill(pid)
    exporters = [Exporter(folder), Exporter(folder)]
    try:
        first, second = (counting(exporter.scrape()) for exporter in exporters)
        assert first == second
    finally:
        for exporter in exporters:
            exporter.end()


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic !", "Bearer tok", "Basic Og=="])
def test_a_scrape_without_the_token_is_refused(header: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token\n")
    exporter = Exporter(folder, "--auth-file", str(file))
    url = f"http://127.0.0.1:{exporter.port}/v1/prometheus"
    try:
        request = urllib.request.Request(url, headers={"Authorization": header} if header else {})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 401
        assert refused.value.headers["WWW-Authenticate"]
        refused.value.close()
        for right in ("Bearer token", "Basic YW55Ym9keTp0b2tlbg=="):
            request = urllib.request.Request(url, headers={"Authorization": right})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
    finally:
        exporter.end()


def test_an_auth_file_that_cannot_be_used_ends_with_one_line(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for file, text in ((empty, "is empty"), (tmp_path / "none", "cannot be read")):
        ended = run_agl(
            "prometheus", "--auth-file", str(file), env={"PROMETHEUS_MULTIPROC_DIR": str(folder)}
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert f"argument --auth-file: {file} {text}" in ended.stderr
        assert ended.stderr.count("\n") == 1
