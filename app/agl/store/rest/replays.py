"""Answers kept for a while, so that a request that is sent again is not carried out again.

A client that loses the connection between request and answer cannot know which of the two got
lost. It sends the request again with the same ``Idempotency-Key``; what was carried out already is
answered as the first time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agl.store.rest.errors import HttpError, Reply
from agl.utils.request_ids import RequestIds, ids_of_request

KEY_HEADER = b"idempotency-key"
LONGEST_KEY = 200
KEPT_SECONDS = 300.0
KEPT_BYTES = 16 * 2**20
ENTRY_BYTES = 500
"""What an entry takes besides its texts: measured with tracemalloc, 534 bytes with 65 of text."""


@dataclass(slots=True)
class _Kept:
    answer: asyncio.Future[Reply]
    size: int
    since: float


class Replays:
    """Answers by key; the oldest go when there are too many or their time is over.

    A failure is not kept: nothing was carried out, so the next request of the key tries again.
    """

    def __init__(
        self,
        kept_seconds: float = KEPT_SECONDS,
        kept_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = kept_seconds
        self._most_bytes = kept_bytes
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def once(
        self,
        path: str,
        key: str,
        work: Callable[[], Awaitable[Reply]],
        *,
        sent_again: bool = False,
    ) -> Reply:
        """The answer to the first request of this key; ``work`` makes it, if there was none.

        Args:
            path: The key is one of this path.
            key: Names the request.
            work: Carries it out. What it creates gets ids that follow from the key, so that a
                process that never saw the first request finds what that has created.
            sent_again: The client says that it has sent the request before.

        Raises:
            HttpError: 400, the key is too long.
        """
        if len(key) > LONGEST_KEY:
            raise HttpError(400, f"Idempotency-Key is longer than {LONGEST_KEY} characters")
        known = self._kept.get((path, key))
        while known is not None:
            try:
                return await asyncio.shield(known.answer)
            except _NotCarriedOutError:
                known = self._kept.get((path, key))
        ids = RequestIds(f"{path} {key}", sent_again=sent_again)
        return await self._first((path, key), work, ids)

    async def _first(
        self, place: tuple[str, str], work: Callable[[], Awaitable[Reply]], ids: RequestIds
    ) -> Reply:
        kept = _Kept(asyncio.get_running_loop().create_future(), 0, self._clock())
        self._kept[place] = kept
        try:
            with ids_of_request(ids):
                reply = await work()
        except BaseException:
            del self._kept[place]
            kept.answer.set_exception(_NotCarriedOutError())
            kept.answer.exception()  # read, so that nobody complains that it was not
            raise
        kept.answer.set_result(reply)
        kept.size = ENTRY_BYTES + len(reply.body) + len(place[0]) + len(place[1])
        kept.since = self._clock()
        self._kept.move_to_end(place)
        self._bytes += kept.size
        self._drop_old()
        return reply

    def _drop_old(self) -> None:
        oldest_allowed = self._clock() - self._seconds
        for place, kept in list(self._oldest()):
            if self._bytes <= self._most_bytes and kept.since >= oldest_allowed:
                return
            del self._kept[place]
            self._bytes -= kept.size

    def _oldest(self) -> list[tuple[tuple[str, str], _Kept]]:
        found: list[tuple[tuple[str, str], _Kept]] = []
        for place, kept in self._kept.items():
            if kept.answer.done():
                found.append((place, kept))
            if len(found) == 16:
                break
        return found


class _NotCarriedOutError(Exception):
    """The first request of the key failed."""
