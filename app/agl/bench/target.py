"""The store under load: is it there, and which process is it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

import aiohttp

from agl.errors import EnvironmentFault, UsageError
from agl.store.rest.transport import split_credentials
from agl.store.rest.wire import API_V1_AGL_PREFIX, HEALTH_PATH

T = TypeVar("T")

_PROBE_TIMEOUT_SECONDS = 5.0
_STATISTICS_PATH = API_V1_AGL_PREFIX + "/statistics"
_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 3.0


class DeadlinePassedError(Exception):
    """The time given for the whole run is over."""


def checked_url(url: str, option: str) -> str:
    """Return ``url`` without a trailing slash.

    Raises:
        UsageError: it is not an http or https URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_valid_port(parts):
        raise UsageError(f"{option} must look like http://host:port, not {redacted(url)!r}")
    return url.rstrip("/")


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def redacted(url: str) -> str:
    """Return ``url`` without user name and password, fit for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def store_instance(url: str) -> str:
    """Return the id of the store process that answers at ``url``; "" when it does not tell.

    Raises:
        EnvironmentFault: nothing answers, or what answers is not a store.
    """
    try:
        body = await _get(url + HEALTH_PATH)
    except ValueError:
        body = None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if _is_refused(error):
            raise refusal(url, error) from error
        raise EnvironmentFault(
            f"no store answers at {redacted(url)}: {_reason(error)}",
            remedy=_remedy(error),
        ) from error
    if not isinstance(body, dict):
        raise no_store(url)
    return str(cast("dict[str, object]", body).get("instance_id", ""))


async def require_access(url: str) -> None:
    """Make sure that a store answers at ``url`` and takes the credentials in it.

    Raises:
        EnvironmentFault: it does not.
    """
    await store_instance(url)
    try:
        await _get(url + _STATISTICS_PATH)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise refusal(url, error) from error


def no_store(url: str) -> EnvironmentFault:
    """Return what to say when the answers at ``url`` are not those of a store."""
    return EnvironmentFault(
        f"what answers at {redacted(url)} is not a store", remedy="correct --store-url"
    )


def _is_refused(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403)


def refusal(url: str, error: Exception) -> EnvironmentFault:
    """Return what to say when a store that is healthy answers a question with ``error``."""
    where = redacted(url)
    if _is_refused(error):
        return EnvironmentFault(
            f"the store at {where} refuses the client: {_reason(error)}",
            remedy="put its API token into --store-url: http://agl:TOKEN@host:port",
        )
    return EnvironmentFault(f"the store at {where} does not answer a query: {_reason(error)}")


async def _get(url: str) -> object:
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_SECONDS)
    root, authorization = split_credentials(url)
    headers = {"Authorization": authorization} if authorization else {}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(root) as response,
    ):
        response.raise_for_status()
        return await response.json()


def _remedy(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to a PEM file that vouches for the store"
    return "start one with `agl store`, or correct --store-url"


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: no connection, a timeout, or a 5xx answer."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= 500 or error.status in (408, 429)
    return isinstance(error, (aiohttp.ClientError, OSError, TimeoutError))


class Persistence:
    """Repeats calls that fail for a passing reason, with growing pauses, until a deadline.

    ``deadline`` is seconds since the epoch; ``over`` may end it sooner; ``tell`` hears when the
    store goes away and when it is back. ``retries`` counts repeats.
    """

    def __init__(
        self,
        deadline: float,
        over: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._deadline = deadline
        self._over = over
        self._tell = tell
        self._away_since: float | None = None
        self.retries = 0

    @property
    def is_away(self) -> bool:
        """Whether the last call got no answer."""
        return self._away_since is not None

    def is_over(self) -> bool:
        """Whether no further try may be made."""
        return self._over() or time.time() >= self._deadline

    async def pause(self, failures: int) -> None:
        """Sleep after the given number of failures in a row, counting a retry.

        Raises:
            DeadlinePassedError: there is no time for another try.
        """
        if self.is_over():
            raise DeadlinePassedError
        self.retries += 1
        delay = min(_FIRST_DELAY_SECONDS * 2**failures, _LONGEST_DELAY_SECONDS)
        await asyncio.sleep(delay)

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return the operation's result, however often it takes.

        Raises:
            DeadlinePassedError: it kept failing until the deadline.
            Exception: whatever it raised that time does not heal.
        """
        failures = 0
        while True:
            try:
                result = await operation()
            except Exception as error:
                if not is_transient(error):
                    raise
                failures += 1
                self._note_away(error)
            else:
                self._note_back()
                return result
            await self.pause(failures)

    def _note_away(self, error: Exception) -> None:
        if self._away_since is not None:
            return
        self._away_since = time.time()
        left = max(self._deadline - self._away_since, 0)
        self._tell(f"the store does not answer ({_reason(error)}); waiting up to {left:.0f} s")

    def _note_back(self) -> None:
        if self._away_since is not None:
            self._tell(f"the store answers again after {time.time() - self._away_since:.1f} s")
            self._away_since = None


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"HTTP {error.status}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_PROBE_TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__
