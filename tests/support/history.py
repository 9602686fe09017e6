"""A real Prometheus with a past: series written by promtool into its blocks, then served."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from ports import free_port

STEP = 15
HOURS = 6
END = 1_767_225_600  # 2026-01-01 00:00:00 UTC, so that pictures are the same every day
START = END - HOURS * 3600
MANY = 1000
EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ROUTES = (
    ("GET", "/v1/agl/health", 0.7),
    ("POST", "/v1/agl/rollouts", 4.0),
    ("POST", "/v1/traces", 22.0),
    ("GET", "/v1/agl/rollouts/{rollout_id}", 9.0),
)


def tool(name: str) -> str:
    """``prometheus`` or ``promtool``: of the lab's tools, or installed.

    Raises FileNotFoundError when it is in neither place.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("AGL_LAB_TOOLS") or cache / "agl-stack" / "lab" / "prometheus")
    path = str(folder / name) if (folder / name).is_file() else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is missing - run tests/lab/prometheus/ensure.sh")
    return path


def busy(moment: float) -> float:
    """Load from 0 to 1: two waves, and an outage of the store in the fourth hour."""
    if START + 3.5 * 3600 < moment < START + 3.9 * 3600:
        return 0.0
    wave = 0.5 + 0.3 * math.sin(moment / 1700) + 0.15 * math.sin(moment / 311)
    return max(0.05, wave)


def exposition() -> Iterator[str]:
    """OpenMetrics text with a time for every sample, series after series."""
    yield from _requests()
    yield from _buckets()
    yield from _gauges()
    yield from _many()
    yield from _alerts()
    yield from _month()
    yield "# EOF"


def _moments() -> range:
    return range(START, END + 1, STEP)


def _labels(**labels: str) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _requests() -> Iterator[str]:
    yield "# TYPE agl_http counter"
    for method, path, rate in ROUTES:
        for status, share in (("200", 0.98), ("503", 0.02)):
            total = 0.0
            for at in _moments():
                worse = (
                    12 if START + 3.4 * 3600 < at < START + 3.5 * 3600 and status == "503" else 1
                )
                total += busy(at) * rate * share * STEP * worse
                labels = _labels(
                    job="app", instance="app-exporter:4748", method=method, path=path, status=status
                )
                yield f"agl_http_total{{{labels}}} {total:.3f} {at}"


def _buckets() -> Iterator[str]:
    yield "# TYPE agl_http_latency histogram"
    totals = dict.fromkeys((*EDGES, math.inf), 0.0)
    lines: dict[str, list[str]] = {}
    for at in _moments():
        middle = 0.02 * (1 + 4 * busy(at) ** 3)
        for edge in totals:
            share = 1 - math.exp(-((edge / middle) ** 1.2)) if edge < math.inf else 1
            totals[edge] += busy(at) * 36 * STEP * share
            le = "+Inf" if edge == math.inf else f"{edge:g}"
            name = f'agl_http_latency_bucket{{job="app",instance="app-exporter:4748",le="{le}"}}'
            lines.setdefault(name, []).append(f"{name} {totals[edge]:.3f} {at}")
    for series in lines.values():
        yield from series
    yield from (
        f'agl_http_latency_count{{job="app",instance="app-exporter:4748"}} {36 * (at - START)} {at}'
        for at in _moments()
    )


def _gauges() -> Iterator[str]:
    yield "# TYPE up gauge"
    for job, instance in (("app", "app-exporter:4748"), ("node", "node-exporter:9100")):
        for at in _moments():
            value = 0 if job == "app" and busy(at) == 0 else 1
            yield f"up{{{_labels(job=job, instance=instance)}}} {value} {at}"
    yield "# TYPE queue_depth gauge"
    for mode, share in (("train", 1.0), ("val", 0.3), ("test", 0.1)):
        for at in _moments():
            depth = round(400 * (1.1 - busy(at)) * share)
            yield f"queue_depth{{{_labels(job='app', mode=mode)}}} {depth} {at}"
    yield "# TYPE memory_bytes gauge"
    for service, size in (("app", 1.9e9), ("prometheus", 6.1e8), ("grafana", 2.2e8)):
        for at in _moments():
            used = size * (0.6 + 0.4 * (at - START) / (END - START))
            yield f"memory_bytes{{{_labels(service=service)}}} {used:.0f} {at}"
    yield "# TYPE worker_state gauge"
    for number in range(6):
        for at in _moments():
            phase = (at // 900 + number * 2) % 5
            value = 0 if busy(at) == 0 else (2 if phase < 3 else 1)
            worker = f"worker-{number}"
            yield f"worker_state{{{_labels(worker=worker)}}} {value} {at}"


def _many() -> Iterator[str]:
    yield "# TYPE many gauge"
    for number in range(MANY):
        for at in range(END - 1800, END + 1, 60):
            value = 10 + number % 37 + 5 * math.sin(at / 300 + number)
            yield f'many{{n="{number:04d}"}} {value:.2f} {at}'


def _alerts() -> Iterator[str]:
    yield "# TYPE ALERTS gauge"
    fired = (
        ("StoreDown", "critical", 3.55, 3.95),
        ("StoreErrorBudgetBurn", "warning", 3.42, 3.6),
        ("StoreErrorBudgetBurn", "warning", 4.5, 4.6),
        ("QueueDeep", "info", 3.6, 4.2),
    )
    for name, severity, start, end in fired:
        labels = _labels(alertname=name, alertstate="firing", severity=severity, job="app")
        for at in range(START + round(start * 3600), START + round(end * 3600), STEP):
            yield f"ALERTS{{{labels}}} 1 {at}"


def _month() -> Iterator[str]:
    yield "# TYPE month gauge"
    for at in range(END - 30 * 86400, END + 1, 240):
        value = 50 + 30 * math.sin(at / 86400 * 2 * math.pi) + 10 * math.sin(at / 4000)
        yield f'month{{job="node"}} {value:.2f} {at}'


def build_blocks(folder: Path, lines: Iterable[str]) -> None:
    """Write the series as blocks into ``folder``, which Prometheus then starts from."""
    text = folder.with_suffix(".om")
    with text.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
    done = subprocess.run(
        [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration",
         "744h", text, folder],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    text.unlink()
    assert done.returncode == 0, done.stderr[-2000:]


@contextlib.contextmanager
def prometheus(
    folder: Path, config: str = "global: {}\n", port: int | None = None, *options: str
) -> Iterator[str]:
    """A Prometheus over ``folder``, with further options; gives its address once it is ready."""
    port = port or free_port()
    config_file = folder.parent / f"prometheus-{port}.yml"
    config_file.write_text(config)
    log = (folder.parent / f"prometheus-{port}.log").open("wb")
    process = subprocess.Popen(
        [tool("prometheus"), f"--config.file={config_file}", f"--storage.tsdb.path={folder}",
         "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", *options],
        stdout=log, stderr=log, env={**os.environ, "TZ": "UTC"},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        limit = time.monotonic() + 60
        while not _ready(url):
            assert process.poll() is None, Path(log.name).read_text()[-2000:]
            assert time.monotonic() < limit, "Prometheus was not ready within 60 s"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
