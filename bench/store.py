"""Speed of the store server over HTTP, as ratios to the yardstick within one run.

Each round runs every variant once, in turns, against a fresh server; figures are medians over the
rounds, ratios are taken within a round first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from agl.bench.loader import BUSY_SHARE, ROLLOUT
from agl.bench.results import Result
from agl.cli import CommandParser
from agl.cli._bench_options import not_negative, positive, seconds
from bench import entry
from bench.documents import document, in_rounds
from bench.loading import play
from bench.servers import resident_mib, serving

VARIANTS = ("yardstick", "ours", "ours-no-tracker")
Run = dict[str, Any]


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    started = time.time()
    report = measure(options)
    print(text_of(report))
    if options.json is not None:
        result_of(report, started).write(options.json)
    return 0


def result_of(report: dict[str, Any], started: float) -> Result:
    """The report as the document that comparing and pages of results read."""
    figures = in_rounds(report["rounds"], report["variants"], _FIGURES, _RATIOS)
    return document("store", report["load"], figures, started, report, report["notes"])


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="scripts/bench store", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=positive, default=5, help="how often each variant runs (default: 5)")
    add("--seconds", type=seconds, default=8.0, help="measured seconds of a run (default: 8)")
    add("--warmup", type=not_negative, default=2.0, help="seconds before that (default: 2)")
    add("--clients", type=positive, default=32, help="keep-alive connections (default: 32)")
    add(
        "--only",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        help="variants (default: all)",
    )
    add("--json", type=entry.target, metavar="FILE", help="write the result there as well")
    return parser


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds and put the figures together."""
    rounds: list[dict[str, Run]] = []
    for number in range(options.rounds):
        turn = number % len(options.only)
        order = [*options.only[turn:], *options.only[:turn]]
        rounds.append({variant: _run(variant, options) for variant in order})
        print(_progress(number + 1, rounds[-1]), file=sys.stderr, flush=True)
    return {
        "load": {
            "clients": options.clients,
            "seconds": options.seconds,
            "warmup_seconds": options.warmup,
            "rounds": options.rounds,
            "rollout": ROLLOUT,
        },
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "variants": {variant: _medians(rounds, variant) for variant in options.only},
        "ratios": _ratios(rounds),
        "notes": _notes(rounds),
        "rounds": rounds,
    }


def _run(variant: str, options: argparse.Namespace) -> Run:
    with serving(variant) as server:
        run: Run = play(server.port, options, [server.pid])
        run["ready_seconds"] = server.ready_seconds
        run["idle_mib"] = server.idle_mib
        run["loaded_mib"] = resident_mib(server.pid)
        run["p99_to_p50"] = run["all"]["p99_ms"] / run["all"]["p50_ms"]
    return run


_FIGURES: dict[str, Callable[[Run], float]] = {
    "rollouts_per_second": lambda run: run["rollouts_per_second"],
    "p50_ms": lambda run: run["all"]["p50_ms"],
    "p99_ms": lambda run: run["all"]["p99_ms"],
    "max_ms": lambda run: run["all"]["max_ms"],
    "p99_to_p50": lambda run: run["p99_to_p50"],
    "server_cpu_us_per_request": lambda run: run["server_cpu_us_per_request"],
    "loader_cpu_share": lambda run: run["loader_cpu_share"],
    "ready_seconds": lambda run: run["ready_seconds"],
    "idle_mib": lambda run: run["idle_mib"],
    "loaded_mib": lambda run: run["loaded_mib"],
}


def _medians(rounds: list[dict[str, Run]], variant: str) -> dict[str, float]:
    return {
        name: round(median(figure(runs[variant]) for runs in rounds), 3)
        for name, figure in _FIGURES.items()
    }


_RATIOS = {
    "throughput, tracker on / yardstick": ("rollouts_per_second", "ours", "yardstick"),
    "throughput, tracker off / yardstick": ("rollouts_per_second", "ours-no-tracker", "yardstick"),
    "throughput, tracker on / off": ("rollouts_per_second", "ours", "ours-no-tracker"),
    "CPU per request, yardstick / tracker on": ("server_cpu_us_per_request", "yardstick", "ours"),
    "CPU per request, tracker off / on": ("server_cpu_us_per_request", "ours-no-tracker", "ours"),
}


def _ratios(rounds: list[dict[str, Run]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, (figure, over, under) in _RATIOS.items():
        if not {over, under} <= rounds[0].keys():
            continue
        values = [runs[over][figure] / runs[under][figure] for runs in rounds]
        found[name] = {
            "median": round(median(values), 3),
            "lowest": round(min(values), 3),
            "highest": round(max(values), 3),
        }
    return found


def _notes(rounds: list[dict[str, Run]]) -> list[str]:
    runs = [(variant, run) for one in rounds for variant, run in one.items()]
    notes = [
        f"{variant}: the loader took {run['loader_cpu_share']:.0%} of a core; its speed may limit"
        for variant, run in runs
        if run["loader_cpu_share"] > BUSY_SHARE
    ]
    notes += [
        f"{variant}: the server got only {run['server_cpu_share']:.0%} of a core; other programs "
        "are running, absolute figures are too low"
        for variant, run in runs
        if run["server_cpu_share"] < 0.9
    ]
    return list(dict.fromkeys(notes))


def _progress(number: int, runs: dict[str, Run]) -> str:
    figures = ", ".join(f"{name} {run['rollouts_per_second']:.0f}/s" for name, run in runs.items())
    return f"round {number}: {figures}"


def text_of(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    names = list(report["variants"])
    lines = [f"{'median of ' + str(report['load']['rounds']) + ' rounds':30}"]
    lines[0] += "".join(f"{name:>17}" for name in names)
    for figure in _FIGURES:
        values = [report["variants"][name][figure] for name in names]
        lines.append(f"{figure:30}" + "".join(f"{value:17.2f}" for value in values))
    lines += ["", f"{'ratio within a round':42}{'median':>9}{'lowest':>9}{'highest':>9}"]
    for name, ratio in report["ratios"].items():
        lines.append(f"{name:42}" + "".join(f"{ratio[key]:9.2f}" for key in ratio))
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(entry.run("bench store", lambda: main(sys.argv[1:])))
