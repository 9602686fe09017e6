"""``agl bench scenario``: play load against a running store and check what comes of it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util

from agl.cli._bench_options import add_json, add_store_url, deliver, positive, seconds
from agl.errors import EnvironmentFault

DESCRIPTION = """\
Play a real training loop against a running store, over HTTP only: resources and batches from an
algorithm, runner processes that dequeue, heartbeat, run a tool-using arithmetic agent and export
its spans through OTLP. Every rollout is read back and verified; exit status 1 on any mismatch."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", choices=["minimal"], help="which training loop")
    add_store_url(parser)
    for option, default, meaning in (
        ("--rollouts", 200, "how many to play"),
        ("--batch-size", 50, "how many the algorithm enqueues at a time"),
        ("--runners", 8, "how many runner processes"),
    ):
        parser.add_argument(
            option,
            type=positive,
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="which tasks to draw (default: 0)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="give up after this long (default: %(default)g)",
    )
    parser.add_argument(
        "--prometheus-url",
        metavar="URL",
        help="also require that agl_rollouts_total rises by what was played",
    )
    add_json(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Play the scenario; 0 when everything was verified, 1 when something was not.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: the store or Prometheus does not answer, or a package is missing.
    """
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        raise EnvironmentFault(
            "the OTLP exporter is not installed", remedy="install agl-stack[bench]"
        )
    return _play_minimal(options, prog)


def _play_minimal(options: argparse.Namespace, prog: str) -> int:
    from rich.console import Console

    from agl.bench.report import ProgressLine, Summary
    from agl.bench.scenario import MinimalScenario, ScenarioOptions
    from agl.bench.target import checked_url

    prometheus_url: str | None = options.prometheus_url
    wanted = ScenarioOptions(
        store_url=checked_url(options.store_url, "--store-url"),
        rollouts=options.rollouts,
        batch_size=options.batch_size,
        runners=options.runners,
        seed=options.seed,
        timeout=options.timeout,
        prometheus_url=checked_url(prometheus_url, "--prometheus-url") if prometheus_url else None,
    )
    progress = ProgressLine(Console(stderr=True), wanted.rollouts)

    async def play() -> Summary:
        return await MinimalScenario(wanted, progress).play()

    with progress.shown():
        summary = asyncio.run(play())
    return deliver(summary.to_result(), summary.to_text(), options.json, prog)
