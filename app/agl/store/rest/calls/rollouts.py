"""Rollouts, the queue and waits."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import aiohttp
from pydantic import TypeAdapter

from agl.store.base import (
    UNSET,
    FilterLogic,
    LightningStoreStatistics,
    SortOrder,
    Unset,
)
from agl.store.rest.calls.requests import ClientCore, given, listed, paging, part, parts
from agl.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    StoreState,
    TaskInput,
)

logger = logging.getLogger("agl.store.client")

T = TypeVar("T")

WAIT_SECONDS = 50.0
"""How long one request waits for rollouts; a longer wait is several of them."""

_ATTEMPTED = TypeAdapter(AttemptedRollout)
_ATTEMPTED_LIST = TypeAdapter(list[AttemptedRollout])
_ROLLOUT = TypeAdapter(Rollout)
_ROLLOUT_ANY: TypeAdapter[Rollout] = TypeAdapter(AttemptedRollout | Rollout)
_ROLLOUT_LIST = TypeAdapter(list[Rollout])
_ROLLOUT_PAGE: TypeAdapter[PaginatedResult[Rollout]] = TypeAdapter(
    PaginatedResult[AttemptedRollout | Rollout]
)
_STATISTICS = TypeAdapter(dict[str, Any])
_STATE = TypeAdapter(StoreState)
_WITHOUT_STATE = (404, 405, 501)


class RolloutCalls(ClientCore):
    """start, enqueue, dequeue, query, update, wait."""

    async def statistics(self) -> LightningStoreStatistics:
        return cast("LightningStoreStatistics", await self._get("/statistics", _STATISTICS))

    async def state(self) -> StoreState:
        """As promised by the base.

        Raises:
            NotImplementedError: the server, or the store behind it, does not keep the figures.
        """
        try:
            return await self._get("/state", _STATE)
        except aiohttp.ClientResponseError as error:
            if error.status not in _WITHOUT_STATE:
                raise
            raise NotImplementedError(
                f"The server at {self._transport.root} does not tell its state: it answered "
                f"{error.status} to GET /v1/agl/state; agl-stack's stores do, 0.3's do not"
            ) from error

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        body = {
            "input": input,
            "mode": mode,
            "resources_id": resources_id,
            "config": config,
            "metadata": metadata,
            "worker_id": worker_id,
        }
        return await self._post("/rollouts", _ATTEMPTED, body, once=True)

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        one = {
            "input": input,
            "mode": mode,
            "resources_id": resources_id,
            "config": config,
            "metadata": metadata,
        }
        stored = await self._enqueue([one])
        if not stored:
            raise RuntimeError("The server enqueued nothing.")
        return stored[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        return [stored for part in parts(rollouts) for stored in await self._enqueue(part)]

    async def _enqueue(self, rollouts: list[Any]) -> list[Rollout]:
        body = {"rollouts": rollouts}
        return await self._post("/queues/rollouts/enqueue", _ROLLOUT_LIST, body, once=True)

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        """Claim the oldest queued rollout; ``None`` also when the server cannot be reached."""
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        """Claim rollouts; where an answer is lost, our servers give the same ones again.

        Servers of 0.3 would give others, so they are asked once: what a lost answer had claimed is
        then for the watchdog. Nothing is claimed (and nothing raised) when the server cannot be
        reached; refused credentials and the like do raise.
        """
        if limit <= 0:
            return []
        body: dict[str, Any] = {"limit": limit}
        if worker_id is not None:
            body["worker_id"] = worker_id
        try:
            await self._server_has("idempotency")
            claimed = await self._post(
                "/queues/rollouts/dequeue",
                _ATTEMPTED_LIST,
                body,
                once=True,
                repeat_if="idempotency",
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
                raise
            self._note_failed_dequeue(error)
            return []
        self._dequeued_before, self._dequeue_warned = True, False
        return claimed

    def _note_failed_dequeue(self, error: Exception) -> None:
        warn = self._dequeued_before and not self._dequeue_warned
        self._dequeue_warned = self._dequeue_warned or warn
        logger.log(
            logging.WARNING if warn else logging.DEBUG,
            "Dequeue failed, claiming nothing: %s",
            error,
        )

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        body = UNSET if worker_id is None else {"worker_id": worker_id}
        path = f"/rollouts/{part(rollout_id)}/attempts"
        return await self._post(path, _ATTEMPTED, body, once=True)

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        body = {
            "status_in": _renamed("status", status, "status_in", status_in),
            "rollout_id_in": _renamed("rollout_ids", rollout_ids, "rollout_id_in", rollout_id_in),
            "rollout_id_contains": rollout_id_contains,
            "filter_logic": filter_logic,
            **paging(sort_by, sort_order, limit, offset),
        }
        return await self._post("/rollouts/search", _ROLLOUT_PAGE, body)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """The rollout; ``None`` when unknown, or (logged) when the server cannot be reached."""
        return await self._get_or_none(f"/rollouts/{part(rollout_id)}", _ROLLOUT_ANY)

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        changes = given(
            input=input,
            mode=mode,
            resources_id=resources_id,
            status=status,
            config=config,
            metadata=metadata,
        )
        return await self._post(f"/rollouts/{part(rollout_id)}", _ROLLOUT, changes)

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        """Wait until all are finished, or ``timeout`` seconds have passed; ``None`` for no limit.

        A long wait is several requests, so no timeout between here and the server cuts it off.

        Raises:
            ValueError: ``timeout`` is NaN.
        """
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not NaN")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            began = time.monotonic()
            left = WAIT_SECONDS if deadline is None else max(deadline - began, 0.0)
            patience = min(left, WAIT_SECONDS)
            body = {"rollout_ids": list(rollout_ids), "timeout": patience}
            found = await self._post("/waits/rollouts", _ROLLOUT_LIST, body, takes=patience)
            answered_early = time.monotonic() - began < patience
            if answered_early or len(found) == len(rollout_ids):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                return found


def _renamed(
    old_name: str, old: Sequence[T] | None, new_name: str, new: Sequence[T] | None
) -> list[T] | None:
    if old is not None:
        warnings.warn(f"{old_name} is deprecated, use {new_name}", DeprecationWarning, stacklevel=3)
    return listed(new if new is not None else old)
