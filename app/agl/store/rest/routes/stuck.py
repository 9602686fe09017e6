"""What may need an operator's look."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated
from urllib.parse import quote

from fastapi import Query

from agl.store.base import LightningStore
from agl.store.rest.errors import HttpError
from agl.store.rest.route import WireRoute
from agl.store.rest.service import Service
from agl.store.rest.wire import API_V1_AGL_PREFIX, StuckQuery, StuckReport, SuggestedItem
from agl.types import StuckItem

_AT_ONCE = 256


class StuckRoutes:
    """One method for each route."""

    def __init__(self, store: LightningStore, service: Service) -> None:
        self._store = store
        self._service = service

    def routes(self) -> list[WireRoute]:
        return [WireRoute("GET", f"{API_V1_AGL_PREFIX}/stuck", self.find_stuck, errors=(501,))]

    async def find_stuck(self, query: Annotated[StuckQuery, Query()]) -> StuckReport:
        """The rollouts queued, running and silent longest, with a command for each of them.

        The commands use ``$AGL_STORE``, the server's URL with the token in it if there is one.
        """
        try:
            found = await self._store.find_stuck(query.limit)
        except NotImplementedError:
            raise HttpError(501, "This store cannot tell what is stuck") from None
        items: list[SuggestedItem] = []
        for at in range(0, len(found), _AT_ONCE):
            items += [_suggested(item) for item in found[at : at + _AT_ONCE]]
            await asyncio.sleep(0)  # lets other requests in
        return StuckReport(items=items)


def _suggested(item: StuckItem) -> SuggestedItem:
    return SuggestedItem(**dict(item), command=suggestion(item))


def suggestion(item: StuckItem) -> str:
    """A command line for an operator."""
    rollout = f"/rollouts/{quote(item.rollout_id, safe='')}"
    if item.kind == "queued":
        return _post(rollout, "cancelled")
    if item.share is not None and item.share < 1:
        return f'curl "$AGL_STORE"{shlex.quote(API_V1_AGL_PREFIX + rollout)}'
    return _post(f"{rollout}/attempts/{quote(item.attempt_id or 'latest', safe='')}", "failed")


def _post(path: str, status: str) -> str:
    return (
        f'curl "$AGL_STORE"{shlex.quote(API_V1_AGL_PREFIX + path)} '
        f"-H 'Content-Type: application/json' -d '{{\"status\": \"{status}\"}}'"
    )
