"""``agl stack backup`` and ``restore``; programs that these and ``up`` run in a container."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from agl.cli._mongo import add_mongo_options, mongo_admin, mongo_settings
from agl.config import process_environment
from agl.errors import EnvironmentFault
from agl.ops.options import LineParser, add_yes


def backup_main(argv: list[str], prog: str) -> int:
    """Write what the store holds to a file; returns 0. Raises UsageError and EnvironmentFault."""
    from agl.ops.backup import METHODS, backup, find_bundle
    from agl.ops.console import Console
    from agl.ops.layout import find_layout

    parser = LineParser(prog=prog, description="Everything the store on MongoDB holds, in a file.")
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="to write (default: agl-backup-TIME.gz here)",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="",
        help="who reads (default: mongodump where MongoDB's container has it)",
    )
    parser.add_argument(
        "--no-snapshot",
        action="store_true",
        help="method driver: do not read at one point in time; for a store that is stopped",
    )
    options = parser.parse_args(argv)
    target = options.file or Path(f"agl-backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.gz")
    bundle = find_bundle(find_layout(process_environment()), Console(process_environment()))
    backup(bundle, target, method=options.method, snapshot=not options.no_snapshot)
    return 0


def restore_main(argv: list[str], prog: str) -> int:
    """Make the store hold what is in a file; returns 0. Raises UsageError and EnvironmentFault."""
    from agl.ops.backup import find_bundle, restore
    from agl.ops.console import Console, can_ask
    from agl.ops.layout import find_layout

    parser = LineParser(prog=prog, description="What a file of scripts/backup holds, into MongoDB.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--replace", action="store_true", help="delete what the store holds, if it holds anything"
    )
    add_yes(parser)
    options = parser.parse_args(argv)
    console = Console(process_environment())
    question = "Delete everything the store holds and put the backup in its place?"
    if options.replace and not options.yes:
        if not can_ask():
            raise EnvironmentFault("--replace deletes what the store holds", remedy="add --yes")
        if not console.ask(question):
            raise EnvironmentFault("nothing was changed")
    bundle = find_bundle(find_layout(process_environment()), console)
    restore(bundle, options.file, replace=options.replace)
    return 0


def dump_main(argv: list[str], prog: str) -> int:
    """The database to standard output; returns 0. Raises UsageError and EnvironmentFault."""
    from agl.ops.mongo_dump import dump

    parser = LineParser(prog=prog, description="Write every document to standard output.")
    add_mongo_options(parser)
    parser.add_argument("--no-snapshot", action="store_true", help="the store is stopped")
    options = parser.parse_args(argv)
    work = dump(mongo_settings(options), sys.stdout.buffer, snapshot=not options.no_snapshot)
    _tell("dumped", asyncio.run(work))
    return 0


def load_main(argv: list[str], prog: str) -> int:
    """The database from standard input; returns 0. Raises UsageError and EnvironmentFault."""
    from agl.ops.mongo_dump import check_empty, load

    parser = LineParser(prog=prog, description="Read every document from standard input.")
    add_mongo_options(parser)
    parser.add_argument("--replace", action="store_true", help="delete what is there")
    parser.add_argument("--check", action="store_true", help="only look whether it may be done")
    options = parser.parse_args(argv)
    settings = mongo_settings(options)
    if not options.replace:
        asyncio.run(check_empty(settings))
    if not options.check:
        _tell("loaded", asyncio.run(load(settings, sys.stdin.buffer)))
    return 0


def check_main(argv: list[str], prog: str) -> int:
    """Whether the store can use MongoDB; returns 0. Raises UsageError and EnvironmentFault."""
    parser = LineParser(prog=prog, description="Look whether the store can use this MongoDB.")
    add_mongo_options(parser)
    settings = mongo_settings(parser.parse_args(argv))
    found = asyncio.run(mongo_admin("diagnosis").diagnose(settings))
    print(f"MongoDB {found.version}, {found.kind}")
    return 0


def _tell(what: str, counts: dict[str, int]) -> None:
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"{what} {sum(counts.values())} documents ({told or 'nothing'})", file=sys.stderr)
