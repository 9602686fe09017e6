"""The store on MongoDB: its speed over HTTP beside bare inserts into the same server, how soon
waits end, what size costs, and whether the whole contract is kept.

Each round runs every variant once, in turns, on databases of their own; figures are medians over
the rounds, ratios are taken within a round first. The loader's rollout is that of ``bench store``:
start, 4 spans of 8 attributes of 80 characters, finish. The yardstick inserts such a span, waits
for its acknowledgement by the majority, and inserts the next one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

from agl.bench.results import Result
from agl.cli import CommandParser
from agl.cli._bench_options import not_negative, positive, seconds
from bench import entry
from bench.documents import document, flat, in_rounds
from bench.loading import play
from bench.mongo_contract import contract, is_kept
from bench.mongo_growth import growth
from bench.mongo_servers import (
    STAND_IN,
    MongoServer,
    any_server,
    cpu_seconds,
    describe,
    inserting,
    serving,
)
from bench.mongo_waits import waits

SPANS = 4
REQUESTS = 6
"""Of a rollout: start, spans, finish."""

PROCESSES = (1, 2, 4)
YARDSTICKS = ("yardstick", "yardstick-bare")
VARIANTS = (
    *(f"{name}-{n}" for name in YARDSTICKS for n in PROCESSES[:2]),
    *(f"ours-{n}" for n in PROCESSES),
)
PARTS = ("speed", "waits", "growth", "contract")

Run = dict[str, Any]

_FIGURES = (
    "spans_per_second",
    "p50_ms",
    "p99_ms",
    "store_cpu_us_per_request",
    "mongo_cpu_us_per_span",
    "cpu_us_per_span",
    "loader_cpu_share",
    "client_cpu_us",
)
_RATIOS = {
    "spans / indexed inserts, 1 process": ("spans_per_second", "ours-1", "yardstick-1"),
    "spans / indexed inserts, 2 processes": ("spans_per_second", "ours-2", "yardstick-2"),
    "spans / bare inserts, 1 process": ("spans_per_second", "ours-1", "yardstick-bare-1"),
    "spans / bare inserts, 2 processes": ("spans_per_second", "ours-2", "yardstick-bare-2"),
    "CPU of an insert / of a span, 1 process": ("cpu_us_per_span", "yardstick-1", "ours-1"),
    "CPU of an insert / of a span, 2 processes": ("cpu_us_per_span", "yardstick-2", "ours-2"),
    "spans, 2 processes / 1": ("spans_per_second", "ours-2", "ours-1"),
    "inserts, 2 processes / 1": ("spans_per_second", "yardstick-2", "yardstick-1"),
    "store's CPU per request, 4 / 1": ("store_cpu_us_per_request", "ours-4", "ours-1"),
    "store's CPU per request, 2 / 1": ("store_cpu_us_per_request", "ours-2", "ours-1"),
}


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    started = time.time()
    with any_server(*STAND_IN) as server:
        report: dict[str, Any] = {"server": describe(server), "cores": os.cpu_count()}
        if "speed" in options.parts:
            report |= measure(server, options)
        if "waits" in options.parts:
            report["waits"] = waits(server)
        if "growth" in options.parts:
            report["growth"] = growth(server, options.rollouts)
        if "contract" in options.parts:
            report["contract"] = contract()
    print(text_of(report))
    if options.json is not None:
        result_of(report, options, started).write(options.json)
    return 0 if is_kept(report.get("contract", {})) else 1


def result_of(report: dict[str, Any], options: argparse.Namespace, started: float) -> Result:
    """The report as the document that comparing and pages of results read."""
    figures = [one for part in PARTS[1:] if part in report for one in flat(part, report[part])]
    if "rounds" in report:
        wanted = {name: partial(_of, name) for name in _FIGURES}
        lower = [name for name in _RATIOS if name.startswith("store's CPU")]
        speed = in_rounds(report["rounds"], report["variants"], wanted, _RATIOS, lower)
        figures = speed + figures
    names = ("parts", "rounds", "seconds", "warmup", "clients", "rollouts")
    parameters = {"server": report["server"], **{name: getattr(options, name) for name in names}}
    return document("mongo", parameters, figures, started, report)


def _of(name: str, run: Run) -> float | None:
    return run.get(name)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="scripts/bench mongo",
        description=__doc__,
        epilog="AGL_TEST_MONGO_URI or AGL_TEST_MONGO_SERVER choose the server.",
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what (default: all)")
    add("--rounds", type=positive, default=3, help="how often each variant runs (default: 3)")
    add("--seconds", type=seconds, default=6.0, help="measured seconds of a run (default: 6)")
    add("--warmup", type=not_negative, default=2.0, help="seconds before that (default: 2)")
    add(
        "--clients", type=positive, default=32, help="connections, or inserts at once (default: 32)"
    )
    add("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="(default: all)")
    add("--rollouts", type=positive, default=1_000_000, help="a full store (default: %(default)s)")
    add("--json", type=entry.target, metavar="FILE", help="write the result there as well")
    return parser


def measure(server: MongoServer, options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds and put the figures together."""
    rounds: list[dict[str, Run]] = []
    for number in range(options.rounds):
        turn = number % len(options.only)
        order = [*options.only[turn:], *options.only[:turn]]
        rounds.append({name: _with_sum(_run(server, name, options)) for name in order})
        rates = (f"{name} {run['spans_per_second']:.0f}/s" for name, run in rounds[-1].items())
        print(f"round {number + 1}: {', '.join(rates)}", file=sys.stderr, flush=True)
    return {
        "clients": options.clients,
        "seconds": options.seconds,
        "variants": {variant: _medians(rounds, variant) for variant in options.only},
        "ratios": _ratios(rounds),
        "load_average": os.getloadavg(),
        "rounds": rounds,
    }


