"""``agl store migrate``: bring data of agent-lightning 0.3 into this store's form."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.cli import CommandParser
from agl.cli._mongo import (
    add_mongo_options,
    check_partition,
    checked_uri,
    mongo_admin,
    mongo_settings,
    read_secret,
)
from agl.config import DEFAULT_DATABASE, MongoSettings
from agl.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from agl.store.mongo_admin.copy import Copied

_SAY_SECONDS = 2.0


def main(argv: list[str], prog: str) -> int:
    """Copy, if asked for, then migrate; returns the exit code."""
    options = _parser(prog).parse_args(argv)
    source = _source(options)
    settings = mongo_settings(options)
    if options.copy_partition is not None:
        if source is None:
            raise UsageError("argument --only: there is no --from that it belongs to")
        check_partition(options.copy_partition)
    asyncio.run(_run(settings, source, options.copy_partition, dry=options.dry_run))
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Bring data of agent-lightning 0.3 into this store's form: build the right "
        "indexes, remove the wrong ones, embed attempts into rollouts, remove consumed queue "
        "entries. Servers may run meanwhile; it can be interrupted and called again.",
    )
    add_mongo_options(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what would be done, and change nothing")
    add(
        "--from",
        dest="source",
        metavar="URI",
        help="first copy everything from the database of this running server",
    )
    add(
        "--from-file",
        dest="source_file",
        type=Path,
        metavar="FILE",
        help="file that holds that connection string",
    )
    add(
        "--from-database",
        dest="source_database",
        default=DEFAULT_DATABASE,
        metavar="NAME",
        help=f"its database (default: {DEFAULT_DATABASE})",
    )
    add("--only", dest="copy_partition", metavar="PARTITION", help="copy this partition only")
    return parser


def _source(options: argparse.Namespace) -> MongoSettings | None:
    uri: str | None = options.source
    file: Path | None = options.source_file
    if uri is not None and file is not None:
        raise UsageError("argument --from-file: not allowed with argument --from")
    if file is not None:
        uri = read_secret(file, "argument --from-file", "connection string")
    if uri is None:
        return None
    option = "argument --from" if file is None else "argument --from-file"
    return MongoSettings(uri=checked_uri(uri, option), database=options.source_database)


async def _run(
    settings: MongoSettings, source: MongoSettings | None, only: str | None, *, dry: bool
) -> None:
    connect = mongo_admin("connect")
    await mongo_admin("diagnosis").diagnose(settings)
    async with connect.connected(settings) as client:
        database = client[settings.database]
        if source is not None:
            async with connect.connected(source) as other:
                await _copy((other, source), (client, settings), only, dry=dry)
        await (_show_plan(database) if dry else _migrate(database))


async def _show_plan(database: Any) -> None:
    steps = await mongo_admin("migrate").plan(database)
    for step in steps:
        print(f"would {step.what}" + (f": {step.of}" if step.of > 1 else ""))
    print(f"{len(steps)} steps to do." if steps else "There is nothing to migrate.")


async def _migrate(database: Any) -> None:
    talk = _Progress()
    count = 0
    async for step in mongo_admin("migrate").migrate(database):
        count += 1
        talk.say(f"{step.what}: {step.done} of {step.of}", done=step.done >= step.of)
    print("Migrated." if count else "There is nothing to migrate.")


Side = tuple[Any, MongoSettings]


async def _copy(source: Side, target: Side, only: str | None, *, dry: bool) -> None:
    copying = mongo_admin("copy")
    talk = _Progress()
    await copying.wait_until_readable(
        source[0], lambda: talk.say("waiting for the server that --from names", done=False)
    )
    names = source[1].database, target[1].database
    await copying.check_different(source[0], target[0], names)
    databases = source[0][names[0]], target[0][names[1]]
    if only is not None:
        await _check_there(databases[0], only)
    if dry:
        for name in mongo_admin("partitions").OF_UPSTREAM:
            wanted = {} if only is None else {"partition_id": only}
            count = await databases[0][name].count_documents(wanted)
            print(f"would copy {name}: {count}")
        return
    await _check_unused(target, databases, only)
    last: dict[str, Copied] = {}
    async for copied in copying.copy(*databases, only):
        last[copied.name] = replace(copied)
        text = f"copy {copied.name}: {copied.seen} of {copied.of}, {copied.written} written"
        talk.say(text, done=copied.seen >= copied.of)
    _verify(list(last.values()))


async def _check_there(source: Any, only: str) -> None:
    """A name that is mistyped copies nothing."""
    for name in mongo_admin("partitions").OF_UPSTREAM:
        if await source[name].find_one({"partition_id": only}, {"_id": 1}) is not None:
            return
    ids = sorted(map(str, await source["rollouts"].distinct("partition_id")))
    raise EnvironmentFault(
        f"--only: the source has no partition {only!r}",
        remedy=f"it has {', '.join(map(repr, ids)) or 'none'}",
    )


async def _check_unused(target: Side, databases: tuple[Any, Any], only: str | None) -> None:
    """A server must not write where old documents are being copied to."""
    ids = [only] if only is not None else await databases[0]["rollouts"].distinct("partition_id")
    servers = await mongo_admin("servers").live_servers(target[0], databases[1])
    busy = [server for server in servers if server.partition_id in ids]
    if busy:
        raise EnvironmentFault(
            f"partition {busy[0].partition_id!r} of the target is in use by the store on {busy[0]}",
            remedy="stop that store until the copy is complete",
        )


def _verify(copied: list[Copied]) -> None:
    for one in copied:
        note = f", {one.ours} newer in the target and left alone" if one.ours else ""
        print(f"{one.name}: {one.seen} in the source, {one.missing} missing in the target{note}")
    if any(one.missing for one in copied):
        raise EnvironmentFault(
            "the source was written to while it was copied",
            remedy="stop what writes to it, then run the same command again",
        )


class _Progress:
    """Lines on standard error, not more than one in a while but for what is done."""

    def __init__(self) -> None:
        self._last = 0.0

    def say(self, text: str, *, done: bool) -> None:
        now = time.monotonic()
        if done or now - self._last >= _SAY_SECONDS:
            self._last = now
            print(text, file=sys.stderr, flush=True)
