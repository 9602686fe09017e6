"""What a request costs in the server's Python, counted and not timed, so that CI can hold it.

Requests are handed to the application in this process, and every instruction of bytecode and every
call of a C function that one needs is counted. The counts are the same on every machine with the
same Python and the same packages; what happens inside C functions is not in them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from types import FrameType
from typing import Any

from agl.bench.compare import as_result, as_text, compare
from agl.bench.results import Figure, Result, read_result
from agl.cli import CommandParser
from agl.utils.metrics import PrometheusMetricsBackend
from agl.utils.ownership import share_objects
from bench import entry
from bench.growth import NEVER, Call, ClockedStore, Load
from bench.in_process import InProcessServer
from bench.servers import ROOT

BASELINE = ROOT / "bench" / "cost.json"
GATE = 0.97
"""A route may become dearer by 3 % before somebody has to look."""

REBASELINE = f"./scripts/bench cost --json {BASELINE.relative_to(ROOT)}"
ROLLOUTS = 200
ROUNDS = 3


class Counter:
    """Counts what this thread executes while it is used as a context."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Counter:
        sys.setprofile(self._call)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.count += 1
        return self._trace

    def _call(self, _: FrameType, event: str, __: Any) -> None:
        if event == "c_call":
            self.count += 1


def main(arguments: list[str]) -> int:
    parser = CommandParser(prog="scripts/bench cost", description=__doc__)
    parser.add_argument(
        "--json", type=entry.target, metavar="FILE", help="write the result there as well"
    )
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts have another order in each process otherwise, and loops over them end
        # earlier or later.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bench.cost", *arguments])  # noqa: S606
    result = measured()
    if options.json is not None:
        result.write(options.json)
    for figure in result.figures:
        print(f"{figure.name:32}{figure.median:9,.0f} instructions and C calls")
    if not BASELINE.is_file() or (reason := incomparable(result)):
        print(f"not compared: {reason if BASELINE.is_file() else 'there is no baseline'}")
        return 0
    comparison = compare(read_result(BASELINE), result)
    verdict = as_result(comparison, GATE)
    print("\nA is the baseline, B is now", as_text(comparison), sep="\n")
    for problem in verdict.problems:
        print(f"bench cost: error: {problem}", file=sys.stderr)
    if verdict.problems:
        print(f"bench cost: if that is meant: {REBASELINE}", file=sys.stderr)
    return 0 if verdict.ok else 1


def incomparable(result: Result) -> str:
    """Why counts cannot be held against the baseline; empty when they can."""
    baseline = read_result(BASELINE)
    wanted, here = baseline.parameters["python"], result.parameters["python"]
    if wanted != here:
        return f"the baseline is of Python {wanted} and this is {here}: {REBASELINE}"
    return ""


def measured() -> Result:
    """Count a block of requests of each kind, several times over."""
    started = time.time()
    with share_objects():  # as a server does
        counts = asyncio.run(_counts())
    return Result(
        kind="cost",
        name="requests",
        parameters={
            "python": ".".join(map(str, sys.version_info[:2])),
            "rollouts": ROLLOUTS,
            "tracker": "prometheus",
        },
        figures=tuple(
            Figure(name=name, unit="instructions", better="lower", samples=(min(samples),))
            for name, samples in counts.items()
        ),
        started=started,
        ended=time.time(),
    )


async def _counts() -> dict[str, list[float]]:
    tracker = PrometheusMetricsBackend()
    store = ClockedStore(tracker=tracker, eviction_memory_threshold=NEVER)
    load = Load(store, ROLLOUTS, 1)
    await load.start()
    await load.fill(10)
    requests = load.requests(InProcessServer(store, tracker))
    gc.collect()
    gc.disable()
    counts: dict[str, list[float]] = {}
    for name, block in requests.items():
        for call in block():
            await call()
        counts[name] = [await _count(block()) for _ in range(ROUNDS)]
    gc.enable()
    return counts


async def _count(calls: list[Call]) -> float:
    with Counter() as counter:
        for call in calls:
            await call()
    return counter.count / len(calls)


if __name__ == "__main__":
    sys.exit(entry.run("bench cost", lambda: main(sys.argv[1:])))
