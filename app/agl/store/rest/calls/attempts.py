"""Attempts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import TypeAdapter

from agl.errors import StoreError
from agl.store.base import UNSET, SortOrder, Unset
from agl.store.rest.calls.requests import (
    ClientCore,
    NoSuchEndpointError,
    given,
    paging,
    part,
    parts,
)
from agl.store.rest.wire import AttemptUpdateResult, StuckReport, error_from_answer
from agl.types import (
    Attempt,
    AttemptStatus,
    AttemptUpdate,
    PaginatedResult,
    StuckItem,
)

_ATTEMPT = TypeAdapter(Attempt)
_ATTEMPT_OR_NONE = TypeAdapter(Attempt | None)
_ATTEMPT_PAGE = TypeAdapter(PaginatedResult[Attempt])
_STUCK = TypeAdapter(StuckReport)
_UPDATE_RESULTS = TypeAdapter(list[AttemptUpdateResult])


class AttemptCalls(ClientCore):
    """start, query, update; what is stuck."""

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        body = paging(sort_by, sort_order, limit, offset)
        path = f"/rollouts/{part(rollout_id)}/attempts/search"
        return await self._post(path, _ATTEMPT_PAGE, body)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The latest attempt; ``None`` also (logged) when the server cannot be reached."""
        path = f"/rollouts/{part(rollout_id)}/attempts/latest"
        return await self._get_or_none(path, _ATTEMPT_OR_NONE)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset = UNSET,
    ) -> Attempt:
        changes = given(
            status=status,
            worker_id=worker_id,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
        )
        path = f"/rollouts/{part(rollout_id)}/attempts/{part(attempt_id)}"
        return await self._post(path, _ATTEMPT, changes)

    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        """Update attempts in one request; in one for each of them where the server is of 0.3."""
        results: list[Attempt | StoreError] = []
        for lot in parts(updates):
            results += await self._update(lot)
        return results

    async def _update(self, updates: Sequence[AttemptUpdate]) -> Sequence[Attempt | StoreError]:
        if len(updates) > 1 and await self._server_has("attempts-batch"):
            body = {"updates": [_as_sent(update) for update in updates]}
            with suppress(NoSuchEndpointError):
                answers = await self._post_new("/attempts/batch", _UPDATE_RESULTS, body)
                return [_update_result(answer) for answer in answers]
        return await super().update_many_attempts(updates)

    async def find_stuck(self, limit: int = 20) -> Sequence[StuckItem]:
        return (await self.stuck_report(limit)).items

    async def stuck_report(self, limit: int = 20) -> StuckReport:
        """As ``find_stuck``, with a command line for each item."""
        return await self._get("/stuck", _STUCK, [("limit", str(limit))])


def _update_result(answer: AttemptUpdateResult) -> Attempt | StoreError:
    if answer.attempt is not None:
        return answer.attempt
    failure = answer.error
    error = failure and error_from_answer(failure.status, dict(failure))
    if error is None:
        raise RuntimeError("The server told neither an attempt nor an error.")
    return error


def _as_sent(update: AttemptUpdate) -> dict[str, Any]:
    return {
        "rollout_id": update.rollout_id,
        "attempt_id": update.attempt_id,
        **update.changes(),
    }
