"""``agl bench micro``: one kind of operation, by many processes at once."""

from __future__ import annotations

import argparse
import asyncio
import sys

from agl.bench.operations import MODES
from agl.cli._bench_options import (
    add_json,
    add_patience,
    add_store_url,
    append_lines,
    deliver,
    positive,
    writable,
)

DESCRIPTION = """\
Let many processes do one kind of operation on a running store, as often and by as many as
agent-lightning 0.3 did it. Every operation is checked; exit status 1 when one did not succeed.

Starting the processes, and enqueuing what they will take, is not part of the measured time; making
a connection for each operation is, unless --connections reuse.

modes (processes, operations):
""" + "\n".join(
    f"  {name:24}{mode.what} ({mode.processes}, {mode.operations})" for name, mode in MODES.items()
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("mode", choices=MODES, metavar="MODE", help="what is done; see above")
    add_store_url(parser)
    add("--processes", type=positive, metavar="N", help="how many (default: the mode's)")
    add("--operations", type=positive, metavar="N", help="of all together (default: the mode's)")
    add(
        "--connections",
        choices=("fresh", "reuse"),
        default="fresh",
        help="a new one for each operation, or one that a process keeps (default: fresh)",
    )
    add("--rounds", type=positive, default=1, metavar="N", help="how often (default: 1)")
    add_patience(parser)
    add("--summary-file", type=writable, metavar="FILE", help="append the summary line there")
    add_json(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Do the operations; 0 when all succeeded, 1 when one did not, 130 after Ctrl-C.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: the store does not answer, refuses, or has work of others.
    """
    from agl.bench.interrupts import interruption
    from agl.bench.micro import MicroOptions, measure, memory_for
    from agl.bench.target import checked_url

    mode = MODES[options.mode]
    wanted = MicroOptions(
        mode=options.mode,
        store_url=checked_url(options.store_url, "--store-url"),
        processes=options.processes or mode.processes,
        operations=options.operations or mode.operations,
        rounds=options.rounds,
        reuse=options.connections == "reuse",
        patience=options.patience,
    )
    if warning := memory_for(wanted.processes):
        print(f"{prog}: warning: {warning}", file=sys.stderr)
    with interruption() as wish:
        report = asyncio.run(measure(wanted, wish))
    return deliver(
        report.to_result(wish.reason),
        report.to_text(),
        options.json,
        prog,
        lambda: append_lines(options.summary_file, report.summaries()),
    )
