"""``agl bench scenario``: play load against a running store and check what comes of it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from typing import Any, get_args

from agl.bench.presets import PRESETS, Mode, Preset
from agl.cli._bench_options import (
    add_json,
    add_store_url,
    deliver,
    fraction,
    not_negative,
    positive,
    seconds,
)
from agl.errors import EnvironmentFault

DESCRIPTION = """\
Play a real training loop against a running store, over HTTP only: resources and rollouts from an
algorithm, runner processes that dequeue, heartbeat, run an agent and export its spans through OTLP.
Every rollout is read back and verified; exit status 1 on any mismatch.

scenarios (mode, rollouts, runners):
""" + "\n".join(
    f"  {name:18}{one.what} ({one.mode}, {one.rollouts}, {one.runners})"
    for name, one in PRESETS.items()
)

_COUNTS = (
    ("--rollouts", "how many to play"),
    ("--batch-size", "how many the algorithm enqueues at a time"),
    ("--remaining", "batch_partial: enqueue more when fewer than so many are unfinished"),
    ("--concurrency", "single: how many are under way"),
    ("--runners", "how many runner processes"),
    ("--max-rounds", "most rounds of an agent, of three spans each"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", choices=PRESETS, metavar="SCENARIO", help="see above")
    add_store_url(parser)
    add = parser.add_argument
    add(
        "--scale",
        type=fraction,
        default=1.0,
        metavar="F",
        help="play F times as many rollouts in batches F times as large with F times as many "
        "runners, 0 < F <= 1; the options below are not scaled (default: 1)",
    )
    add("--mode", choices=get_args(Mode), help="how the algorithm enqueues and waits")
    for option, meaning in _COUNTS:
        add(option, type=positive, metavar="N", help=meaning)
    add("--sleep-seconds", type=not_negative, metavar="S", help="longest sleep within a span")
    add("--poll-seconds", type=seconds, metavar="S", help="pause between two looks")
    add("--seed", type=int, default=0, metavar="N", help="which tasks to draw (default: 0)")
    add("--timeout", type=seconds, metavar="S", help="give up after this long")
    add(
        "--stall-seconds",
        type=seconds,
        default=300.0,
        metavar="S",
        help="give up when no rollout is finished for so long; warn after half (default: 300)",
    )
    add(
        "--prometheus-url",
        metavar="URL",
        help="also require that agl_rollouts_total rises by what was played",
    )
    add_json(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Play the scenario; 0 when everything was verified, 1 when something was not, 130 on Ctrl-C.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: the store or Prometheus does not answer, or a package is missing.
    """
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        raise EnvironmentFault(
            "the OTLP exporter is not installed", remedy="install agl-stack[bench]"
        )
    return _play(options, preset_of(options), prog)


def preset_of(options: argparse.Namespace) -> Preset:
    """Return the preset that the options name, scaled, with what else they ask for."""
    names = ("mode", "sleep_seconds", "poll_seconds", "timeout")
    names = (*names, *(option[2:].replace("-", "_") for option, _ in _COUNTS))
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    return PRESETS[options.name].scaled(options.scale).changed(given)


def _play(options: argparse.Namespace, preset: Preset, prog: str) -> int:
    from rich.console import Console

    from agl.bench.interrupts import interruption
    from agl.bench.report import ProgressLine
    from agl.bench.scenario import Scenario, ScenarioOptions
    from agl.bench.target import checked_url

    prometheus_url: str | None = options.prometheus_url
    wanted = ScenarioOptions(
        name=options.name,
        preset=preset,
        store_url=checked_url(options.store_url, "--store-url"),
        seed=options.seed,
        stall_seconds=options.stall_seconds,
        prometheus_url=checked_url(prometheus_url, "--prometheus-url") if prometheus_url else None,
    )
    progress = ProgressLine(
        Console(stderr=True), preset.rollouts, by_batches=preset.mode == "batch"
    )
    with interruption() as wish, progress.shown():
        summary = asyncio.run(Scenario(wanted, progress, wish).play())
    return deliver(summary.to_result(), summary.to_text(), options.json, prog)
