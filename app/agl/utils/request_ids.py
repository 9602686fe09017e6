"""Ids that follow from the key of the request that creates something.

A client that got no answer sends its request again with the same key. Another server process may
then carry it out a second time: it draws the same ids, and finds by them what is there already.
Without a key ids are random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from agl.utils.id import generate_id

_MARK_DIGITS = 16


class RequestIds:
    """The ids of one request.

    Args:
        key: Names the request.
        sent_again: The client says that it has sent it before.
    """

    def __init__(self, key: str, *, sent_again: bool = False) -> None:
        self._key = key
        self._drawn = 0
        self.sent_again = sent_again

    @cached_property
    def mark(self) -> str:
        """16 hex digits by which what this request has written tells that it did."""
        return self._id(1, _MARK_DIGITS)

    def draw(self, length: int) -> str:
        """The next one."""
        self._drawn += 1
        return self._id(self._drawn, length)

    def restart(self) -> None:
        """Draw the same ids again: what they were drawn for begins anew."""
        self._drawn = 0

    def first(self, count: int, length: int) -> list[str]:
        """The first that there are, drawn or not."""
        return [self._id(number, length) for number in range(1, count + 1)]

    def _id(self, number: int, length: int) -> str:
        return hashlib.sha256(f"{number} {self._key}".encode()).hexdigest()[:length]


_current: ContextVar[RequestIds | None] = ContextVar("agl_request_ids", default=None)


@contextmanager
def ids_of_request(ids: RequestIds) -> Generator[None]:
    """Within it, :func:`draw_id` takes these."""
    token = _current.set(ids)
    try:
        yield
    finally:
        _current.reset(token)


def request_ids() -> RequestIds | None:
    """The ids of the request that is being carried out; ``None`` when it has no key."""
    return _current.get()


_sent_again: ContextVar[bool] = ContextVar("agl_sent_again", default=False)


@contextmanager
def sending_again() -> Generator[None]:
    """Within it, the work is that of a request whose first answer may have been lost."""
    token = _sent_again.set(True)
    try:
        yield
    finally:
        _sent_again.reset(token)


def sent_again() -> bool:
    """Whether what is there already may be the work of this very request."""
    return _sent_again.get()


def draw_id(length: int) -> str:
    """``length`` lower-case hex digits: of the request, or random."""
    ids = _current.get()
    return generate_id(length) if ids is None else ids.draw(length)
