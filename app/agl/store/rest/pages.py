"""Long pages turned into JSON in slices, between which the event loop runs other calls.

Stored objects are never changed in place, so a page stays what it was when the store gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

from pydantic_core import to_json

from agl.types import PaginatedResult
from agl.utils.encoded import EncodedItems

SLICE = 128
"""Items encoded in one go: a fraction of a millisecond, unless they are very large."""


def is_long_page(value: object) -> TypeGuard[PaginatedResult[Any]]:
    """Whether it takes more than one slice."""
    if not isinstance(value, PaginatedResult):
        return False
    return len(cast("PaginatedResult[Any]", value).items) > SLICE


async def dump_in_slices(page: PaginatedResult[Any]) -> list[bytes]:
    """The parts of what :func:`agl.store.rest.wire.dump` gives in one piece."""
    parts: list[bytes] = []
    for start in range(0, len(page.items), SLICE):
        before = b"," if start else b'{"items":['
        parts.append(before + _between(page.items, start, start + SLICE))
        await asyncio.sleep(0)
    rest = to_json({"limit": page.limit, "offset": page.offset, "total": page.total})
    parts.append(b"]," + rest[1:])
    return parts


def _between(items: Sequence[Any], start: int, stop: int) -> bytes:
    if isinstance(items, EncodedItems):
        return items.json_between(start, stop)
    return to_json(items[start:stop], inf_nan_mode="null")[1:-1]
