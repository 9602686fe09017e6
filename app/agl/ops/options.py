"""The options of ``up``, read by the preflight too, which runs before anything is installed.

Uses the standard library alone and runs on Python 3.9.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from agl.errors import UsageError
from agl.ops.layout import DEFAULT_MODE, MODES


class LineParser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, which is shown as one line.

    Options are not to be shortened: what ``down --v`` deletes is too much for a guess.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def add_mode(parser: argparse.ArgumentParser) -> None:
    """``MODE``: kept as free text, so that an unknown one is named with the known ones."""
    parser.add_argument(
        "mode",
        nargs="?",
        default=DEFAULT_MODE,
        help=f"what to run: {', '.join(MODES)} (default {DEFAULT_MODE})",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """How images may be come by."""
    parser.add_argument("--no-build", action="store_true", help="build no image here")
    parser.add_argument(
        "--stand-ins",
        action="store_true",
        help="ask no registry: build what is missing from Debian packages",
    )
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="ask the registry again for images that an earlier run did without",
    )


def add_lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lab",
        action="store_true",
        help="mode mongo: run stand-ins for MongoDB and its exporter, for trials and tests only",
    )


def check_lab(options: argparse.Namespace) -> None:
    """Raises UsageError when ``--lab`` has nothing to stand in for."""
    if options.lab and options.mode != "mongo":
        raise UsageError(f"--lab belongs to mode mongo, not to {options.mode}")
    if options.lab and getattr(options, "offline", None):
        raise UsageError("--offline takes the images from a file: not with --lab")


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="ask no question")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def up_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of ``up``."""
    parser = LineParser(
        prog=prog, description="Check this machine, get the images, start, wait until healthy."
    )
    add_mode(parser)
    add_yes(parser)
    add_image_options(parser)
    add_lab(parser)
    parser.add_argument(
        "--check", action="store_true", help="only look whether this machine is ready"
    )
    parser.add_argument(
        "--offline",
        metavar="FILE",
        type=Path,
        help="take the images from this archive (agl stack images save), ask no registry",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=300.0,
        help="how long to wait until everything is healthy (default 300)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave containers of a failed start to be looked at"
    )
    parser.add_argument("--brief", action="store_true", help=argparse.SUPPRESS)
    return parser
