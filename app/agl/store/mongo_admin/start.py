"""What a store does before it serves: diagnose MongoDB, look for others, say what there is."""

from __future__ import annotations

import asyncio
import logging

from agl.config import MongoSettings
from agl.errors import EnvironmentFault
from agl.store.collection.mongo.indexes import INDEXES, LEGACY, ensure_collection
from agl.store.collection.mongo.totals import Reconciler
from agl.store.mongo_admin.connect import Database, connected, place
from agl.store.mongo_admin.diagnosis import (
    BEST_SERVER,
    BEST_WIRE_VERSION,
    SKEW_SECONDS,
    Server,
    diagnose,
)
from agl.store.mongo_admin.partitions import instance_of, known_instance, unfinished_rollouts
from agl.store.mongo_admin.servers import StoreServer, live_servers

logger = logging.getLogger("agl.cli.store")

_LONG_SECONDS = 3.0
"""After so long without a sign one is told what goes on."""


async def prepare(mongo: MongoSettings, server: StoreServer, *, exclusive: bool) -> str:
    """The instance id of the partition, once everything is known to be in order.

    Args:
        mongo: Which data.
        server: The one that is about to start.
        exclusive: Refuse when another live server uses the partition; otherwise warn.

    Raises:
        EnvironmentFault: MongoDB cannot be used, or the partition is in use.
    """
    found = await diagnose(mongo)
    announce(mongo, found)
    async with connected(mongo) as client:
        database = client[mongo.database]
        others = [
            other
            for other in await live_servers(client, database, mongo.partition_id)
            if (other.host, other.port) != (server.host, server.port)  # what ran here before
        ]
        if others:
            _others_use_it(mongo.partition_id, others, exclusive=exclusive)
        instance_id = await instance_of(database, mongo.partition_id)
        unfinished = await unfinished_rollouts(database, mongo.partition_id)
        await _build(database, mongo.partition_id)
    logger.info(
        "Partition %r of database %r holds %d unfinished rollouts.",
        mongo.partition_id,
        mongo.database,
        unfinished,
    )
    return instance_id


async def _build(database: Database, partition_id: str) -> None:
    """Indexes and totals of what is there already: with millions of rollouts it takes a while, so
    it is done before there is anybody to wait, once instead of in every server process.
    """
    sign = asyncio.get_running_loop().call_later(
        _LONG_SECONDS,
        logger.info,
        "Building what is missing of the indexes and counting what partition %r holds, once; this "
        "takes about a minute for some millions of rollouts.",
        partition_id,
    )
    wanted = {name: indexes for name, indexes in INDEXES.items() if name not in LEGACY}
    try:
        await asyncio.gather(*(ensure_collection(database, *one) for one in wanted.items()))
        await Reconciler(database, partition_id).prepare()
    finally:
        sign.cancel()


async def instance_at(mongo: MongoSettings) -> str | None:
    """The instance id of the partition that these settings lead to, if it was ever served.

    Raises:
        EnvironmentFault: They lead nowhere.
    """
    await diagnose(mongo)
    async with connected(mongo) as client:
        return await known_instance(client[mongo.database], mongo.partition_id)


def announce(mongo: MongoSettings, found: Server) -> None:
    """Log what was found, and what of it should be changed."""
    logger.info("MongoDB %s at %s, %s.", found.version, place(mongo), found.kind)
    if found.wire_version < BEST_WIRE_VERSION:
        logger.warning(
            "MongoDB %s needs more round trips than MongoDB %s or newer.",
            found.version,
            BEST_SERVER,
        )
    if abs(found.skew_seconds) > SKEW_SECONDS:
        logger.warning(
            "This machine's clock is %.1f s %s MongoDB's. Timeouts go by MongoDB's, but rollouts "
            "enqueued here queue up as if so much %s. Let all machines follow a time server.",
            abs(found.skew_seconds),
            "ahead of" if found.skew_seconds > 0 else "behind",
            "later" if found.skew_seconds > 0 else "earlier",
        )


def _others_use_it(partition_id: str, others: list[StoreServer], *, exclusive: bool) -> None:
    names = ", ".join(map(str, others))
    if exclusive:
        raise EnvironmentFault(
            f"partition {partition_id!r} is in use by the store on {names} (--exclusive-partition)",
            remedy="stop that store, or choose another --partition-id",
        )
    logger.warning(
        "Partition %r is also in use by the store on %s. That is right for several servers of one "
        "deployment; two trainings need a --partition-id each.",
        partition_id,
        names,
    )
