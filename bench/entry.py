"""How a measurement is started from a shell: sensible options, and one line for a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from agl.bench.interrupts import sigterm_as_ctrl_c
from agl.cli import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_USAGE
from agl.cli._bench_options import writable
from agl.errors import AglError, UsageError


def run(name: str, main: Callable[[], int]) -> int:
    """Run a measurement; the exit status. What it has started ends with it, on SIGTERM as well."""
    try:
        with sigterm_as_ctrl_c():
            return main()
    except UsageError as error:
        return _failed(name, error, EXIT_USAGE)
    except (AglError, RuntimeError, OSError) as error:
        return _failed(name, error, EXIT_FAULT)
    except KeyboardInterrupt:
        return _failed(name, "interrupted", EXIT_INTERRUPTED)


def target(text: str) -> Path:
    """Type of an option: a file that can be written."""
    return Path(writable(text))


def _failed(name: str, why: object, code: int) -> int:
    print(f"{name}: error: {why}", file=sys.stderr)
    return code
