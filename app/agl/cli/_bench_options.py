"""What the commands of ``agl bench`` have in common: options, and the way out of a result."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli import EXIT_FAULT, EXIT_INTERRUPTED
from agl.errors import EnvironmentFault

if TYPE_CHECKING:
    from agl.bench.results import Result

_SHOWN_PROBLEMS = 10


def add_store_url(parser: argparse.ArgumentParser) -> None:
    """Add ``--store-url``; :func:`agl.bench.target.checked_url` is to look at its value."""
    parser.add_argument(
        "--store-url",
        default="http://localhost:4747",
        metavar="URL",
        help="store, with credentials where it asks for them: http://agl:TOKEN@host:4747 "
        "(default: %(default)s)",
    )


def add_patience(parser: argparse.ArgumentParser) -> None:
    """Add ``--patience``, in seconds."""
    parser.add_argument(
        "--patience",
        type=not_negative,
        default=30.0,
        metavar="S",
        help="how long the store may be away before the run is given up (default: 30)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json FILE``, which :func:`deliver` heeds."""
    parser.add_argument(
        "--json",
        type=_json_target,
        metavar="FILE",
        help="write the result there as JSON; - prints it instead of the text",
    )


def positive(text: str) -> int:
    """Type of an option: a whole number from 1 up."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return value


def seconds(text: str) -> float:
    """Type of an option: a finite number of seconds above 0."""
    if not 0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def not_negative(text: str) -> float:
    """Type of an option: a finite number from 0 up."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return value


def fraction(text: str) -> float:
    """Type of an option: above 0 and up to 1."""
    if not 0 < (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def deliver(result: Result, text: str, target: str | None, prog: str) -> int:
    """Show and write a result; returns the exit code it deserves.

    Args:
        result: What was measured.
        text: The same for people.
        target: The value of ``--json``.
        prog: Name of the program, in front of the line that says what is wrong.

    Raises:
        EnvironmentFault: the file cannot be written; the text has been shown by then.
    """
    if target == "-":
        print(result.model_dump_json(indent=2))
    else:
        print(text)
    if target not in (None, "-"):
        try:
            result.write(Path(target))
        except OSError as error:
            raise EnvironmentFault(f"--json {target}: {error.strerror}") from error
    if result.ok:
        return 0
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        print(f"{prog}: problem: {problem}", file=sys.stderr)
    if len(result.problems) > _SHOWN_PROBLEMS:
        more = len(result.problems) - _SHOWN_PROBLEMS
        print(f"{prog}: problem: ... and {more} more", file=sys.stderr)
    if result.partial is not None:
        print(f"{prog}: error: partial result: {result.partial}", file=sys.stderr)
    return EXIT_INTERRUPTED if result.interrupted else EXIT_FAULT


def writable(text: str) -> str:
    """Type of an option: a file, there or not, in a folder that exists."""
    if not Path(text).parent.is_dir() or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return text


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append whole lines to a file.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise EnvironmentFault(f"--summary-file {path}: {error.strerror}") from error


def _json_target(text: str) -> str:
    return text if text == "-" else writable(text)
