"""Scrapes of ``agl prometheus`` against prometheus_client's own collector, on the same folders.

A folder is filled by as many real processes as it is said to have, each through our backend, and
they go on counting between scrapes. Both sides then answer the same requests over HTTP, in turns:
``agl prometheus``, and prometheus_client's multiprocess collector behind its own WSGI application.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from statistics import median

from agl.bench.results import Figure
from agl.cli import CommandParser
from agl.cli._bench_options import positive
from bench import entry
from bench.documents import document, figure
from bench.exporter_load import PATHS_PER_FOLDER, Writers
from bench.servers import ROOT, free_port, resident_mib
from bench.servers import serving as store_serving

PROMETHEUS_HEADERS = {
    # As Prometheus 2.53 and 3.x send them, without protobuf.
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.53.3",
    "X-Prometheus-Scrape-Timeout-Seconds": "60",
}
WANTED = {32: 80.0, 96: 120.0}
FIRST_WANTED = 5.0
SAMPLES_OF_UPSTREAM = 10_600
MEMORY_WANTED_MIB = 150.0
_TIMEOUT = 120.0


@dataclass
class Comparison:
    """Figures for one number of processes; times in milliseconds."""

    processes: int
    samples: int
    folder_mib: float
    first_ours: float
    first_theirs: float
    ready_ours: float
    ready_theirs: float
    later_ours: float
    later_theirs: float
    later_ratios: list[float]
    cpu_ours: float
    cpu_theirs: float
    memory_mib: float

    @property
    def first_ratio(self) -> float:
        return self.first_theirs / self.first_ours

    @property
    def later_ratio(self) -> float:
        return median(self.later_ratios)

    @property
    def cpu_ratio(self) -> float:
        return self.cpu_theirs / self.cpu_ours


class Scraper:
    """A connection that is kept, as Prometheus keeps it."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
        self._path = path

    def scrape(self) -> tuple[float, bytes]:
        """Seconds until the last byte, and the body as it was sent."""
        try:
            return self._scrape()
        except RemoteDisconnected:  # it was idle for longer than the server likes
            self._connection.close()
            return self._scrape()

    def _scrape(self) -> tuple[float, bytes]:
        began = time.perf_counter()
        self._connection.request("GET", self._path, headers=PROMETHEUS_HEADERS)
        response = self._connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - began
        if response.status != 200 or response.headers["Content-Encoding"] != "gzip":
            raise RuntimeError(f"{self._path}: {response.status} {body[:200]!r}")
        return seconds, body


@dataclass
class Server:
    """An exporter that answers.

    Attributes:
        ready: Milliseconds from its start to its first answer. Ours has read the folder by then,
            theirs reads it with the first scrape.
    """

    pid: int
    ready: float


