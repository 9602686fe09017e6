"""What the commands of ``agl bench`` have in common: options, and the way out of a result."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agl.cli import EXIT_FAULT, EXIT_INTERRUPTED
from agl.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from agl.bench.results import Result

_SHOWN_PROBLEMS = 10
_MOST = 10**9
_MOST_SECONDS = 366 * 86400.0


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
    """Type of an option: a whole number from 1 to a thousand million."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST}")
    return value


def seconds(text: str) -> float:
    """Type of an option: a number of seconds above 0, of a year at most."""
    if not 0 < (value := _number(text)) <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a positive number of seconds, of a year at most"
        )
    return value


def not_negative(text: str) -> float:
    """Type of an option: a number from 0 to a thousand million."""
    if not 0 <= (value := _number(text)) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MOST}")
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


def deliver(
    result: Result, text: str, target: str | None, prog: str, *others: Callable[[], object]
) -> int:
    """Show and write a result; returns the exit code it deserves.

    One file that cannot be written keeps nothing from the others.

    Args:
        result: What was measured.
        text: The same for people.
        target: The value of ``--json``.
        prog: Name of the program, in front of the line that says what is wrong.
        others: Write further files.

    Raises:
        EnvironmentFault: a file cannot be written; all else has been shown and written by then.
    """
    if target == "-":
        print(result.model_dump_json(indent=2))
    else:
        print(text)
    _tell(result, prog)
    faults: list[str] = []
    for write in (lambda: _write_json(result, target), *others):
        try:
            write()
        except EnvironmentFault as fault:
            faults.append(str(fault))
    if faults:
        raise EnvironmentFault("; ".join(faults))
    if result.ok:
        return 0
    return EXIT_INTERRUPTED if result.interrupted else EXIT_FAULT


def _write_json(result: Result, target: str | None) -> None:
    if target in (None, "-"):
        return
    try:
        result.write(Path(target))
    except OSError as error:
        raise EnvironmentFault(f"--json {target}: {error.strerror}") from error


def _tell(result: Result, prog: str) -> None:
    """Say what is wrong with it."""
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        print(f"{prog}: problem: {problem}", file=sys.stderr)
    if len(result.problems) > _SHOWN_PROBLEMS:
        more = len(result.problems) - _SHOWN_PROBLEMS
        print(f"{prog}: problem: ... and {more} more", file=sys.stderr)
    if result.partial is not None:
        print(f"{prog}: error: partial result: {result.partial}", file=sys.stderr)


def writable(text: str) -> str:
    """Type of an option: a file, there or not, that can be written in a folder that exists."""
    path = Path(os.path.realpath(text))
    if not text or not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    try:
        if not path.exists() or path.is_file():
            tempfile.TemporaryFile(dir=path.parent).close()
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    return text


def keep_apart(outputs: Mapping[str, object], inputs: Iterable[object] = ()) -> None:
    """See to it that no file of a command takes the place of another one.

    Args:
        outputs: What is to be written, by option; ``None`` and ``-`` are no files.
        inputs: What is read.

    Raises:
        UsageError: two are the same file.
    """
    taken = {os.path.realpath(str(path)): "is what is to be read" for path in inputs}
    for option, path in outputs.items():
        if path is None or path == "-":
            continue
        if why := taken.get(real := os.path.realpath(str(path))):
            raise UsageError(f"{option} {path} {why}: name another file")
        if not Path(real).exists() or Path(real).is_file():
            taken[real] = f"is what {option} writes"


def append_lines(target: str | None, lines: Sequence[str]) -> None:
    """Append whole lines to the file of ``--summary-file``, if one was named.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    if target is None:
        return
    try:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise EnvironmentFault(f"--summary-file {target}: {error.strerror}") from error


def _json_target(text: str) -> str:
    return text if text == "-" else writable(text)
