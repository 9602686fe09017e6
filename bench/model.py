"""The store on paper: what an operation costs, from 1 to 10 million rollouts and 1 to 96 processes.

Bytes are counted and CPU is measured here, in a store in memory that is nearly empty and in one of
as many rollouts as --rollouts says (or as a result of ``bench growth --json`` had, given with
--growth). Beyond that the cost of a request is continued along the logarithm of the size, through
both. Processes on MongoDB are simulated (``bench/simulation.py``) with the costs of a command and
of an operation that docs/performance.md states; --cost NAME=SECONDS changes one.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import bson

from agl.bench.analysis.text import grid
from agl.bench.pages.units import spoken
from agl.bench.results import Figure, Result, read_result
from agl.cli import CommandParser
from agl.cli._bench_options import positive
from agl.errors import UsageError
from agl.store.collection.mongo.documents import model_fields
from agl.types import Rollout, Span
from bench import entry
from bench.documents import document
from bench.growth import NEVER, SMALL, ClockedStore, Load
from bench.growth import measure as measure_growth
from bench.in_process import InProcessServer
from bench.simulation import Costs, Outcome, Site, simulate

SIZES = (1, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PROCESSES = (1, 2, 4, 8, 16, 32, 64, 96)
CLIENTS = 1024
MONGO_CORES = 16
SPANS = 4
HERE = (32, 2)
"""Clients and cores of the machine that the store on MongoDB was measured on."""

MEASURED_COMMANDS = {1: 0.11, 4: 0.45}
"""Commands a request there, by processes (docs/performance.md, MongoDB)."""

ROUND_TRIPS = {
    "dequeue": "find, bulkWrite",
    "start": "find, bulkWrite",
    "add_span": "bulkWrite",
    "update_attempt": "bulkWrite, after a find where it was not known",
    "get by id": "find",
    "first page by status": "find, and the totals that are kept",
    "spans of a rollout": "find",
}
"""Of one alone on MongoDB, as tests/integration/test_mongo_round_trips.py counts them."""


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    started = time.time()
    costs = changed(Costs(), options.cost)
    growth, rollouts = growth_of(options)
    bytes_of = asyncio.run(sizes_of_requests())
    outcomes = {n: simulate(Site(options.clients, n, n, options.mongo_cores), costs)
                for n in PROCESSES}  # fmt: skip
    here = {n: simulate(Site(HERE[0], n, HERE[1]), costs) for n in MEASURED_COMMANDS}
    print(text_of(growth, rollouts, bytes_of, outcomes, here))
    if options.json is not None:
        parameters = {
            "measured rollouts": rollouts,
            "clients": options.clients,
            "cores of MongoDB": options.mongo_cores,
            **asdict(costs),
        }
        figures = [*growth_figures(growth, rollouts), *process_figures(outcomes)]
        details = {"bytes": bytes_of, "growth": growth}
        result_of(parameters, figures, started, details).write(options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="scripts/bench model", description=__doc__)
    add = parser.add_argument
    add(
        "--rollouts",
        type=positive,
        default=20_000,
        help="how many to measure (default: %(default)s)",
    )
    add("--growth", type=Path, metavar="FILE", help="a result of bench growth, instead")
    add("--clients", type=positive, default=CLIENTS, help="runners (default: %(default)s)")
    add("--mongo-cores", type=positive, default=MONGO_CORES, help="(default: %(default)s)")
    add(
        "--cost",
        action="append",
        default=[],
        metavar="NAME=SECONDS",
        help=f"one of {', '.join(field.name for field in fields(Costs))}; may be repeated",
    )
    add("--json", type=entry.target, metavar="FILE", help="write the result there as well")
    return parser


def changed(costs: Costs, words: Sequence[str]) -> Costs:
    """Costs with some of them set. Raises UsageError."""
    for word in words:
        name, _, value = word.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if name not in asdict(costs) or not 0 <= seconds < 60:
            raise UsageError(f"--cost {word!r} is not NAME=SECONDS with a known name")
        costs = replace(costs, **{name: seconds})
    return costs


def growth_of(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """What ``bench growth`` measured with the tracker, and at how many rollouts.

    Raises:
        UsageError: the file is no such result.
    """
    if options.growth is None:
        return measure_growth("tracker", options.rollouts, SPANS), options.rollouts
    result = read_result(options.growth)
    if result.kind != "growth" or "tracker" not in result.details:
        raise UsageError(f"{options.growth}: not a result of scripts/bench growth")
    return result.details["tracker"], int(result.parameters["rollouts"])


def continued(small: float, full: float, measured: int, size: int) -> float:
    """A cost at ``size`` rollouts, from that at :data:`SMALL` and at ``measured``, along the
    logarithm; never below the measured ones, and the first below :data:`SMALL`."""
    if size <= SMALL:
        return small
    steps = math.log(size / SMALL) / math.log(measured / SMALL)
    return max(small + (full - small) * steps, min(small, full))


async def sizes_of_requests() -> dict[str, tuple[int, int]]:
    """Bytes of path, query and body of a request, and of the body of its answer."""
    store = ClockedStore(eviction_memory_threshold=NEVER)
    load = Load(store, SMALL, SPANS)
    await load.start()
    await load.fill(10)
    found: dict[str, tuple[int, int]] = {}
    for name, block in load.requests(InProcessServer(store, None)).items():
        call: Any = block()[0]
        sent = sum(map(len, (*call.args[1:], *call.keywords.values())))
        found[name] = sent, len(await call())
    return found


def documents_of() -> tuple[int, int]:
    """Bytes of BSON of a rollout with its attempt, and of a span."""
    load = Load(ClockedStore(), 1, 1)

    async def made() -> tuple[Rollout, Span]:
        rollout = await load.store.start_rollout({"task": 1}, worker_id="Worker-1")
        return rollout, load.span((rollout.rollout_id, rollout.attempt.attempt_id), 1)

    return tuple(len(bson.encode(model_fields(one))) for one in asyncio.run(made()))  # type: ignore[return-value] # two of two


def growth_figures(growth: dict[str, Any], measured: int) -> list[Figure]:
    """CPU of each request and memory at every size."""
    found = [
        Figure(
            name=f"{size:,} rollouts: CPU of {name}",
            unit="s",
            better="lower",
            samples=(continued(cost["small_us"], cost["full_us"], measured, size) / 1e6,),
        )
        for name, cost in growth["requests"].items()
        for size in SIZES
    ]
    each = memory_of(growth)
    return found + [
        Figure(
            name=f"{size:,} rollouts: memory, {SPANS} spans each",
            unit="bytes",
            better="lower",
            samples=(sum(each) * size,),
        )
        for size in SIZES
    ]


def memory_of(growth: dict[str, Any]) -> tuple[float, float]:
    """Bytes in memory of a rollout with its attempt, and of its spans."""
    span = growth["memory_per_span_to_json"] * growth["span_json_bytes"]
    return growth["bytes_per_rollout"], SPANS * span


def process_figures(outcomes: dict[int, Outcome]) -> list[Figure]:
    """What the simulated processes reach."""
    wanted = (
        ("rollouts a second", "1/s", "higher", "rollouts"),
        ("median request", "s", "lower", "p50"),
        ("commands a request", "ratio", "lower", "commands"),
        ("cores of MongoDB in use", "count", "neither", "mongo_cores"),
    )
    return [
        Figure(
            name=f"{number} processes: {name}",
            unit=unit,
            better=better,  # type: ignore[arg-type] # one of the three
            samples=(getattr(outcome, attribute),),
        )
        for name, unit, better, attribute in wanted
        for number, outcome in outcomes.items()
    ]


def result_of(
    parameters: dict[str, Any], figures: Sequence[Figure], started: float, details: dict[str, Any]
) -> Result:
    """The document; nothing in it was measured at that size."""
    return document("model", parameters, figures, started, details)


def text_of(
    growth: dict[str, Any],
    measured: int,
    bytes_of: dict[str, tuple[int, int]],
    outcomes: dict[int, Outcome],
    here: dict[int, Outcome],
) -> str:
    """Three tables: an operation, sizes, processes."""
    rollout, span = documents_of()
    each = memory_of(growth)
    operations = [
        (name, f"{sent:,}", f"{back:,}", ROUND_TRIPS[name],
         spoken(growth["requests"][name]["small_us"] / 1e6, "s"))
        for name, (sent, back) in bytes_of.items()
    ]  # fmt: skip
    sizes = [
        (f"{size:,}",
         *(spoken(continued(cost["small_us"], cost["full_us"], measured, size) / 1e6, "s")
           for cost in growth["requests"].values()),
         spoken(each[0] * size, "bytes"), spoken(each[1] * size, "bytes"))
        for size in SIZES
    ]  # fmt: skip
    processes = [
        (str(number), spoken(one.rollouts, "1/s"), spoken(one.rollouts / outcomes[1].rollouts,
         "ratio"), spoken(one.p50, "s"), spoken(one.p95, "s"), spoken(one.commands, "ratio"),
         spoken(one.store_cores, "count"), spoken(one.mongo_cores, "count"))
        for number, one in outcomes.items()
    ]  # fmt: skip
    checks = [
        f"{number} processes, {HERE[0]} clients, {HERE[1]} cores for all: {one.commands:.2f}"
        f" commands a request simulated, {MEASURED_COMMANDS[number]:.2f} measured"
        for number, one in here.items()
    ]
    return "\n".join(
        [
            "An operation",
            grid(("", "bytes sent", "answered", "round trips", "CPU in memory"), operations),
            f"BSON: {rollout:,} bytes of a rollout with its attempt, {span:,} of a span",
            "",
            f"In memory, one process (measured at {SMALL:,} and {measured:,}, else continued)",
            grid(("rollouts", *growth["requests"], "rollouts take", "spans take"), sizes),
            "",
            f"On MongoDB, a core for each process (simulated, {CLIENTS:,} clients)",
            grid(
                ("processes", "rollouts", "of one", "p50", "p95", "commands", "cores", "MongoDB"),
                processes,
            ),
            *checks,
        ]
    )


if __name__ == "__main__":
    sys.exit(entry.run("bench model", lambda: main(sys.argv[1:])))
