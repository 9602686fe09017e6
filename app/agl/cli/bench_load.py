"""``agl bench load``: how many rollouts a store takes, and how long its answers take."""

from __future__ import annotations

import argparse
import asyncio
import sys

from agl.cli._bench_options import (
    add_json,
    add_patience,
    add_store_url,
    deliver,
    not_negative,
    positive,
    seconds,
)
from agl.errors import UsageError

DESCRIPTION = """\
Load a running store over keep-alive connections: start a rollout, add 4 spans, finish, again and
again. Without --rate a client sends its next request when it has the answer (closed loop). With
--rate R so many rollouts a second are due, whatever the store does (open loop), and latency counts
from when a request was due, so that a store that stops cannot hide the requests it kept waiting.

Before it the load generator plays against a bare endpoint: its own ceiling. Exit status 1 when a
request failed, the store was away, or the load generator itself may have been the limit."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_store_url(parser)
    add = parser.add_argument
    add("--clients", type=positive, default=32, metavar="N", help="connections (default: 32)")
    add(
        "--rate", type=not_negative, default=0.0, metavar="R", help="rollouts a second that are due"
    )
    add("--seconds", type=seconds, default=10.0, metavar="S", help="of a round (default: 10)")
    add("--warmup", type=not_negative, default=2.0, metavar="S", help="before it (default: 2)")
    add("--rounds", type=positive, default=3, metavar="N", help="how often (default: 3)")
    add_patience(parser)
    add(
        "--server-pid",
        type=positive,
        action="append",
        default=[],
        metavar="PID",
        help="a process of the store whose CPU time is to be counted; may be repeated",
    )
    add_json(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Play the load; 0 when the figures can be trusted, 1 when not, 130 after Ctrl-C.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: the store does not answer or refuses, or there is no C compiler.
    """
    import psutil

    from agl.bench.interrupts import interruption
    from agl.bench.load import LoadOptions, measure
    from agl.bench.loader import Load
    from agl.bench.target import checked_url, require_access

    url = checked_url(options.store_url, "--store-url")
    for pid in options.server_pid:
        if not psutil.pid_exists(pid):
            raise UsageError(f"--server-pid: there is no process {pid} here")
    load = Load(
        connections=options.clients,
        seconds=options.seconds,
        warmup=options.warmup,
        rate=options.rate,
        patience=options.patience,
    )
    asyncio.run(require_access(url))
    with interruption() as wish:
        report = measure(
            LoadOptions(url, load, options.rounds, options.server_pid),
            wish,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    return deliver(report.to_result(wish.reason), report.to_text(), options.json, prog)
