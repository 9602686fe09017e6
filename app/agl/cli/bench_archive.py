"""``agl bench archive``: samples, dashboards, results and facts of runs in one file."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli._bench_options import keep_apart, writable
from agl.cli._dashboards import PROMETHEUS, prometheus_url
from agl.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from agl.bench.archive.snapshot import Data
    from agl.ops.layout import Layout

DESCRIPTION = """\
Keep runs: a snapshot of Prometheus' samples, the dashboards, results, versions and the machine's
facts in one file with a checksum of each part, for agl bench open. The snapshot needs Prometheus'
admin API, which can also delete data and is off: --overlay puts compose.admin-api.yml on the bundle
that runs, for as long as the snapshot takes (its Prometheus restarts twice). A Prometheus without a
container needs --web.enable-admin-api, and --data FOLDER says where its data is."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add(
        "--output",
        type=writable,
        required=True,
        metavar="FILE",
        help="to write, such as run.tar.gz",
    )
    add(
        "--prometheus",
        type=prometheus_url,
        default=PROMETHEUS,
        metavar="URL",
        help=f"where Prometheus answers (default: {PROMETHEUS})",
    )
    add(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="results that agl bench wrote with --json; they say which time is kept",
    )
    add(
        "--start",
        metavar="TIME",
        help="keep samples from here on (default: of the results, or all)",
    )
    add("--end", metavar="TIME", help="(default: now)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, metavar="FOLDER", help="Prometheus' data on this host")
    where.add_argument(
        "--container", metavar="NAME", help="its container (default: the bundle's that runs)"
    )
    where.add_argument(
        "--overlay", action="store_true", help="put the admin API on the bundle's for the snapshot"
    )


def run(options: argparse.Namespace, prog: str) -> int:
    """Write the archive; 1 when it is to be distrusted, and says why.

    Raises:
        UsageError: a time or a result that makes no sense.
        EnvironmentFault: no snapshot can be had, or nothing is in the window.
    """
    from agl.bench.archive.write import Wanted, images_of, write
    from agl.bench.results import read_result
    from agl.config import process_environment
    from agl.ops.layout import find_layout

    keep_apart({"--output": options.output}, inputs=options.results)
    layout = find_layout(process_environment())
    window = _window(options)
    results = [(path, read_result(path)) for path in options.results]
    output = Path(options.output)
    with _data(options, layout) as data:
        manifest = write(
            Wanted(
                prometheus=options.prometheus,
                data=data,
                output=output,
                dashboards=layout.root / "grafana" / "dashboards",
                results=results,
                window=window,
                clock_ahead=asyncio.run(_clock_ahead(options.prometheus)),
                images=images_of(layout.variables().items()),
            )
        )
    size = output.stat().st_size / (1 << 20)
    seconds = manifest.end - manifest.start
    print(
        f"{options.output}: {size:.1f} MiB, {seconds:,.0f} s, {len(manifest.runs)} results,"
        f" Prometheus {manifest.prometheus.get('version', 'of unknown version')}"
    )
    for problem in manifest.problems:
        print(f"{prog}: problem: {problem}")
    return 1 if manifest.problems else 0


def _window(options: argparse.Namespace) -> tuple[float, float] | None:
    from agl.ops.panels.timerange import OPTIONS, TimeError, parse_range

    if not options.start:
        if options.end is not None:
            raise UsageError("--end needs --start")
        return None
    try:
        span = parse_range(options.start, options.end or "now", time.time(), OPTIONS)
    except TimeError as error:
        raise UsageError(str(error)) from None
    return span.start, span.end


@contextmanager
def _data(options: argparse.Namespace, layout: Layout) -> Generator[Data]:
    from agl.bench.archive.snapshot import Container, Folder

    if options.data is not None:
        yield Folder(options.data)
    elif options.container:
        yield Container(options.container)
    else:
        from agl.bench.archive.bundle import admin_api, prometheus_of

        if options.overlay:
            with admin_api(layout, options.prometheus):
                yield Container(prometheus_of(layout))
        else:
            yield Container(prometheus_of(layout))


async def _clock_ahead(prometheus: str) -> float:
    import aiohttp

    from agl.bench.analysis.source import ahead
    from agl.ops.panels.prometheus import PrometheusError, PrometheusReader

    async with aiohttp.ClientSession() as session:
        try:
            return round((await ahead(PrometheusReader(prometheus, session)))[0], 3)
        except PrometheusError as error:
            raise EnvironmentFault(f"Prometheus: {error}", remedy="check --prometheus") from error
