"""``agl report``: dashboards of a past time as one HTML file, to attach to an incident."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from agl.cli import CommandParser
from agl.cli._dashboards import add_source_options, library
from agl.errors import EnvironmentFault, UsageError
from agl.ops.panels.boards import Board, Library
from agl.ops.panels.prometheus import PrometheusError
from agl.ops.panels.report import Report, Wanted, make
from agl.ops.panels.timerange import FROM_TO, TimeError, parse_range
from agl.utils.whole_file import whole_file


def main(argv: list[str], prog: str) -> int:
    """Write the report; returns 0, also when single panels could not be drawn.

    Raises:
        UsageError: An option, a time or a dashboard that makes no sense.
        EnvironmentFault: Prometheus does not answer, or the file cannot be written.
    """
    options = _parser(prog).parse_args(argv)
    wanted = _wanted(options)
    try:
        report = asyncio.run(make(wanted))
    except PrometheusError as exc:
        raise EnvironmentFault(
            str(exc), remedy="check that Prometheus runs at --prometheus-url"
        ) from exc
    _write(options.output, report)
    return 0


def _wanted(options: argparse.Namespace) -> Wanted:
    try:
        span = parse_range(options.start, options.end, time.time(), FROM_TO)
    except TimeError as exc:
        raise UsageError(str(exc)) from exc
    chosen: dict[str, list[str]] = {}
    for text in options.var:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"argument --var: {text!r} is not NAME=VALUE")
        chosen.setdefault(name, []).append(value)
    start = datetime.fromtimestamp(span.start, UTC)
    return Wanted(
        boards=_boards(library(options.dashboards), options.dashboard),
        span=span,
        chosen=chosen,
        title=options.title or f"Incident report, {start:%Y-%m-%d %H:%M} UTC",
        prometheus=options.prometheus_url,
        scrape=options.scrape_interval,
    )


def _boards(known: Library, names: list[str]) -> list[Board]:
    found = known.boards()
    if known.problem:
        raise EnvironmentFault(known.problem, remedy="name another folder with --dashboards")
    if not names:
        readable = [board for board in found if not board.problem]
        for board in found:
            if board.problem:
                print(f"left out: {board.problem}", file=sys.stderr)
        return readable
    chosen: list[Board] = []
    for name in names:
        board = next((b for b in found if name in {b.uid, b.title}), None)
        if board is None:
            known_names = ", ".join(sorted(b.uid for b in found))
            raise UsageError(
                f"argument --dashboard: {name!r} is not one (choose from {known_names})"
            )
        if board.problem:
            raise EnvironmentFault(board.problem)
        chosen.append(board)
    return chosen


def _write(path: Path, report: Report) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_text(report.page, "utf-8")
    except OSError as exc:
        raise EnvironmentFault(
            f"{path} cannot be written ({exc.strerror})", remedy="choose another --output"
        ) from exc
    size = path.stat().st_size / (1 << 20)
    alerts = "1 alert" if report.alerts == 1 else f"{report.alerts} alerts"
    print(f"{path}: {report.panels} panels, {alerts} fired, {size:.1f} MiB")
    for problem in report.problems:
        print(f"not drawn: {' '.join(problem.split())}", file=sys.stderr)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Write dashboards of a past time, the alerts that fired and a table of values"
        " into one self-contained HTML file.",
        epilog="Times: now-6h, 2026-05-01T12:00:00Z, epoch milliseconds; UTC unless they say.",
    )
    add = parser.add_argument
    add("--from", dest="start", required=True, metavar="TIME", help="start of the incident")
    add("--to", dest="end", default="now", metavar="TIME", help="its end (default: now)")
    add(
        "--dashboard",
        action="append",
        default=[],
        metavar="UID",
        help="dashboard to show, by uid or title; may be repeated (default: all)",
    )
    add(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a variable; may be repeated, also for one name",
    )
    add("--title", default="", help="heading of the page (default: with the time)")
    add_source_options(parser)
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write, such as incident.html",
    )
    return parser
