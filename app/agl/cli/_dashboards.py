"""What ``agl panels`` and ``agl report`` share: where Prometheus and the dashboards are."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError
from agl.ops.layout import find_layout
from agl.ops.panels.boards import Library
from agl.ops.panels.timerange import TimeError, parse_duration

PROMETHEUS = "http://127.0.0.1:9090"


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """``--prometheus-url``, ``--dashboards`` and ``--scrape-interval``."""
    parser.add_argument(
        "--prometheus-url",
        type=prometheus_url,
        default=PROMETHEUS,
        metavar="URL",
        help=f"where Prometheus answers (default: {PROMETHEUS})",
    )
    parser.add_argument(
        "--dashboards",
        type=Path,
        metavar="FOLDER",
        help="folder with the dashboards' JSON (default: grafana/dashboards of the clone)",
    )
    parser.add_argument(
        "--scrape-interval",
        type=interval,
        default=5.0,
        metavar="TIME",
        help="how often Prometheus scrapes, from which steps are derived (default: 5s)",
    )


def library(folder: Path | None) -> Library:
    """The dashboards of a folder.

    Raises:
        UsageError: The folder given is none.
        EnvironmentFault: None was given, and this is no clone that has one.
    """
    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"argument --dashboards: {str(folder)!r} is not a folder")
        return Library(folder)
    try:
        return Library(find_layout(process_environment()).root / "grafana" / "dashboards")
    except EnvironmentFault as exc:
        raise EnvironmentFault(
            "there are no dashboards here", remedy="name their folder with --dashboards FOLDER"
        ) from exc


def runbooks_of_clone() -> Path | None:
    """The runbooks of the clone this runs from; ``None`` when it is none."""
    try:
        folder = find_layout(process_environment()).root / "docs" / "runbooks"
    except EnvironmentFault:
        return None
    return folder if folder.is_dir() else None


def prometheus_url(text: str) -> str:
    """An http or https address from the command line."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as {PROMETHEUS}")
    return text.rstrip("/")


def interval(text: str) -> float:
    """Seconds from the command line."""
    try:
        return parse_duration(text)
    except TimeError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
