"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """Give a path to write to; it takes the place of ``target`` when the block ends well.

    Otherwise it is deleted and ``target`` stays as it was. Of a link, what it leads to is replaced.
    What is there and is no plain file (``/dev/null``, a pipe) is written to itself.

    Raises:
        OSError: The folder takes no file.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        yield target
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
