"""The text of GPU nodes that are not there: exporters' answers, made larger as a real host's are.

node_exporter's are recorded (``bench/samples/node_exporter.txt.xz``: one host, asked every 5 s) and
widened to the threads and units of a GPU host. dcgm-exporter's are written in its format, with the
counters of the role ``dcgm_exporter``, since there is no GPU to record from.
"""

from __future__ import annotations

import gzip
import lzma
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "bench" / "samples" / "node_exporter.txt.xz"
COUNTERS = ROOT / "ansible" / "roles" / "dcgm_exporter" / "templates" / "counters.csv.j2"
STATES = ("activating", "active", "deactivating", "failed", "inactive")
_CPU = re.compile(r'^(node_cpu\w*\{cpu=")0(".*)$', re.MULTILINE)
_COUNTER = re.compile(r"^(DCGM_\w+), (counter|gauge), (.+)$", re.MULTILINE)
_KIND = re.compile(r"^# TYPE (\S+) (counter|histogram|summary)$", re.MULTILINE)


@dataclass(frozen=True)
class Host:
    """How large a node is."""

    threads: int = 128
    units: int = 200
    gpus: int = 8


def recorded() -> list[str]:
    """The recorded answers, in order."""
    return lzma.decompress(SAMPLE.read_bytes()).decode().split("\f")


def node_answers(host: Host) -> list[str]:
    """node_exporter's answers, one scrape after the other."""
    units = "".join(
        f'node_systemd_unit_state{{name="unit-{number}.service",state="{state}",type="simple"}}'
        f" {int(state == 'active')}\n"
        for number in range(host.units)
        for state in STATES
    )
    head = "# HELP node_systemd_unit_state Systemd unit\n# TYPE node_systemd_unit_state gauge\n"
    return [_widened(text, host.threads) + head + units for text in recorded()]


def _widened(text: str, threads: int) -> str:
    """The answer of a host with so many threads, each like the first."""
    own = {int(number) for number in re.findall(r'^node_cpu\w*\{cpu="(\d+)"', text, re.MULTILINE)}
    more = [number for number in range(threads) if number not in own]

    def with_others(line: re.Match[str]) -> str:
        copies = (f"{line[1]}{number}{line[2]}" for number in more)
        return "\n".join((line[0], *copies))

    return _CPU.sub(with_others, text)


def gpu_answers(host: Host, scrapes: int) -> list[str]:
    """dcgm-exporter's answers: counters rise, gauges wander."""
    chance = random.Random(1)
    fields = _COUNTER.findall(COUNTERS.read_text(encoding="utf-8"))
    values: dict[tuple[str, int], float] = defaultdict(lambda: chance.uniform(10, 1000))
    return [_gpu_answer(host, fields, values, chance) for _ in range(scrapes)]


def _gpu_answer(
    host: Host,
    fields: list[tuple[str, str, str]],
    values: dict[tuple[str, int], float],
    chance: random.Random,
) -> str:
    lines: list[str] = []
    for name, kind, text in fields:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for gpu in range(host.gpus):
            values[name, gpu] += chance.uniform(0, 50) if kind == "counter" else chance.gauss(0, 5)
            labels = (
                f'gpu="{gpu}",UUID="GPU-00000000-0000-0000-0000-{gpu:012}",'
                f'pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
                'modelName="NVIDIA H100 80GB HBM3",Hostname="node",DCGM_FI_DRIVER_VERSION="580.95"'
            )
            digits = 3 if "PROF" in name or name.endswith("POWER_USAGE") else 0
            lines.append(f"{name}{{{labels}}} {values[name, gpu]:.{digits}f}")
    return "\n".join(lines) + "\n"


def series(text: str) -> int:
    """How many series an answer has."""
    return sum(bool(line) and not line.startswith("#") for line in text.splitlines())


def history(answers: list[str], scrapes: int, every: int, end: int) -> Iterator[str]:
    """OpenMetrics lines with times, series after series: the answers again and again.

    Counters go on rising from one round to the next, as far as they rose within a round. Series
    that are not in every answer are left out.
    """
    rising = {name for text in answers for name, _ in _KIND.findall(text)}
    tables = [_table(text) for text in answers]
    for name in tables[0]:
        if not all(name in table for table in tables):
            continue
        values = [table[name] for table in tables]
        family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
        rise = values[-1] - values[0] if {family, name.partition("{")[0]} & rising else 0.0
        for number in range(scrapes):
            turn, at = divmod(number, len(values))
            value = values[at] + turn * rise
            yield f"{name} {value!r} {end - (scrapes - number) * every}\n"
    yield "# EOF\n"


def _table(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}


class Nodes:
    """A server for ``/node/N`` and ``/dcgm/N``: each asks for its own next answer.

    Answers are zipped before, so that what serving costs does not disturb what is measured.
    """

    def __init__(self, nodes: list[str], gpus: list[str]) -> None:
        zipped = {
            "node": [gzip.compress(text.encode(), 6) for text in nodes],
            "dcgm": [gzip.compress(text.encode(), 6) for text in gpus],
        }
        turns: dict[str, int] = defaultdict(int)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answers = zipped[self.path.split("/")[1]]
                body = answers[min(turns[self.path], len(answers) - 1)]
                turns[self.path] += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are many."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A Prometheus that has ended leaves its connections."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
