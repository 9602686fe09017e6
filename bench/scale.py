"""What monitoring of 10, 100 and 1,000 GPU nodes takes of one Prometheus.

A real Prometheus with the bundle's rules asks simulated nodes (bench/nodes.py) as a cluster's does:
node_exporter every 5 s, dcgm-exporter every 15 s. Sizes that are not run are computed from those
that are: all but memory in proportion, memory along the line through the two largest. What a sample
takes on disk comes from a block of one node that promtool writes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from agl.cli import CommandParser
from agl.cli._bench_options import positive, seconds
from bench import entry
from bench.nodes import ROOT, Host, Nodes, gpu_answers, history, node_answers, series
from bench.servers import free_port, resident_mib

NODE_SECONDS, GPU_SECONDS = 5, 15
SIZES = (10, 100, 1000)
KEPT_DAYS = 15
BLOCK_SCRAPES = 720
PATIENCE_SECONDS = 300
END = 1_767_225_600


def tools() -> Path:
    """Folder of the lab's prometheus and promtool."""
    ensure = [ROOT / "tests" / "lab" / "prometheus" / "ensure.sh", "--no-build"]
    done = subprocess.run(ensure, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def configuration(address: str, nodes: int) -> dict[str, Any]:
    """Prometheus' file; JSON is YAML."""

    def job(name: str, kind: str, seconds: int) -> dict[str, Any]:
        targets = [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/{kind}/{number}",
                    "instance": f"node{number}:{kind}",
                    "host": f"node{number}",
                    "deployment": "agl",
                },
            }
            for number in range(nodes)
        ]
        return {"job_name": name, "scrape_interval": f"{seconds}s", "static_configs": targets}

    rules = [str(ROOT / "prometheus" / folder / "*.yml") for folder in ("rules", "alerts")]
    return {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"},
        "rule_files": rules,
        "scrape_configs": [job("node", "node", NODE_SECONDS), job("dcgm", "dcgm", GPU_SECONDS)],
    }