def _run(server: MongoServer, variant: str, options: argparse.Namespace) -> Run:
    name, _, processes = variant.rpartition("-")
    database = server.new_database()
    seconds = options.warmup, options.seconds
    try:
        if name in YARDSTICKS:
            indexes = name == "yardstick"
            return inserting(
                server, database, int(processes), options.clients, seconds, indexes=indexes
            )
        return _serve(server, database, int(processes), options)
    finally:
        server.drop(database)


def _serve(server: MongoServer, database: str, processes: int, options: argparse.Namespace) -> Run:
    with serving(server, database, processes) as store:
        before = 0.0 if server.pid is None else cpu_seconds(server.pid)
        run = play(store.port, options, store.pids)
        after = 0.0 if server.pid is None else cpu_seconds(server.pid)
        rate = SPANS * run["rollouts_per_second"]
        whole = options.warmup + options.seconds
        return {
            "spans_per_second": rate,
            "p50_ms": run["all"]["p50_ms"],
            "p99_ms": run["all"]["p99_ms"],
            "store_cpu_us_per_request": run["server_cpu_us_per_request"],
            "mongo_cpu_us_per_span": 1e6 * (after - before) / (rate * whole),
            "loader_cpu_share": run["loader_cpu_share"],
            "span_p50_ms": run["add_span"]["p50_ms"],
        }


def _with_sum(run: Run) -> Run:
    """The run and the CPU time of a span in all: in the store, or the client, and in MongoDB."""
    own = run.get("client_cpu_us", run.get("store_cpu_us_per_request", 0.0) * REQUESTS / SPANS)
    return {**run, "cpu_us_per_span": own + run["mongo_cpu_us_per_span"]}


def _medians(rounds: list[dict[str, Run]], variant: str) -> dict[str, float]:
    runs = [one[variant] for one in rounds]
    return {
        name: round(median(run[name] for run in runs), 3) for name in _FIGURES if name in runs[0]
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


def text_of(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    lines = [f"server: {report['server']}"]
    if "variants" in report:
        variants: Mapping[str, Mapping[str, float]] = report["variants"]
        lines.append(f"{'medians':26}" + "".join(f"{name:>18}" for name in variants))
        for figure in _FIGURES:
            values = [run.get(figure) for run in variants.values()]
            if any(value is not None for value in values):
                cells = (" " * 18 if v is None else f"{v:18.2f}" for v in values)
                lines.append(f"{figure:26}" + "".join(cells))
        lines += ["", f"{'ratio within a round':42}{'median':>9}{'lowest':>9}{'highest':>9}"]
        for name, ratio in report["ratios"].items():
            lines.append(f"{name:42}" + "".join(f"{ratio[key]:9.2f}" for key in ratio))
        lines.append("load average: " + ", ".join(f"{x:.1f}" for x in report["load_average"]))
    for part in PARTS[1:]:
        if part in report:
            lines += ["", json.dumps({part: report[part]}, indent=2)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(entry.run("bench mongo", lambda: main(sys.argv[1:])))
