"""A reduced set of everything, in under ten minutes on two cores, as one page.

Each measurement is a command of its own, whose result and output are kept beside the page. One that
fails, or for which no time is left, is named on the page; the others are not touched.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from agl.bench.pages.report import report_of
from agl.bench.results import Result, read_result
from agl.cli import EXIT_INTERRUPTED, CommandParser
from agl.cli._bench_options import fraction, not_negative
from agl.cli._bench_pages import write_page
from agl.errors import AglError, UsageError
from bench import entry
from bench.live import SCRAPE_SECONDS, Live, living
from bench.servers import ROOT

MINUTES = 9.0
AGL = str(Path(sys.executable).with_name("agl"))
MONGO = ("AGL_TEST_MONGO_URI", "AGL_TEST_MONGO_SERVER")
"""Variables that name a MongoDB, or a stand-in for it; without them it is left out."""

_SETTLE_SECONDS = 3 * SCRAPE_SECONDS + 6
"""Until Prometheus has the last of it: the exporter asks the store for its state every 5 s."""

_KILL_SECONDS = 30.0


@dataclass(frozen=True)
class Step:
    """One measurement.

    Attributes:
        name: Of its files.
        words: Its command; ``--json FILE`` is added.
        seconds: What it takes on two quiet cores; it is not begun with less time left.
    """

    name: str
    words: tuple[str, ...]
    seconds: float


@dataclass
class Session:
    """The folder of results, and what has become of the measurements so far."""

    folder: Path
    deadline: float
    results: list[Result] = field(default_factory=list[Result])
    remarks: list[str] = field(default_factory=list[str])

    def play(self, step: Step) -> bool:
        """Run a measurement; whether it left a result."""
        left = self.deadline - time.monotonic()
        if left < step.seconds:
            self.remarks.append(f"{step.name}: left out, as the time was up")
            return False
        print(f"{step.name} (about {step.seconds:.0f} s)", file=sys.stderr, flush=True)
        target, log = self.path(step.name, "json"), self.path(step.name, "log")
        with log.open("wb") as output:
            code = _run([*step.words, "--json", str(target)], output, left + _KILL_SECONDS)
        if not target.is_file():
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            self.remarks.append(f"{step.name}: no result (exit status {code}): {said[-1]}")
            return False
        self.results.append(read_result(target))
        return True

    def path(self, name: str, kind: str) -> Path:
        """One of the files of the session."""
        return self.folder / f"{name}.{kind}"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
    folder: Path = options.output or ROOT / ".cache" / "bench" / name
    _make(folder)
    session = Session(folder, time.monotonic() + options.minutes * 60)
    interrupted = False
    try:
        measure(session, options.scale)
    except KeyboardInterrupt:
        interrupted = True
        session.remarks.append("interrupted: what follows was not measured")
    page = session.path("report", "html")
    text = report_of("How the store does", session.results, session.remarks)
    write_page(str(page), lambda: text)
    for remark in session.remarks:
        print(f"bench: {remark}", file=sys.stderr)
    print(f"{page}: {len(session.results)} measurements; results and outputs are beside it")
    if interrupted:
        return EXIT_INTERRUPTED
    bad = [result for result in session.results if not result.ok]
    return 1 if session.remarks or bad or not session.results else 0


def _make(folder: Path) -> None:
    """An empty folder: results of another run would be taken for those of this one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"--output {folder}: {error.strerror}") from None
    if filled:
        raise UsageError(f"--output {folder} is not empty: name another folder")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="scripts/bench", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, metavar="FOLDER", help="(default: .cache/bench/TIME)")
    add("--minutes", type=not_negative, default=MINUTES, help="time for all (default: %(default)g)")
    add(
        "--scale",
        type=fraction,
        default=1.0,
        metavar="F",
        help="part of the usual sizes and times, for a trial (default: 1)",
    )
    return parser


def measure(session: Session, scale: float) -> None:
    """Everything, what says most first."""
    try:
        with living(session.folder) as live:
            _watched(session, live, scale)
    except AglError as error:
        session.remarks.append(f"the watched runs: {error}")
    for step in _alone(session.folder, scale):
        session.play(step)


