"""The load generator of ``agl bench load``, and its run as figures of a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from agl.bench.histogram import Histogram
from agl.bench.loader import KINDS, Load, Loader


def play(port: int, options: argparse.Namespace, pids: Sequence[int]) -> dict[str, Any]:
    """Load a server on this machine; milliseconds, microseconds of CPU, shares of a core.

    Raises:
        EnvironmentFault: the loader cannot be compiled.
        RuntimeError: a request failed, or there was no time for a rollout.
    """
    load = Load(options.clients, options.seconds, options.warmup)
    run = Loader(f"http://127.0.0.1:{port}").play(load, pids)
    if run.failures or run.broken:
        raise RuntimeError(f"{run.failures + run.broken} failed requests; {run.first_failure}")
    if not run.rollouts:
        raise RuntimeError(
            f"no rollout was finished in {run.seconds:.1f} s; give it more --seconds"
        )
    return {
        "seconds": run.seconds,
        "rollouts": run.rollouts,
        "requests": run.requests,
        "rollouts_per_second": run.rollouts_per_second,
        "loader_cpu_share": run.loader_cpu_share,
        "server_cpu_share": run.server_cpu_share,
        "server_cpu_us_per_request": 1e6 * run.server_cpu_per_request,
        **{kind: _latencies(run.latencies[kind]) for kind in ("all", *KINDS)},
    }


def _latencies(histogram: Histogram) -> dict[str, float]:
    return {
        "count": histogram.count,
        "p50_ms": 1e3 * histogram.percentile(0.5),
        "p99_ms": 1e3 * histogram.percentile(0.99),
        "max_ms": 1e3 * histogram.maximum,
    }
