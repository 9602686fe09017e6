"""``agl bench pair``: two servers under the same load, in turns within one run."""

from __future__ import annotations

import argparse
import sys

from agl.cli._bench_options import add_json, deliver, keep_apart, not_negative, positive, seconds
from agl.cli._bench_pages import add_html, write_page
from agl.errors import UsageError
from agl.store.rest.wire import HEALTH_PATH

DESCRIPTION = """\
Start two servers in turn, round after round with the order alternating, load each with the same
rollouts (start, 4 spans, finish) and give medians and the ratio of B to A with its spread. Commands
are cut into words as a shell does, without one; {port} stands for the port to listen on:

  agl bench pair --a 'agl store --host 127.0.0.1 --port {port}' \\
    --b '/other/clone/.venv/bin/agl store --host 127.0.0.1 --port {port}'"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    for name in "ab":
        add(f"--{name}", required=True, metavar="CMD", help=f"command of server {name.upper()}")
    for option, kind, default, metavar, what in (
        ("--rounds", positive, 5, "N", "how often each is measured"),
        ("--clients", positive, 32, "N", "keep-alive connections"),
        ("--seconds", seconds, 5.0, "S", "measured seconds of a turn"),
        ("--warmup", not_negative, 1.0, "S", "seconds of load before that"),
        ("--ready-timeout", seconds, 60.0, "S", "how long a server may take to get ready"),
    ):
        add(
            option,
            type=kind,
            default=default,
            metavar=metavar,
            help=f"{what} (default: {default:g})",
        )
    add(
        "--ready-path",
        default=HEALTH_PATH,
        metavar="PATH",
        help="a server is ready when it answers this (default: %(default)s)",
    )
    add_json(parser)
    add_html(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Measure; 1 when a server failed, 130 after Ctrl-C, with what was measured until then.

    Raises:
        UsageError: a command has no place for its port.
        EnvironmentFault: there is no C compiler for the load generator.
    """
    from agl.bench.contenders import Contender
    from agl.bench.interrupts import interruption
    from agl.bench.loader import Load, build
    from agl.bench.pages.report import report_of
    from agl.bench.pair import PairOptions, as_text, measure

    keep_apart({"--json": options.json, "--html": options.html})
    if not options.ready_path.startswith("/"):
        raise UsageError(f"--ready-path: {options.ready_path!r} does not begin with /")
    wanted = PairOptions(
        a=Contender.parse("A", options.a),
        b=Contender.parse("B", options.b),
        load=Load(options.clients, options.seconds, options.warmup),
        rounds=options.rounds,
        ready_path=options.ready_path,
        ready_timeout=options.ready_timeout,
    )
    build()
    with interruption() as stop:
        pair = measure(wanted, stop, lambda line: print(line, file=sys.stderr, flush=True))
    result = pair.to_result()
    return deliver(
        result,
        as_text(pair),
        options.json,
        prog,
        lambda: write_page(options.html, lambda: report_of("Two servers in turns", [result])),
    )