def _watched(session: Session, live: Live, scale: float) -> None:
    """Loads that Prometheus watches, then what it saw, and the archive of it."""
    began = time.time()
    first = len(session.results)
    for step in _loads(live, scale):
        session.play(step)
    runs = session.results[first:]
    time.sleep(_SETTLE_SECONDS)
    window = (f"{began * 1000:.0f}", f"{time.time() * 1000:.0f}")
    analysis = (
        *(AGL, "bench", "analyze", "--prometheus", live.prometheus, "--store-url", live.store),
        *("--start", window[0], "--end", window[1], "--scrape-interval", f"{SCRAPE_SECONDS}s"),
    )
    if session.play(Step("analysis", analysis, 10)):
        session.results.insert(first, session.results.pop())
    if runs:
        _archive(session, live)


def _archive(session: Session, live: Live) -> None:
    output = session.path("archive", "tar.gz")
    names = sorted(str(path) for path in session.folder.glob("*.json"))
    words = (
        *(AGL, "bench", "archive", "--prometheus", live.prometheus, "--data", str(live.data)),
        *("--output", str(output), "--results", *names),
    )
    with session.path("archive", "log").open("wb") as log:
        code = _run(words, log, 120.0)
    if code:
        said = session.path("archive", "log").read_text(errors="replace").strip()
        session.remarks.append(f"archive: {said.splitlines()[-1] if said else 'failed'}")


def _loads(live: Live, scale: float) -> Iterator[Step]:
    where = ("--store-url", live.store)
    pids = tuple(word for pid in live.pids for word in ("--server-pid", str(pid)))
    scenario = (AGL, "bench", "scenario")
    for name, rollouts, quick in (
        ("minimal", 300, ()),
        ("long-queues", 200, ("--batch-size", "100", "--sleep-seconds", "0.02")),
        ("heavy-traces", 40, ("--batch-size", "20", "--sleep-seconds", "0.01")),
    ):
        played = str(max(int(rollouts * scale), 10))
        sizes = ("--rollouts", played, "--runners", "4", *quick)
        polls = ("--poll-seconds", "0.2") if quick else ()
        words = (*scenario, name, *where, *sizes, *polls)
        yield Step(f"scenario-{name}", words, 30 * scale)
    for mode in ("rollout", "dequeue-update-attempt"):
        operations = ("--operations", str(max(int(400 * scale), 16)), "--processes", "8")
        words = (AGL, "bench", "micro", mode, *where, *operations, "--connections", "reuse")
        yield Step(f"micro-{mode}", words, 20 * scale)
    load = (AGL, "bench", "load", *where, *pids, "--warmup", f"{1 * scale:g}")
    closed = ("--rounds", "3", "--seconds", f"{6 * scale:g}")
    yield Step("load-closed", (*load, *closed), 30 * scale)
    opened = ("--rounds", "3", "--seconds", f"{6 * scale:g}", "--rate", "100")
    yield Step("load-open", (*load, *opened), 30 * scale)


def _alone(folder: Path, scale: float) -> Iterator[Step]:
    yield _own("cost", 5)
    rounds = ("--rounds", "3", "--seconds", f"{2.5 * scale:g}", "--warmup", f"{1 * scale:g}")
    yield _own("store", 60 * scale, *rounds)
    yield _own("growth", 60 * scale, "--rollouts", str(max(int(20_000 * scale), 2_000)))
    yield _own("model", 5, "--growth", str(folder / "growth.json"))
    yield _own(
        "exporter", 45 * scale, "--processes", "2", "32", "--rounds", "3", "--deaths", "0",
        "--no-exposition",
    )  # fmt: skip
    for what in ("insert", "dequeue"):
        tasks = ("--total-tasks", str(max(int(20_000 * scale), 1_000)), "--concurrency", "128")
        words = (AGL, "bench", "collection", what, *tasks, "--rounds", "3")
        yield Step(f"collection-{what}", words, 20 * scale)
    if any(os.environ.get(name) for name in MONGO):
        speed = ("--parts", "speed", "--rounds", "2", "--only", "yardstick-2", "ours-1", "ours-2")
        seconds = ("--seconds", f"{3 * scale:g}", "--warmup", f"{1 * scale:g}")
        yield _own("mongo", 60 * scale, *speed, *seconds)


def _own(name: str, seconds: float, *options: str) -> Step:
    """A measurement of this folder."""
    return Step(name, (sys.executable, "-m", f"bench.{name}", *options), seconds)


def _run(words: list[str] | tuple[str, ...], output: object, seconds: float) -> int:
    """Run a command to its end, or end it when it takes too long."""
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(entry.run("bench", lambda: main(sys.argv[1:])))
