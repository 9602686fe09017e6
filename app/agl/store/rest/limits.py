"""How much one server takes on, and the answers when it is more."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from agl.store.rest.errors import HttpError

LONGEST_WAIT_SECONDS = 60.0
"""A wait over HTTP is answered after this time at the latest; who wants longer asks again."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server process; what exceeds them is refused with the limit named."""

    max_requests: int = 2048
    """Requests under way at once, waits and health left out; more are answered 503."""

    max_waits: int = 4096
    """Waits for rollouts under way at once; more are answered 503."""

    max_batch_items: int = 100_000
    """Items in one request: rollouts, spans, ids or updates; more are answered 413."""

    def check_batch(self, items: Sized, what: str) -> None:
        """Refuse a batch that is too large.

        Raises:
            HttpError: 413.
        """
        if len(items) > self.max_batch_items:
            raise HttpError(
                413,
                f"{len(items)} {what} in one request; the limit is {self.max_batch_items}, "
                "send several requests",
            )


def overloaded(what: str, retry_after: int = 1) -> HttpError:
    """The answer to a request there is no room for; clients try again."""
    return HttpError(503, what, headers=((b"retry-after", str(retry_after).encode()),))


def stopping() -> HttpError:
    """The answer of a server that is about to stop."""
    return overloaded("The server is stopping")
