"""``agl bench open``: an archive in dashboards and a Prometheus of its own."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from agl.cli._bench_options import positive
from agl.errors import UsageError

DESCRIPTION = """\
Open an archive of agl bench: it is checked and unpacked, a Prometheus gets a copy of its samples,
and Grafana (or agl panels, where Grafana's image cannot be had) shows its dashboards at its time,
with its runs marked. Nothing is scraped and the archive is not changed. --close ends it and
deletes the copy."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    from agl.bench.archive.viewer import PROJECT

    add = parser.add_argument
    add("archive", nargs="?", type=Path, metavar="ARCHIVE", help="file of agl bench archive")
    add("--close", action="store_true", help="end the viewer and delete its copy")
    add("--port", type=positive, metavar="N", help="port of the dashboards (AGL_VIEW_PORT)")
    add(
        "--prometheus-port",
        type=positive,
        metavar="N",
        help="port of Prometheus (AGL_VIEW_PROMETHEUS_PORT)",
    )
    add(
        "--project",
        type=_project,
        default=PROJECT,
        metavar="NAME",
        help="name of this viewer, to have several open (default: %(default)s)",
    )


def run(options: argparse.Namespace, prog: str) -> int:
    """Open or close; 0.

    Raises:
        UsageError: no archive was named.
        EnvironmentFault: the archive is no good, one is open already, or Docker fails.
    """
    from agl.bench.archive.viewer import PROJECT, Viewer
    from agl.bench.pages.document import moment
    from agl.config import process_environment
    from agl.ops.layout import find_layout

    named = {"AGL_VIEW_PORT": options.port, "AGL_VIEW_PROMETHEUS_PORT": options.prometheus_port}
    ports = {name: str(port) for name, port in named.items() if port}
    viewer = Viewer(find_layout(process_environment()), options.project, ports)
    if options.close:
        print("closed" if viewer.close() else "nothing was open")
        return 0
    if options.archive is None:
        raise UsageError("which archive? (or --close)")
    manifest = viewer.open(options.archive)
    print(f"{moment(manifest.start)} to {moment(manifest.end)}")
    for run in manifest.runs:
        print(f"  {moment(run.started)}  {run.kind} {run.name}")
    for problem in manifest.problems:
        print(f"  problem: {problem}")
    for name, address in viewer.addresses(manifest).items():
        print(f"{name:<11} {address}")
    named = "" if options.project == PROJECT else f" --project {options.project}"
    print(f"close it    {prog} open --close{named}")
    return 0


def _project(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of a-z, 0-9, - and _")
    return text
