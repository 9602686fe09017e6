"""``agl bench``: measure what runs, and say how it compares.

Each command is a module ``agl.cli.bench_<command>`` with a ``DESCRIPTION``, ``add_options(parser)``
and ``run(options, prog) -> int``; only the one that is called gets imported. A command is added by
its module and a row of ``COMMANDS``.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from agl.cli import CommandParser

COMMANDS: dict[str, str] = {
    "scenario": "play a training loop and verify every rollout",
    "micro": "one kind of operation, by many processes at once",
    "collection": "inserts and dequeues without a store or HTTP around them",
    "load": "how many rollouts a store takes, and how long its answers take",
    "analyze": "report what Prometheus has recorded of a window of time",
    "compare": "two results of the same measurement, figure by figure",
    "pair": "two servers under the same load, in turns within one run",
    "archive": "keep samples, dashboards and results of runs in one file",
    "open": "look at an archive",
}


def main(argv: list[str], prog: str) -> int:
    """Run one command of ``agl bench``.

    Returns 0 when all went as it should, 1 when the result is in doubt, 130 after Ctrl-C.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: a service does not answer, or a package is missing.
    """
    options = _parser(argv, prog).parse_args(argv)
    return options.run(options, prog)


def _parser(argv: list[str], prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=prog, description="Measure what runs, and say how it compares.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in COMMANDS.items():
        if argv[:1] != [name]:
            commands.add_parser(name, help=what)
            continue
        module = import_module(f"agl.cli.bench_{name}")
        command = commands.add_parser(
            name,
            help=what,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    return parser
