"""The exporter's questions to the store: how it is, every few seconds and never inside a scrape."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from agl.cli._token import read_token
from agl.errors import EnvironmentFault, StoreError, UsageError

if TYPE_CHECKING:
    from agl.store.rest.client import LightningStoreClient
    from agl.utils.exporter_state import StateGauges

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""From one answer to the next question; no scrape asks more often."""

_ANSWER_SECONDS = 10.0
_UNAUTHORIZED = 401
_USER = "agl"


class StatePoll:
    """Asks a store for its state, and hands it on.

    Args:
        url: Of the store, with ``agl:TOKEN@`` before the host or without.
        token_file: File with the store's API token. It is read anew for every question, so that a
            new token needs no restart.
        gauges: Who is told.
        certificate: The store's own certificate, to be trusted; ``None`` for the system's trust.

    Raises:
        UsageError: the URL cannot be used, or says a token as well.
        EnvironmentFault: there is no token in the file.
    """

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        gauges: StateGauges,
        certificate: Path | None = None,
    ) -> None:
        from agl.store.rest.transport import split_credentials

        try:
            self.shown, credentials = split_credentials(url)
        except ValueError as error:
            raise UsageError(f"argument --store-url: {error}") from error
        if token_file is not None and credentials is not None:
            raise UsageError(
                "argument --store-token-file: the token is in --store-url already; "
                "leave it out there"
            )
        self._url = url
        self._token_file = token_file
        self._certificate = certificate
        self.gauges = gauges
        self._client: LightningStoreClient | None = None
        self._token: str | None = None
        self._trouble: str | None = None
        self._read_token()

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                await self.ask()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self._forget_client()

    async def ask(self) -> None:
        """Ask once. A failure is logged unless it is the one of last time."""
        try:
            state = await (await self._ready_client()).state()
        except Exception as error:
            self.gauges.failed()
            self._note(self._reason(error))
            await self._forget_client()  # the next one reads the certificate anew
            return
        self.gauges.told(state.model_dump())
        self._note(None)

    async def _ready_client(self) -> LightningStoreClient:
        from agl.store.rest.client import LightningStoreClient

        token = self._read_token()
        if self._client is None or token != self._token:
            await self._forget_client()
            self._token = token
            self._client = LightningStoreClient(
                self._url if token is None else with_token(self._url, token),
                retry_delays=(),
                request_timeout=_ANSWER_SECONDS,
                certificate=self._certificate,
            )
        return self._client

    async def _forget_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _read_token(self) -> str | None:
        file = self._token_file
        return None if file is None else read_token(file, "--store-token-file")

    def _note(self, trouble: str | None) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble is not None and trouble != before:
            logger.warning("The store at %s does not tell its state: %s", self.shown, trouble)
        elif trouble is None and before is not None:
            logger.info("The store at %s tells its state again", self.shown)

    def _reason(self, error: Exception) -> str:
        import aiohttp

        if isinstance(error, aiohttp.ClientResponseError):
            if error.status == _UNAUTHORIZED:
                return f"it wants another token ({_source(self._token_file)})"
            return f"it answered {error.status}: {error.message}"
        if isinstance(error, TimeoutError):
            return f"no answer within {_ANSWER_SECONDS:g} s"
        known = (aiohttp.ClientError, StoreError, EnvironmentFault, NotImplementedError)
        if isinstance(error, FileNotFoundError):
            return f"there is no certificate at {self._certificate}"
        return f"{error}" if isinstance(error, known) else f"{type(error).__name__}: {error}"


def _source(token_file: Path | None) -> str:
    return "see --store-url" if token_file is None else f"see {token_file}"


def with_token(url: str, token: str) -> str:
    """The URL with the token as password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{_USER}:{quote(token, safe='')}@{parts.netloc}"))
