"""Every index of every collection, and those of 0.3 that are in the way.

All begin with ``partition_id``. Those for pages end with ``_id``, the order of insertion, so that
no page in the orders that the store uses is sorted on the server. In others (a status together
with a time, any other field) the server sorts what an index finds. Keys that 0.3 made unique keep
its names, so its data needs no second copy of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import CollectionInvalid, OperationFailure

logger = logging.getLogger(__name__)

_EXISTS = frozenset((48, 68))
_SAME_KEYS = frozenset((68, 85))

Document = dict[str, Any]
Keys = tuple[tuple[str, int], ...]


class Index(NamedTuple):
    """One index: its keys with 1 (ascending) or -1 (descending)."""

    name: str
    keys: Keys
    unique: bool = False

    def model(self) -> IndexModel:
        """What the driver takes."""
        options: dict[str, Any] = {"unique": True} if self.unique else {}
        return IndexModel(list(self.keys), name=self.name, **options)


def unique(*fields: str) -> Index:
    """A primary key within the partition, named as 0.3 named it."""
    keys = tuple((field, 1) for field in ("partition_id", *fields))
    return Index("uniq_partition_" + "_".join(fields), keys, unique=True)


def ordered(*fields: str) -> Index:
    """For pages: equal values in the order of insertion; ``-name`` is descending."""
    keys = [(field.lstrip("-"), -1 if field.startswith("-") else 1) for field in fields]
    names = [name if direction == 1 else f"{name}_desc" for name, direction in keys]
    name = "_".join(["partition", *names, "order"])
    return Index(name, (("partition_id", 1), *keys, ("_id", 1)))


def lookup(*fields: str) -> Index:
    """For conditions whose matches are not shown in pages."""
    keys = tuple((field, 1) for field in ("partition_id", *fields))
    return Index("partition_" + "_".join(fields), keys)


INDEXES: Mapping[str, tuple[Index, ...]] = {
    "rollouts": (
        unique("rollout_id"),
        ordered(),
        ordered("status"),
        ordered("start_time"),
        ordered("-start_time"),
        ordered("status", "queued_at"),
        lookup("end_time"),
        lookup("deadline"),
        lookup("running_since", "config.timeout_seconds"),
    ),
    "attempts": (
        unique("rollout_id", "attempt_id"),
        ordered("rollout_id", "sequence_id"),
    ),
    "spans": (
        unique("rollout_id", "attempt_id", "span_id"),
        ordered("rollout_id", "sequence_id"),
        ordered("rollout_id", "attempt_id", "sequence_id"),
    ),
    "resources": (
        unique("resources_id"),
        ordered(),
        ordered("-update_time"),
    ),
    "workers": (
        unique("worker_id"),
        ordered(),
        ordered("status"),
    ),
    "rollout_queue": (
        unique("consumed", "_id"),
        lookup("value"),
    ),
    "span_sequence_ids": (unique("key"),),
    "counters": (lookup("seen"),),
    "state": (),
}
"""What each collection of a store needs, by its name."""

LEGACY = ("attempts", "rollout_queue")
"""Those that only 0.3 writes."""

OBSOLETE: Mapping[str, tuple[str, ...]] = {
    "rollouts": ("idx_status",),
    "attempts": ("idx_status", "idx_sequence_id"),
    "spans": ("idx_sequence_id",),
    "resources": ("idx_u_p_d_a_t_e___t_i_m_e",),
    "workers": ("idx_s_t_a_t_u_s",),
}
"""Indexes of 0.3 without ``partition_id`` or on single letters: they cost writes for nothing."""


def indexes_for(
    name: str, primary_keys: Sequence[str], extra: Sequence[str | Sequence[str]] = ()
) -> tuple[Index, ...]:
    """The indexes of a collection: those of the table, or of any other what its key needs.

    Each of ``extra`` is one field or several, asked for together.
    """
    wanted = dict.fromkeys(INDEXES.get(name) or (unique(*primary_keys), ordered()))
    for fields in extra:
        wanted[ordered(fields) if isinstance(fields, str) else ordered(*fields)] = None
    return tuple(wanted)


async def ensure_collection(
    database: AsyncDatabase[Document], name: str, indexes: Sequence[Index]
) -> list[str]:
    """Make a collection and those of its indexes that are missing; returns the names of these.

    Any number of processes may do so at once.

    Raises:
        PyMongoError: the server refused, or could not be reached.
    """
    try:
        await database.create_collection(name, check_exists=False)
    except CollectionInvalid:
        pass
    except OperationFailure as error:
        if error.code not in _EXISTS:
            raise
    collection = database[name]
    missing = await missing_indexes(collection, indexes)
    return [index.name for index in missing if await create_index(collection, index)]


async def missing_indexes(
    collection: AsyncCollection[Document], indexes: Sequence[Index]
) -> list[Index]:
    """Those that the collection has not, under whatever name."""
    stored = (await collection.index_information()).values()
    known = [(_keys(found["key"]), bool(found.get("unique"))) for found in stored]
    return [
        index
        for index in indexes
        if not any(keys == index.keys and (has or not index.unique) for keys, has in known)
    ]


def _keys(found: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple((field, int(direction)) for field, direction in found)


async def create_index(collection: AsyncCollection[Document], index: Index) -> bool:
    """Build one index; false if another process had done it, or one with its keys stands there.

    Raises:
        PyMongoError: the server refused, or could not be reached.
    """
    try:
        await collection.create_indexes([index.model()])
    except OperationFailure as error:
        if error.code not in _SAME_KEYS or index.unique:
            raise
        logger.info("Index %s of %s exists in another form", index.name, collection.name)
        return False
    return True
