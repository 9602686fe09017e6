"""The store, seen from another process: every call is a request to a server."""

from __future__ import annotations

import json
import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import quote

import aiohttp
from pydantic import TypeAdapter, ValidationError

from agl.errors import NotFoundError, StoreError
from agl.store.base import (
    UNSET,
    FilterLogic,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    SortOrder,
    Unset,
)
from agl.store.rest.transport import Transport
from agl.store.rest.wire import (
    API_V1_AGL_PREFIX,
    TRACES_PATH,
    AttemptUpdateResult,
    Health,
    ManySequenceIdsResponse,
    NextSequenceIdResponse,
    StuckReport,
    dump,
    error_from_answer,
)
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    AttemptUpdate,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    StuckItem,
    TaskInput,
    Worker,
    WorkerStatus,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger("agl.store.client")

T = TypeVar("T")

WAIT_SECONDS = 50.0
"""How long one request waits for rollouts; a longer wait is several of them."""

BATCH_ITEMS = 1000
"""Items sent in one request; more are several of them."""

_ATTEMPT = TypeAdapter(Attempt)
_ATTEMPT_OR_NONE = TypeAdapter(Attempt | None)
_ATTEMPT_PAGE = TypeAdapter(PaginatedResult[Attempt])
_ATTEMPTED = TypeAdapter(AttemptedRollout)
_ATTEMPTED_LIST = TypeAdapter(list[AttemptedRollout])
_HEALTH = TypeAdapter(Health)
_NEXT = TypeAdapter(NextSequenceIdResponse)
_NEXT_MANY = TypeAdapter(ManySequenceIdsResponse)
_RESOURCES = TypeAdapter(ResourcesUpdate)
_RESOURCES_OR_NONE = TypeAdapter(ResourcesUpdate | None)
_RESOURCES_PAGE = TypeAdapter(PaginatedResult[ResourcesUpdate])
_ROLLOUT = TypeAdapter(Rollout)
_ROLLOUT_ANY: TypeAdapter[Rollout] = TypeAdapter(AttemptedRollout | Rollout)
_ROLLOUT_LIST = TypeAdapter(list[Rollout])
_ROLLOUT_PAGE: TypeAdapter[PaginatedResult[Rollout]] = TypeAdapter(
    PaginatedResult[AttemptedRollout | Rollout]
)
_SPAN_OR_NONE = TypeAdapter(Span | None)
_SPAN_LIST = TypeAdapter(list[Span])
_SPAN_PAGE = TypeAdapter(PaginatedResult[Span])
_STUCK = TypeAdapter(StuckReport)
_UPDATE_RESULTS = TypeAdapter(list[AttemptUpdateResult])
_STATISTICS = TypeAdapter(dict[str, Any])
_WORKER = TypeAdapter(Worker)
_WORKER_OR_NONE = TypeAdapter(Worker | None)
_WORKER_PAGE = TypeAdapter(PaginatedResult[Worker])


