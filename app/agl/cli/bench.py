"""``agl bench``: play load against a running store and check what comes of it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys

from agl.cli import CommandParser
from agl.errors import EnvironmentFault

_DESCRIPTION = """\
Play a real training loop against a running store, over HTTP only: resources and batches from an
algorithm, runner processes that dequeue, heartbeat, run a tool-using arithmetic agent and export
its spans through OTLP. Every rollout is read back and verified; exit status 1 on any mismatch."""


def main(argv: list[str], prog: str) -> int:
    """Run ``agl bench``; 0 when everything was verified, 1 when something was not.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: the store or Prometheus does not answer, or a package is missing.
    """
    options = _parser(prog).parse_args(argv)
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        raise EnvironmentFault(
            "the OTLP exporter is not installed", remedy="install agl-stack[bench]"
        )
    return _play_minimal(options, prog)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=prog, description="Play load against a running store.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    scenario = commands.add_parser(
        "scenario", help="play a training loop", description=_DESCRIPTION
    )
    scenario.add_argument("name", choices=["minimal"], help="which training loop")
    scenario.add_argument(
        "--store-url",
        default="http://localhost:4747",
        metavar="URL",
        help="store, with credentials where it asks for them: http://agl:TOKEN@host:4747 "
        "(default: %(default)s)",
    )
    for option, default, meaning in (
        ("--rollouts", 200, "how many to play"),
        ("--batch-size", 50, "how many the algorithm enqueues at a time"),
        ("--runners", 8, "how many runner processes"),
    ):
        scenario.add_argument(
            option,
            type=_positive,
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    scenario.add_argument(
        "--seed", type=int, default=0, metavar="N", help="which tasks to draw (default: 0)"
    )
    scenario.add_argument(
        "--timeout",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="give up after this long (default: %(default)g)",
    )
    scenario.add_argument(
        "--prometheus-url",
        metavar="URL",
        help="also require that agl_rollouts_total rises by what was played",
    )
    scenario.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


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
    print(summary.to_json() if options.json else summary.to_text())
    if summary.ok:
        return 0
    unverified = summary.rollouts - summary.verified
    print(
        f"{prog}: error: {len(summary.problems)} failures, {unverified} of {summary.rollouts} "
        "rollouts not verified",
        file=sys.stderr,
    )
    return 1