class Prometheus:
    """One that runs, and what it says of itself."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.process = process

    def ready(self) -> bool:
        try:
            self._get("/-/ready")
            return True
        except OSError:
            return False

    def own(self, name: str) -> float:
        """A number of its own metrics, which it does not scrape itself."""
        lines = self._get("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if _is(line, name))

    def query(self, expression: str) -> float:
        """The one value of an expression; 0 when there is none."""
        query = urllib.parse.urlencode({"query": expression})
        result = json.loads(self._get(f"/api/v1/query?{query}"))["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:  # noqa: S310  # ours
            return answer.read()


def _is(line: str, name: str) -> bool:
    return line.startswith((f"{name} ", f"{name}{{"))


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """A Prometheus of the lab, ended by its pid."""
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    port = free_port()
    command = [tools() / "prometheus", f"--config.file={file}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    running = Prometheus(port, psutil.Process(process.pid))
    try:
        _until("Prometheus", running.ready)
        yield running
    finally:
        process.terminate()
        process.wait()


def _until(what: str, condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come within {PATIENCE_SECONDS} s")
        time.sleep(0.5)


def measure(nodes: int, host: Host, seconds: float) -> dict[str, float]:
    """One size, run for so long after every node was asked for the first time."""
    answers = node_answers(host)
    gpus = gpu_answers(host, len(answers))
    with (
        tempfile.TemporaryDirectory(prefix="agl-scale-") as folder,
        Nodes(answers, gpus) as served,
        prometheus(Path(folder), configuration(served.address, nodes)) as running,
    ):
        _until("every node", lambda: running.query("count(up == 1)") >= 2 * nodes)
        before = _state(running)
        time.sleep(seconds)
        after = _state(running)
        passed, samples, cpu, missed = (
            after[name] - before[name] for name in ("at", "samples", "cpu", "missed")
        )
        text = len(answers[0]) / NODE_SECONDS + len(gpus[0]) / GPU_SECONDS
        took = 'scrape_duration_seconds{job="node"}'
        return {
            "targets": 2 * nodes,
            "series": after["series"],
            "samples_per_second": samples / passed,
            "text_mb_per_second": nodes * text / 1e6,
            "cpu_cores": cpu / passed,
            "cpu_us_per_sample": cpu / samples * 1e6,
            "scrape_seconds": running.query(f"quantile(0.5, {took})"),
            "scrape_seconds_max": running.query(f"max({took})"),
            "failed_scrapes": running.query(f"sum(1 - avg_over_time(up[{round(seconds)}s]))"),
            "missed_evaluations": missed,
            "memory_mib": after["memory"],
        }


def _state(running: Prometheus) -> dict[str, float]:
    times = running.process.cpu_times()
    return {
        "at": time.monotonic(),
        "cpu": times.user + times.system,
        "samples": running.own("prometheus_tsdb_head_samples_appended_total"),
        "series": running.own("prometheus_tsdb_head_series"),
        "missed": running.own("prometheus_rule_group_iterations_missed_total"),
        "memory": resident_mib(running.process.pid),
    }


def bytes_per_sample(host: Host) -> float:
    """What a sample of one node takes in a block, index and all."""
    answers = node_answers(host)
    gpus = gpu_answers(host, len(answers))
    together = [node + gpu for node, gpu in zip(answers, gpus, strict=True)]
    with tempfile.TemporaryDirectory(prefix="agl-scale-") as folder:
        text, blocks = Path(folder) / "text", Path(folder) / "blocks"
        with text.open("w") as file:
            file.writelines(history(together, BLOCK_SCRAPES, NODE_SECONDS, END))
        create = [tools() / "promtool", "tsdb", "create-blocks-from", "openmetrics", text, blocks]
        subprocess.run(create, check=True, capture_output=True)
        size = sum(path.stat().st_size for path in blocks.rglob("*") if path.is_file())
        meta = [json.loads(path.read_text()) for path in blocks.glob("*/meta.json")]
        return size / sum(block["stats"]["numSamples"] for block in meta)


def computed(nodes: int, runs: dict[int, dict[str, float]]) -> dict[str, float]:
    """A size that was not run, from those that were."""
    small, large = sorted(runs)[-2:]
    slope = (runs[large]["memory_mib"] - runs[small]["memory_mib"]) / (large - small)
    factor = nodes / large
    scaled = ("targets", "series", "samples_per_second", "text_mb_per_second", "cpu_cores")
    return {
        **{name: runs[large][name] * factor for name in scaled},
        "memory_mib": runs[large]["memory_mib"] + slope * (nodes - large),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="scripts/bench scale", description=__doc__)
    parser.add_argument("--run", type=positive, nargs="+", default=[10, 100], metavar="NODES")
    parser.add_argument("--seconds", type=seconds, default=60, help="for each size (%(default)s)")
    parser.add_argument(
        "--threads", type=positive, default=Host.threads, help="of a node (%(default)s)"
    )
    parser.add_argument("--units", type=int, default=Host.units, help="of systemd (%(default)s)")
    parser.add_argument("--gpus", type=int, default=Host.gpus, help="of a node (%(default)s)")
    options = parser.parse_args(arguments)
    if len(set(options.run)) < 2:
        parser.error("--run: two sizes at least, since the others are computed from them")
    host = Host(options.threads, options.units, options.gpus)
    runs = {nodes: measure(nodes, host, options.seconds) for nodes in sorted(options.run)}
    size = bytes_per_sample(host)
    others = {nodes: computed(nodes, runs) for nodes in SIZES if nodes not in runs}
    for row in (*runs.values(), *others.values()):
        row["disk_gb"] = row["samples_per_second"] * size * KEPT_DAYS * 86_400 / 1e9
    report = {
        "node": {
            **vars(host),
            "series_of_node_exporter": series(node_answers(host)[0]),
            "series_of_dcgm_exporter": series(gpu_answers(host, 1)[0]),
        },
        "bytes_per_sample": size,
        "measured": {str(nodes): row for nodes, row in runs.items()},
        "computed": {str(nodes): row for nodes, row in others.items()},
    }
    print(json.dumps(report, indent=2, default=lambda value: round(value, 4)))
    return 0


if __name__ == "__main__":
    sys.exit(entry.run("bench scale", main))