@contextlib.contextmanager
def serving(command: Sequence[str], folder: Path, port: int) -> Generator[Server]:
    """Run a server on ``port`` while inside."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        began = time.monotonic()
        deadline = began + 60
        while True:
            if _answers(port):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not serve")
            time.sleep(0.02)
        yield Server(process.pid, (time.monotonic() - began) * 1000)
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        try:
            connection.request("OPTIONS", "/health")  # neither side reads the folder for this
            connection.getresponse().read()
        except OSError:
            return False
        return True


def ours(port: int) -> list[str]:
    agl = str(Path(sys.executable).with_name("agl"))
    return [agl, "prometheus", "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING"]


def theirs(port: int) -> list[str]:
    return [sys.executable, "-m", "bench.exporter_theirs", str(port)]


@contextlib.contextmanager
def metrics_folder() -> Generator[Path]:
    """A folder in memory, as the bundle's is."""
    folder = Path(tempfile.mkdtemp(prefix="agl-bench-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(processes: int, rounds: int, paths: int) -> Comparison:
    """Measure both exporters on a folder of so many processes."""
    with metrics_folder() as folder, Writers(folder, processes, paths) as writers:
        writers.count()
        one, two = free_port(), free_port()
        with serving(ours(one), folder, one) as mine, serving(theirs(two), folder, two) as other:
            us, them = Scraper(one, "/v1/prometheus"), Scraper(two, "/metrics")
            first_ours, _ = us.scrape()
            first_theirs, _ = them.scrape()
            pairs: list[tuple[float, float]] = []
            spent = [-cpu_seconds(mine.pid), -cpu_seconds(other.pid)]
            for _ in range(rounds):
                writers.count()
                theirs_seconds, their_body = them.scrape()
                writers.count()
                ours_seconds, _ = us.scrape()
                pairs.append((ours_seconds, theirs_seconds))
            spent = [cpu_seconds(mine.pid) + spent[0], cpu_seconds(other.pid) + spent[1]]
            _check_same(us, them)
            return Comparison(
                processes=processes,
                samples=_samples(their_body),
                folder_mib=_taken(folder),
                first_ours=first_ours * 1000,
                first_theirs=first_theirs * 1000,
                ready_ours=mine.ready,
                ready_theirs=other.ready,
                later_ours=median(a for a, _ in pairs) * 1000,
                later_theirs=median(b for _, b in pairs) * 1000,
                later_ratios=[b / a for a, b in pairs],
                cpu_ours=spent[0] / rounds * 1000,
                cpu_theirs=spent[1] / rounds * 1000,
                memory_mib=resident_mib(mine.pid),
            )


def _check_same(us: Scraper, them: Scraper) -> None:
    """Both must say the same while nobody counts; process figures change by themselves."""
    texts = [gzip.decompress(scraper.scrape()[1]).decode() for scraper in (us, them)]
    mine, other = (
        {line for line in text.splitlines() if line.startswith("agl_bench_")} for text in texts
    )
    if mine != other:
        raise RuntimeError(f"the exporters disagree: {sorted(mine ^ other)[:4]}")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, which other work on the machine changes little."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    exact = sum(int(path.read_text().split()[0]) for path in threads) / 1e9
    return max(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), exact)  # ended threads are in ticks


def _samples(body: bytes) -> int:
    return sum(not line.startswith(b"#") for line in gzip.decompress(body).splitlines())


def _taken(folder: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir()) / 2**20


def deaths(count: int) -> dict[str, dict[str, float]]:
    """Folder and scrape after one death and after ``count``, with folding as child exits do it."""
    from agl.utils.metrics_folding import fold_dead

    result: dict[str, dict[str, float]] = {}
    with metrics_folder() as folder:
        port = free_port()
        with serving(ours(port), folder, port), Writers(folder, 1, 20) as living:
            living.count()
            scraper = Scraper(port, "/v1/prometheus")
            for death in range(1, count + 1):
                Writers.die(folder, paths=20)
                fold_dead(folder)
                if death in (1, count):
                    times = [scraper.scrape()[0] for _ in range(20)]
                    result[f"after {death}"] = {
                        "files": len(list(folder.glob("*.db"))),
                        "folder_mib": round(_taken(folder), 3),
                        "scrape_ms": round(median(times) * 1000, 2),
                    }
    return result


def exposition() -> int:
    """Samples of our own catalogue after a training loop that uses the whole store."""
    with store_serving("ours") as running:
        agl = str(Path(sys.executable).with_name("agl"))
        url = f"http://127.0.0.1:{running.port}"
        command = [agl, "bench", "scenario", "minimal", "--rollouts", "40", "--store-url", url]
        subprocess.run(command, check=True, capture_output=True)
        with urllib.request.urlopen(f"{url}/v1/prometheus/") as answer:  # noqa: S310 - loopback
            return sum(not line.startswith(b"#") for line in answer.read().splitlines())


def figures_of(found: Comparison) -> list[Figure]:
    """How many times faster, then what either took, for one number of processes."""
    name = f"{found.processes} processes"
    ratios = {"later scrape, times faster": found.later_ratios, "first": [found.first_ratio]}
    ratios["CPU of a later scrape, times less"] = [found.cpu_ratio]
    times = ("later_ours_ms", found.later_ours), ("later_theirs_ms", found.later_theirs)
    return [
        *(figure(f"{name}: {what}", values, "higher") for what, values in ratios.items()),
        *(figure(f"{name}: {what}", [value]) for what, value in times),
        figure(f"{name}: exporter_mib", [found.memory_mib]),
    ]


def main() -> int:
    parser = CommandParser(prog="scripts/bench exporter", description=__doc__)
    parser.add_argument("--processes", type=positive, nargs="+", default=[2, 8, 32, 96])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--paths", type=positive, default=PATHS_PER_FOLDER, help="label sets, half")
    parser.add_argument("--deaths", type=int, default=1000, help="0 leaves this part out")
    parser.add_argument("--no-exposition", action="store_true", help="leave this part out")
    parser.add_argument("--json", type=entry.target, help="keep all figures in this file")
    options = parser.parse_args()
    started = time.time()
    comparisons: list[Comparison] = []
    missed = False
    for processes in options.processes:
        found = compare(processes, options.rounds, options.paths)
        comparisons.append(found)
        wanted = WANTED.get(processes, 0.0)
        missed |= found.later_ratio < wanted or found.first_ratio < FIRST_WANTED
        missed |= found.memory_mib > MEMORY_WANTED_MIB
        print(
            f"{processes:3d} processes, {found.samples} samples, {found.folder_mib:.0f} MiB: "
            f"later {found.later_ours:.1f} ms against {found.later_theirs:.0f} ms = "
            f"{found.later_ratio:.0f} times ({min(found.later_ratios):.0f} to "
            f"{max(found.later_ratios):.0f}, wanted {wanted:.0f}), "
            f"CPU {found.cpu_ours:.1f} ms against {found.cpu_theirs:.0f} ms = "
            f"{found.cpu_ratio:.0f} times; "
            f"first {found.first_ours:.0f} against {found.first_theirs:.0f} ms = "
            f"{found.first_ratio:.1f} times, after a start of {found.ready_ours:.0f} and "
            f"{found.ready_theirs:.0f} ms; exporter {found.memory_mib:.0f} MiB",
            flush=True,
        )
    dead = deaths(options.deaths) if options.deaths else {}
    for name, figures in dead.items():
        print(name, "death(s):", figures)
    samples = 0 if options.no_exposition else exposition()
    if samples:
        share = samples / SAMPLES_OF_UPSTREAM
        missed |= share > 1 / 3
        print(f"samples of our catalogue after a training loop: {samples}, {share:.2f} of 10,600")
    if options.json:
        kept = {
            "comparisons": [asdict(c) for c in comparisons],
            "deaths": dead,
            "exposition": samples,
        }
        names = ("processes", "rounds", "paths", "deaths")
        parameters = {name: getattr(options, name) for name in names}
        figures = [figure for found in comparisons for figure in figures_of(found)]
        problems = ["a wanted figure was missed"] if missed else []
        document("exporter", parameters, figures, started, kept, problems).write(options.json)
    return int(missed)


if __name__ == "__main__":
    sys.exit(entry.run("bench exporter", main))
