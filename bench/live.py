"""A store, its exporter and a Prometheus that scrapes them, for measurements that look at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from agl.bench.contenders import HOST, PORT, Contender, serving
from agl.config import cache_folder
from agl.errors import EnvironmentFault
from agl.store.rest.wire import HEALTH_PATH
from bench.servers import ROOT, metrics_folder

ENSURE = ROOT / "tests" / "lab" / "prometheus" / "ensure.sh"
SCRAPE_SECONDS = 1
_READY_SECONDS = 120.0
_CONFIG = """\
global: {{scrape_interval: {interval}s}}
scrape_configs:
  - job_name: app
    metrics_path: /v1/prometheus
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True)
class Live:
    """Addresses, the data folder of Prometheus, and the processes of the store."""

    store: str
    prometheus: str
    data: Path
    pids: list[int]


def find_prometheus() -> str:
    """Path of a Prometheus: that of the test tools, else what is installed.

    Raises:
        EnvironmentFault: there is none, and the tools cannot be fetched either.
    """
    tools = Path(os.environ.get("AGL_LAB_TOOLS") or cache_folder() / "lab" / "prometheus")
    for path in (str(tools / "prometheus"), shutil.which("prometheus")):
        if path is not None and os.access(path, os.X_OK):
            return path
    done = subprocess.run(["bash", str(ENSURE), "--no-build"], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise EnvironmentFault(
            f"there is no Prometheus, and its tools cannot be fetched: {lines[-1]}",
            remedy=f"sudo apt-get install -y prometheus, or see {ENSURE.relative_to(ROOT)}",
        )
    return str(tools / "prometheus")


@contextlib.contextmanager
def living(folder: Path) -> Generator[Live]:
    """Run all three while inside; Prometheus' data is below ``folder``. Its admin API is on.

    Raises:
        EnvironmentFault: one of them does not start.
    """
    agl = str(Path(sys.executable).with_name("agl"))
    prometheus = find_prometheus()
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(metrics_folder())
        environ = {"PROMETHEUS_MULTIPROC_DIR": str(shared)}
        here = ("--host", HOST, "--port", PORT, "--log-level", "WARNING")

        def start(name: str, words: tuple[str, ...], path: str) -> tuple[str, list[int]]:
            contender = Contender(name, words, environ)
            server = stack.enter_context(serving(contender, path, _READY_SECONDS))
            return server.url, server.pids()

        store, pids = start("store", (agl, "store", *here, "--tracker", "prometheus"), HEALTH_PATH)
        options = ("--store-url", store)
        exporter, _ = start("exporter", (agl, "prometheus", *here, *options), "/health")
        config, data = folder / "prometheus.yml", folder / "prometheus"
        target = exporter.removeprefix("http://")
        config.write_text(_CONFIG.format(interval=SCRAPE_SECONDS, target=target))
        words = (
            *(prometheus, f"--config.file={config}", f"--storage.tsdb.path={data}"),
            *(f"--web.listen-address={HOST}:{PORT}", "--web.enable-admin-api"),
        )
        url, _ = start("prometheus", words, "/-/ready")
        _wait_for_scrapes(url)
        yield Live(store, url, data, pids)


def _wait_for_scrapes(prometheus: str) -> None:
    """Until Prometheus has seen the store, whose counters begin to count for it then."""
    query = urlencode({"query": "count_over_time(agl_rollouts_total[1m]) > 1"})
    address = f"{prometheus}/api/v1/query?{query}"
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urlopen(address, timeout=5) as answer:  # noqa: S310
            if json.load(answer)["data"]["result"]:
                return
        time.sleep(0.2)
    raise EnvironmentFault("Prometheus does not scrape the exporter")