class LightningStoreClient(LightningStore):
    """Client of a store server; raises what a local store would raise.

    Args:
        server_address: ``http://host:port``, with ``user:TOKEN@`` before the host when the server
            demands an API token.
        retry_delays: Seconds before each retry of a request that failed for a passing reason.
        health_retry_delays: Seconds between the health probes that precede a retry.
        request_timeout: Seconds for a whole request.
        connection_timeout: Seconds for connecting.
        instance_id: The only instance to talk to, as its health names it; see :meth:`pin`.
    """

    def __init__(
        self,
        server_address: str,
        *,
        retry_delays: Sequence[float] = (1.0, 2.0, 5.0),
        health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5),
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        instance_id: str | None = None,
    ) -> None:
        self._transport = Transport(
            server_address,
            retry_delays=retry_delays,
            health_retry_delays=health_retry_delays,
            request_timeout=request_timeout,
            connection_timeout=connection_timeout,
        )
        self._transport.pinned = instance_id
        self._forget()

    def _forget(self) -> None:
        self._dequeued_before = False
        self._dequeue_warned = False
        self._features: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server_address_root!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_transport": self._transport}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def server_address_root(self) -> str:
        """The server's URL without credentials."""
        return self._transport.root

    @property
    def server_address(self) -> str:
        """URL of the REST interface, without credentials."""
        return self.server_address_root + API_V1_AGL_PREFIX

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True
        )

    def otlp_traces_endpoint(self) -> str:
        """URL that takes OTLP traces, with the credentials of the server address if it has any."""
        return self._transport.address_with_credentials + TRACES_PATH

    async def close(self) -> None:
        """Close the connections of all event loops; the client can still be used afterwards."""
        await self._transport.close()

    # Which server

    async def health(self) -> Health:
        """Which server answers and what it can do; of an 0.3 server only that it is there."""
        return await self._get("/health", _HEALTH)

    async def pin(self) -> str:
        """Talk to the instance that answers now and to no other from here on; returns its id.

        A server that takes its place later, be it restarted or of another trainer, has none of its
        rollouts: calls then raise ``WrongInstanceError`` and change nothing there.

        Raises:
            RuntimeError: the server is of 0.3 and has no id.
        """
        health = await self.health()
        if not health.instance_id:
            raise RuntimeError(f"The server at {self.server_address_root} has no instance id")
        self._transport.pinned = health.instance_id
        return health.instance_id

    async def _server_has(self, feature: str) -> bool:
        """Whether the server has something beyond 0.3; asked for once."""
        if self._features is None:
            self._features = frozenset((await self.health()).features)
        return feature in self._features

    # Requests

    async def _get(
        self, path: str, adapter: TypeAdapter[T], params: Sequence[tuple[str, str]] = ()
    ) -> T:
        answer = await self._transport.request("GET", API_V1_AGL_PREFIX + path, params=params)
        return _read(adapter, answer)

    async def _post(
        self,
        path: str,
        adapter: TypeAdapter[T],
        body: Any | Unset,
        *,
        retry: bool = True,
        once: bool = False,
        takes: float = 0.0,
    ) -> T:
        raw = None if isinstance(body, Unset) else dump(body)
        answer = await self._transport.request(
            "POST", API_V1_AGL_PREFIX + path, body=raw, retry=retry, once=once, takes=takes
        )
        return _read(adapter, answer)

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

    # Rollouts

    async def statistics(self) -> LightningStoreStatistics:
        return cast("LightningStoreStatistics", await self._get("/statistics", _STATISTICS))

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
        return [stored for part in _parts(rollouts) for stored in await self._enqueue(part)]

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
            repeatable = await self._server_has("idempotency")
            claimed = await self._post(
                "/queues/rollouts/dequeue", _ATTEMPTED_LIST, body, retry=repeatable, once=True
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
        path = f"/rollouts/{_part(rollout_id)}/attempts"
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
            **_page(sort_by, sort_order, limit, offset),
        }
        return await self._post("/rollouts/search", _ROLLOUT_PAGE, body)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """The rollout; ``None`` when unknown, or (logged) when the server cannot be reached."""
        return await self._get_or_none(f"/rollouts/{_part(rollout_id)}", _ROLLOUT_ANY)

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
        changes = _given(
            input=input,
            mode=mode,
            resources_id=resources_id,
            status=status,
            config=config,
            metadata=metadata,
        )
        return await self._post(f"/rollouts/{_part(rollout_id)}", _ROLLOUT, changes)

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

    # Attempts

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        body = _page(sort_by, sort_order, limit, offset)
        path = f"/rollouts/{_part(rollout_id)}/attempts/search"
        return await self._post(path, _ATTEMPT_PAGE, body)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """The latest attempt; ``None`` also (logged) when the server cannot be reached."""
        path = f"/rollouts/{_part(rollout_id)}/attempts/latest"
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
        changes = _given(
            status=status,
            worker_id=worker_id,
            last_heartbeat_time=last_heartbeat_time,
            metadata=metadata,
        )
        path = f"/rollouts/{_part(rollout_id)}/attempts/{_part(attempt_id)}"
        return await self._post(path, _ATTEMPT, changes)

    async def update_many_attempts(
        self, updates: Sequence[AttemptUpdate]
    ) -> Sequence[Attempt | StoreError]:
        """Update attempts in one request; in one for each of them where the server is of 0.3."""
        if len(updates) < 2 or not await self._server_has("attempts-batch"):
            return await super().update_many_attempts(updates)
        results: list[Attempt | StoreError] = []
        for part in _parts(updates):
            body = {
                "updates": [
                    {
                        "rollout_id": update.rollout_id,
                        "attempt_id": update.attempt_id,
                        **update.changes(),
                    }
                    for update in part
                ]
            }
            answers = await self._post("/attempts/batch", _UPDATE_RESULTS, body)
            results += [_update_result(answer) for answer in answers]
        return results

    async def find_stuck(self, limit: int = 20) -> Sequence[StuckItem]:
        return (await self.stuck_report(limit)).items

    async def stuck_report(self, limit: int = 20) -> StuckReport:
        """As ``find_stuck``, with a command line for each item."""
        return await self._get("/stuck", _STUCK, [("limit", str(limit))])

    # Spans

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        body = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        return (await self._post("/spans/next", _NEXT, body)).sequence_id

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Draw numbers in one request; in one for each of them where the server is of 0.3."""
        pairs = rollout_attempt_ids
        if len(pairs) < 2 or not await self._server_has("sequence-ids-batch"):
            return [await self.get_next_span_sequence_id(*pair) for pair in pairs]
        numbers: list[int] = []
        for part in _parts(pairs):
            asked = [{"rollout_id": pair[0], "attempt_id": pair[1]} for pair in part]
            answer = await self._post("/spans/next/batch", _NEXT_MANY, {"requests": asked})
            numbers += answer.sequence_ids
        return numbers

    async def add_span(self, span: Span) -> Span | None:
        return await self._post("/spans", _SPAN_OR_NONE, span)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans in one request; one request for each span where the server is of 0.3."""
        if len(spans) > 1 and await self._server_has("spans-batch"):
            added: list[Span] = []
            for part in _parts(spans):
                added += await self._post("/spans/batch", _SPAN_LIST, {"spans": part})
            return added
        stored = [await self.add_span(span) for span in spans]
        return [span for span in stored if span is not None]

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(
            Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id)
        )

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        body = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
            "filter_logic": filter_logic,
            **_page(sort_by, sort_order, limit, offset),
        }
        return await self._post("/spans/search", _SPAN_PAGE, body)

    # Resources

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        asked = {
            "resources_id": resources_id,
            "resources_id_contains": resources_id_contains,
            **_page(sort_by, sort_order, limit, offset),
        }
        params = [(key, str(value)) for key, value in asked.items() if value is not None]
        return await self._get("/resources", _RESOURCES_PAGE, params)

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return await self._post("/resources", _RESOURCES, resources, once=True)

    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        path = f"/resources/{_part(resources_id)}"
        return await self._post(path, _RESOURCES, resources, once=True)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources; ``None`` also (logged) when the server cannot be reached."""
        return await self._get_or_none(f"/resources/{_part(resources_id)}", _RESOURCES_OR_NONE)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """The latest resources; ``None`` also (logged) when the server cannot be reached."""
        return await self._get_or_none("/resources/latest", _RESOURCES_OR_NONE)

    # Workers

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        body = {
            "status_in": _listed(status_in),
            "worker_id_contains": worker_id_contains,
            "filter_logic": filter_logic,
            **_page(sort_by, sort_order, limit, offset),
        }
        return await self._post("/workers/search", _WORKER_PAGE, body)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self._get(f"/workers/{_part(worker_id)}", _WORKER_OR_NONE)

    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        changes = _given(heartbeat_stats=heartbeat_stats)
        return await self._post(f"/workers/{_part(worker_id)}", _WORKER, changes or UNSET)


def _part(identifier: str) -> str:
    return quote(identifier, safe="")


def _parts(items: Sequence[T]) -> list[list[T]]:
    return [list(items[at : at + BATCH_ITEMS]) for at in range(0, len(items), BATCH_ITEMS)]


def _update_result(answer: AttemptUpdateResult) -> Attempt | StoreError:
    if answer.attempt is not None:
        return answer.attempt
    failure = answer.error
    error = failure and error_from_answer(failure.status, dict(failure))
    if error is None:
        raise RuntimeError("The server told neither an attempt nor an error.")
    return error


def _given(**values: Any) -> Mapping[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Unset)}


def _listed(values: Sequence[T] | None) -> list[T] | None:
    return None if values is None else list(values)


def _page(sort_by: str | None, sort_order: SortOrder, limit: int, offset: int) -> dict[str, Any]:
    return {"sort_by": sort_by, "sort_order": sort_order, "limit": limit, "offset": offset}


def _renamed(
    old_name: str, old: Sequence[T] | None, new_name: str, new: Sequence[T] | None
) -> list[T] | None:
    if old is not None:
        warnings.warn(f"{old_name} is deprecated, use {new_name}", DeprecationWarning, stacklevel=3)
    return _listed(new if new is not None else old)


def _read(adapter: TypeAdapter[T], answer: bytes) -> T:
    """Parse an answer; pydantic's parser does not go as deep as an input in an answer can be."""
    try:
        return adapter.validate_json(answer)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] != "json_invalid":
            raise
    return adapter.validate_python(json.loads(answer))
