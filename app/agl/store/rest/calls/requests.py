"""What all calls of the client share: requests, answers read into models, what the server has."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import TypeAdapter, ValidationError

from agl.errors import NotFoundError
from agl.store.base import LightningStore, SortOrder, Unset
from agl.store.rest.transport import Transport
from agl.store.rest.wire import API_V1_AGL_PREFIX, Health, dump

logger = logging.getLogger("agl.store.client")

T = TypeVar("T")

BATCH_ITEMS = 1000
"""Items sent in one request; more are several of them."""

_HEALTH = TypeAdapter(Health)
_NO_SUCH_ENDPOINT = (404, 405)


class NoSuchEndpointError(Exception):
    """The server does not have what it was thought to have: it is another one by now."""


class ClientCore(LightningStore):
    """Requests to one server."""

    _transport: Transport

    async def health(self) -> Health:
        """Which server answers and what it can do; of an 0.3 server only that it is there."""
        health = await self._get("/health", _HEALTH)
        self._transport.features = frozenset(health.features)
        return health

    async def _server_has(self, feature: str) -> bool:
        """Whether the server has something beyond 0.3; asked for once, and after each failure."""
        if self._transport.features is None:
            await self.health()
        return feature in (self._transport.features or ())

    async def _post_new(self, path: str, adapter: TypeAdapter[T], body: Any) -> T:
        """Post to an endpoint that 0.3 does not have.

        Raises:
            NoSuchEndpointError: nor has this server; what it has is asked for anew.
        """
        try:
            return await self._post(path, adapter, body)
        except aiohttp.ClientResponseError as error:
            if error.status not in _NO_SUCH_ENDPOINT:
                raise
            self._transport.features = None
            raise NoSuchEndpointError(path) from error

    async def _get(
        self, path: str, adapter: TypeAdapter[T], params: Sequence[tuple[str, str]] = ()
    ) -> T:
        answer = await self._transport.request("GET", API_V1_AGL_PREFIX + path, params=params)
        return read(adapter, answer)

    async def _post(
        self,
        path: str,
        adapter: TypeAdapter[T],
        body: Any | Unset,
        *,
        once: bool = False,
        repeat_if: str | None = None,
        takes: float = 0.0,
    ) -> T:
        raw = None if isinstance(body, Unset) else dump(body)
        answer = await self._transport.request(
            "POST", API_V1_AGL_PREFIX + path, body=raw, once=once, repeat_if=repeat_if, takes=takes
        )
        return read(adapter, answer)

    async def _get_or_none(self, path: str, adapter: TypeAdapter[T]) -> T | None:
        try:
            return await self._get(path, adapter)
        except NotFoundError:
            return None
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
                raise
            logger.error("GET %s failed, answering None: %s", path, error)
            return None


def part(identifier: str) -> str:
    """An id as a segment of a path."""
    return quote(identifier, safe="")


def parts(items: Sequence[T]) -> list[list[T]]:
    """Items in lots of one request each."""
    return [list(items[at : at + BATCH_ITEMS]) for at in range(0, len(items), BATCH_ITEMS)]


def given(**values: Any) -> Mapping[str, Any]:
    """The arguments that were given."""
    return {name: value for name, value in values.items() if not isinstance(value, Unset)}


def listed(values: Sequence[T] | None) -> list[T] | None:
    """A sequence as JSON has it."""
    return None if values is None else list(values)


def paging(sort_by: str | None, sort_order: SortOrder, limit: int, offset: int) -> dict[str, Any]:
    """Which page is asked for."""
    return {"sort_by": sort_by, "sort_order": sort_order, "limit": limit, "offset": offset}


def read(adapter: TypeAdapter[T], answer: bytes) -> T:
    """Parse an answer; pydantic's parser does not go as deep as an input in an answer can be."""
    try:
        return adapter.validate_json(answer)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] != "json_invalid":
            raise
    return adapter.validate_python(json.loads(answer))
