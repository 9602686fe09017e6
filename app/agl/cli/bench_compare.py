"""``agl bench compare``: two results of the same measurement."""

from __future__ import annotations

import argparse
from pathlib import Path

from agl.cli._bench_options import add_json, deliver, fraction, keep_apart
from agl.cli._bench_pages import add_html, write_page

DESCRIPTION = """\
Compare two results that agl bench or scripts/bench wrote with --json: medians, the ratio of B to A,
the least and largest ratio of any two samples, and which figures differ by more than they scatter.
What else differs (parameters, machine, version) is said. With --gate RATIO the exit status is 1
when a figure of B is worse than that part of A's, and not just by scatter."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("a", type=Path, metavar="A.json", help="the result to compare with")
    parser.add_argument("b", type=Path, metavar="B.json", help="the one that is looked at")
    parser.add_argument(
        "--gate",
        type=fraction,
        metavar="RATIO",
        help="exit 1 when a figure is worse than RATIO (0 to 1) of A's",
    )
    add_json(parser)
    add_html(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Compare; 1 on a regression beyond the gate.

    Raises:
        UsageError: a file is no result, or they are of different measurements.
    """
    from agl.bench.compare import as_result, as_text, compare
    from agl.bench.pages.report import report_of
    from agl.bench.results import read_result

    outputs = {"--json": options.json, "--html": options.html}
    keep_apart(outputs, inputs=(options.a, options.b))
    comparison = compare(read_result(options.a), read_result(options.b))
    result = as_result(comparison, options.gate)
    return deliver(
        result,
        as_text(comparison),
        options.json,
        prog,
        lambda: write_page(options.html, lambda: report_of("Two runs compared", [result])),
    )
