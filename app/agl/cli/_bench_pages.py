"""``--html FILE`` of the commands of ``agl bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from agl.cli._bench_options import writable
from agl.errors import EnvironmentFault
from agl.utils.whole_file import whole_file


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add ``--html FILE``, to be given to :func:`write_page`."""
    parser.add_argument(
        "--html", type=_page_target, metavar="FILE", help="write a page with charts there as well"
    )


def write_page(target: str | None, text: Callable[[], str]) -> None:
    """Make and write the page of ``--html``, if one was named; nobody finds half of one.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    if target is None:
        return
    try:
        with whole_file(Path(target)) as partial:
            partial.write_text(text(), "utf-8")
    except OSError as error:
        raise EnvironmentFault(f"--html {target}: {error.strerror}") from error


def _page_target(text: str) -> str:
    if text == "-":
        raise argparse.ArgumentTypeError("a page goes into a file")
    return writable(text)
