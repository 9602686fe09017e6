"""``agl store partitions``: what a MongoDB database holds."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

from agl.cli import CommandParser
from agl.cli._mongo import add_mongo_options, mongo_admin, mongo_settings
from agl.config import MongoSettings

if TYPE_CHECKING:
    from agl.store.mongo_admin.partitions import Partition
    from agl.store.mongo_admin.servers import StoreServer

HEADINGS = ("PARTITION", "ROLLOUTS", "UNFINISHED", "SPANS", "SIZE", "LAST ACTIVITY", "SERVED BY")

Found = tuple["list[Partition]", "list[StoreServer]"]


def main(argv: list[str], prog: str) -> int:
    """List the partitions; returns the exit code."""
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="List the partitions of a database of the mongo backend.",
    )
    add_mongo_options(parser)
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="a table, or one JSON array (default: text)",
    )
    options = parser.parse_args(argv)
    settings = mongo_settings(options)
    partitions, servers = asyncio.run(_look(settings))
    if options.format == "json":
        print(json.dumps([_object(partition, servers) for partition in partitions], indent=2))
    else:
        print(render(partitions, servers, settings.database, time.time()))
    return 0


async def _look(settings: MongoSettings) -> Found:
    async with mongo_admin("connect").connected(settings) as client:
        database = client[settings.database]
        partitions = await mongo_admin("partitions").list_partitions(database)
        return partitions, await mongo_admin("servers").live_servers(client, database)


def _object(partition: Partition, servers: list[StoreServer]) -> dict[str, Any]:
    return {
        **dataclasses.asdict(partition),
        "served_by": _served_by(partition, servers),
    }


def _served_by(partition: Partition, servers: list[StoreServer]) -> list[str]:
    return [str(one) for one in servers if one.partition_id == partition.partition_id]


def render(
    partitions: list[Partition], servers: list[StoreServer], database: str, now: float
) -> str:
    """A table with a line for each partition."""
    if not partitions:
        return f"Database {database!r} holds no partition."
    rows = [HEADINGS, *(_row(partition, servers, now) for partition in partitions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(partition: Partition, servers: list[StoreServer], now: float) -> tuple[str, ...]:
    last = partition.last_activity
    return (
        partition.partition_id,
        str(partition.counts.get("rollouts", 0)),
        str(partition.unfinished),
        str(partition.counts.get("spans", 0)),
        size(partition.size_bytes),
        "-" if last is None else ago(now - last),
        ", ".join(_served_by(partition, servers)) or "-",
    )


def size(count: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def ago(seconds: float) -> str:
    """A time that has passed, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
