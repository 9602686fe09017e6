"""The command line: ``agl`` (the same program as ``agl-stack``).

Each command is a module of this package with ``main(argv, prog) -> int`` and is only imported when
it is called. A command reports a failure by raising ``UsageError`` (exit 2) or any other
``AglError`` (exit 1); what the user sees is one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from importlib import import_module
from pathlib import PurePath
from types import ModuleType
from typing import NoReturn, TextIO

from agl.errors import AglError, EnvironmentFault, UsageError

COMMANDS: dict[str, str] = {
    "store": "run a LightningStore server",
    "prometheus": "serve the metrics of the shared folder to Prometheus",
    "stack": "operate the bundle: preflight, images, secrets, status",
    "bench": "play real workloads against a running store",
    "panels": "show the dashboards in a browser, without Grafana",
    "report": "write dashboards and alerts of an incident into one HTML file",
}
PROGRAMS = ("agl", "agl-stack")

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EXTRAS = {"stack": "ops", "bench": "bench"}


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises ``UsageError`` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    program = PurePath(sys.argv[0]).name if sys.argv else ""
    program = program if program in PROGRAMS else PROGRAMS[0]
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        _write_anything(stream)
    try:
        code = _run(program, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone(sys.stdout):
            raise
        _discard(sys.stdout)
        return EXIT_BROKEN_PIPE
    return code


def _run(program: str, arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    prog = f"{program} {command}" if command in COMMANDS else program
    try:
        return _dispatch(program, command, arguments[1:])
    except UsageError as exc:
        return _fail(prog, str(exc), EXIT_USAGE)
    except AglError as exc:
        return _fail(prog, str(exc), EXIT_FAULT)
    except KeyboardInterrupt:
        return _fail(prog, "interrupted", EXIT_INTERRUPTED)
    except SystemExit as exc:
        return _exit_code(exc)


def _dispatch(program: str, command: str, rest: list[str]) -> int:
    if command in ("-h", "--help"):
        print(_help(program))
        return 0
    if command == "--version":
        from agl import __version__

        print(f"agl-stack {__version__}")
        return 0
    if command not in COMMANDS:
        what = f"unknown command {command!r}" if command else "a command is needed"
        raise UsageError(f"{what} (choose from {', '.join(COMMANDS)}; {program} --help)")
    return int(_load(command).main(rest, f"{program} {command}") or 0)


def _load(command: str) -> ModuleType:
    name = f"{__name__}.{command}"
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        missing = exc.name or ""
        if command not in _EXTRAS or missing.partition(".")[0] == "agl":
            raise
        raise EnvironmentFault(
            f"the Python module {missing!r} is not installed",
            remedy=f"install agl-stack[{_EXTRAS[command]}]",
        ) from exc


def _help(program: str) -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"usage: {program} COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    lines += [
        "",
        "options:",
        f"  {'--version':<{width}}print the version",
        f"  {'--help':<{width}}this text; '{program} COMMAND --help' explains a command",
    ]
    return "\n".join(lines)


def _fail(prog: str, message: str, code: int) -> int:
    print(f"{prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _exit_code(exc: SystemExit) -> int:
    if exc.code is None or isinstance(exc.code, int):
        return exc.code or 0
    print(exc.code, file=sys.stderr)
    return EXIT_FAULT


def _write_anything(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _reader_is_gone(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard(stream: TextIO) -> None:
    """Point the stream at nothing, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
