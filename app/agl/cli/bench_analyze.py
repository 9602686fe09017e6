"""``agl bench analyze``: what Prometheus knows of a window of time."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from agl.cli._bench_options import add_json, deliver, keep_apart
from agl.cli._bench_pages import add_html, write_page
from agl.cli._dashboards import interval, prometheus_url
from agl.errors import UsageError

if TYPE_CHECKING:
    from agl.ops.panels.timerange import TimeRange

DESCRIPTION = """\
Report what Prometheus has recorded of a store in a window of time: throughput; HTTP, store,
collections and MongoDB by their labels, with the second half of the window against the first; the
share of each layer in a request's time; latency beside the size of the store; the machine. Series
that do not exist are named. Exit status 1 when something was amiss in the window or with asking."""

_PROMETHEUS = "http://127.0.0.1:9090"
_DURATION = "5m"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add(
        "--prometheus",
        type=prometheus_url,
        default=_PROMETHEUS,
        metavar="URL",
        help=f"where Prometheus answers (default: {_PROMETHEUS})",
    )
    add(
        "--store-url",
        metavar="URL",
        help="also ask this store for its totals; with its token: http://agl:TOKEN@host:4747",
    )
    add("--start", metavar="TIME", help="2026-05-01T12:00:00Z, now-1h, epoch milliseconds")
    add("--end", default="now", metavar="TIME", help="(default: now)")
    add("--duration", metavar="TIME", help=f"window before --end (default: {_DURATION})")
    add(
        "--scrape-interval",
        type=interval,
        default=5.0,
        metavar="TIME",
        help="how often Prometheus scrapes (default: 5s)",
    )
    add_json(parser)
    add_html(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Analyze; 0 when all is well.

    Raises:
        UsageError: a time that makes no sense.
        EnvironmentFault: Prometheus is away or has nothing of a store in the window.
    """
    from agl.bench.analysis.collect import Question, analyze
    from agl.bench.analysis.sections import lead, sections
    from agl.bench.analysis.text import as_text
    from agl.bench.pages.document import page
    from agl.bench.target import checked_url
    from agl.ops.panels.timerange import TimeError

    keep_apart({"--json": options.json, "--html": options.html})
    if options.start and options.duration:
        raise UsageError("--start and --duration say two things: give one of them")
    try:
        span = _window(options, time.time())
    except TimeError as error:
        raise UsageError(str(error)) from None
    if span.seconds < 1:
        raise UsageError("the window is shorter than a second")
    store: str | None = options.store_url
    question = Question(
        prometheus=options.prometheus,
        span=span,
        store=checked_url(store, "--store-url") if store else None,
        scrape=options.scrape_interval,
    )
    result = asyncio.run(analyze(question))
    return deliver(
        result,
        as_text(result),
        options.json,
        prog,
        lambda: write_page(
            options.html, lambda: page("What the store did", lead(result), sections(result))
        ),
    )


def _window(options: argparse.Namespace, now: float) -> TimeRange:
    from agl.ops.panels.timerange import OPTIONS, TimeRange, parse_duration, parse_range, parse_time

    if options.start:
        return parse_range(options.start, options.end, now, OPTIONS)
    end = parse_time(options.end, now, name="--end")
    return TimeRange(end - parse_duration(options.duration or _DURATION), end)
