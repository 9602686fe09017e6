"""``agl store prune``: remove a partition of a MongoDB database."""

from __future__ import annotations

import asyncio
import sys

from agl.cli import CommandParser
from agl.cli._mongo import add_mongo_options, check_partition, mongo_admin, mongo_settings
from agl.cli._partitions import size
from agl.config import MongoSettings
from agl.errors import EnvironmentFault, UsageError


def main(argv: list[str], prog: str) -> int:
    """Remove one partition; returns the exit code."""
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="Remove a partition with everything in it. There is no way back.",
    )
    parser.add_argument("partition", metavar="PARTITION", help="as 'partitions' lists it")
    add_mongo_options(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(argv)
    check_partition(options.partition)
    return asyncio.run(_prune(mongo_settings(options), options.partition, sure=options.yes))


async def _prune(settings: MongoSettings, partition_id: str, *, sure: bool) -> int:
    admin = mongo_admin("partitions")
    async with mongo_admin("connect").connected(settings) as client:
        database = client[settings.database]
        await _check_unused(client, database, partition_id)
        found = [
            partition
            for partition in await admin.list_partitions(database)
            if partition.partition_id == partition_id
        ]
        if not found:
            raise EnvironmentFault(
                f"database {settings.database!r} has no partition {partition_id!r}",
                remedy="'agl store partitions' lists those it has",
            )
        counts = found[0].counts
        what = (
            f"partition {partition_id!r} of database {settings.database!r}: "
            f"{counts.get('rollouts', 0)} rollouts ({found[0].unfinished} unfinished), "
            f"{counts.get('spans', 0)} spans, {size(found[0].size_bytes)}"
        )
        if not sure and not _confirmed(what, partition_id):
            print("Nothing was removed.")
            return 1
        await _check_unused(client, database, partition_id)  # while we asked
        removed = 0
        async for _, count in admin.prune(database, partition_id):
            removed += count
            if sys.stderr.isatty():
                print(f"\r{removed} documents removed", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        print(f"Removed {what}; {removed} documents.")
        return 0


async def _check_unused(client: object, database: object, partition_id: str) -> None:
    servers = await mongo_admin("servers").live_servers(client, database, partition_id)
    if servers:
        raise EnvironmentFault(
            f"partition {partition_id!r} is in use by the store on {', '.join(map(str, servers))}",
            remedy="stop that store first; one that was killed counts as alive for 20 s",
        )


def _confirmed(what: str, partition_id: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here; --yes removes without asking")
    print(f"This removes {what}. There is no way back.")
    try:
        return input("Type the name of the partition to remove it: ").strip() == partition_id
    except EOFError:
        return False
