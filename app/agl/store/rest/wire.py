"""What goes over the wire: request bodies, the bytes of answers, and the one table of errors.

The server reads the table forwards (class to status), the client backwards (answer to class).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field
from pydantic_core import to_json

import agl.errors as store_errors
from agl.errors import (
    BackendError,
    ConflictError,
    GoneError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    TooLargeError,
)
from agl.store.base import FilterLogic, SortOrder
from agl.types import (
    Attempt,
    AttemptStatus,
    AttemptUpdate,
    EnqueueRolloutRequest,
    PaginatedResult,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    StuckItem,
    WorkerStatus,
)
from agl.types.bounds import Count, Identifier, Storable, StorableDict, Timestamp
from agl.types.first_fault import FirstFault
from agl.utils.encoded import EncodedItems, recall_json

API_V1_PREFIX = "/v1"
API_AGL_PREFIX = "/agl"
API_V1_AGL_PREFIX = API_V1_PREFIX + API_AGL_PREFIX
HEALTH_PATH = API_V1_AGL_PREFIX + "/health"
TRACES_PATH = API_V1_PREFIX + "/traces"

INSTANCE_HEADER = "AGL-Instance-Id"
"""Names the instance a request is meant for; its answer repeats it."""

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""A request with a key that was carried out already is answered as the first time."""

RETRY_HEADER = "AGL-Retry"
"""Says that the request may have been carried out already, its answer lost; the number of times."""

FEATURES = ("spans-batch", "sequence-ids-batch", "attempts-batch", "idempotency", "long-waits")
"""What this server has beyond 0.3, as its health tells."""


def dump(value: Any) -> bytes:
    """JSON bytes of models, lists of models and plain values.

    NaN and infinity become null, and in spans, whose attributes cannot be null, their names.
    """
    if isinstance(value, Span) and (known := recall_json(value)) is not None:
        return known
    if isinstance(value, PaginatedResult):
        value = vars(cast("BaseModel", value))  # or its own word on NaN would hold for its items
        items = value["items"]
        if isinstance(items, EncodedItems):
            rest = to_json({name: value[name] for name in ("limit", "offset", "total")})
            return b'{"items":' + items.json() + b"," + rest[1:]
    return to_json(value, inf_nan_mode="null")


# Errors

ERROR_STATUS: tuple[tuple[type[StoreError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (GoneError, 410),
    (TooLargeError, 413),
    (InvalidRequestError, 400),
    (BackendError, 503),
    (StoreError, 400),
)
"""First match wins, so subclasses of an entry share its status."""


def status_of(error: StoreError) -> int:
    """The HTTP status of a store error."""
    return next(status for kind, status in ERROR_STATUS if isinstance(error, kind))


def _known_errors() -> dict[str, type[StoreError]]:
    classes = (cast("object", value) for value in vars(store_errors).values())
    return {
        found.__name__: found
        for found in classes
        if isinstance(found, type) and issubclass(found, StoreError)
    }


_ERROR_BY_NAME = _known_errors()
_ERROR_BY_STATUS: dict[int, type[StoreError]] = {
    status: kind for kind, status in reversed(ERROR_STATUS) if kind is not StoreError
}
_BARE_STATUSES = (400, 422)  # answered before the store was asked, so without a class name


def error_from_answer(status: int, body: Mapping[str, Any]) -> StoreError | None:
    """The error a local store would have raised, or ``None`` when the answer names none."""
    name = body.get("error_type")
    if "detail" not in body or (name is None and status not in _BARE_STATUSES):
        return None
    kind = _ERROR_BY_NAME.get(str(name)) or _ERROR_BY_STATUS.get(status, InvalidRequestError)
    return kind(_detail_text(body["detail"]))


def _detail_text(detail: Any) -> str:
    if not isinstance(detail, list):
        return str(detail)
    return "; ".join(_validation_text(item) for item in cast("list[Any]", detail))


def _validation_text(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    fields = cast("Mapping[str, Any]", item)
    where = ".".join(str(part) for part in cast("Sequence[Any]", fields.get("loc", ())))
    return f"{where}: {fields.get('msg', '')}"


# Request bodies and query strings


class PageQuery(BaseModel):
    """Paging and sorting, shared by every list."""

    limit: Count = Field(default=-1, description="Most items to return; -1 for no limit")
    offset: Count = Field(default=0, description="Matches to skip")
    sort_by: str | None = Field(default=None, description="A field of the item")
    sort_order: SortOrder = "asc"


class FilteredQuery(PageQuery):
    """A page query whose filters can be joined either way."""

    filter_logic: FilterLogic = Field(default="and", description="How the filters are joined")


class QueryRolloutsRequest(FilteredQuery):
    status_in: Annotated[list[RolloutStatus] | None, FirstFault()] = None
    rollout_id_in: Annotated[list[str] | None, FirstFault()] = None
    rollout_id_contains: str | None = None


class QueryAttemptsRequest(PageQuery):
    sort_by: str | None = Field(default="sequence_id", description="A field of the item")


class QueryWorkersRequest(FilteredQuery):
    status_in: Annotated[list[WorkerStatus] | None, FirstFault()] = None
    worker_id_contains: str | None = None


class QueryResourcesRequest(PageQuery):
    resources_id: str | None = None
    resources_id_contains: str | None = None


class QuerySpansRequest(FilteredQuery):
    rollout_id: str
    attempt_id: str | None = Field(default=None, description="An attempt id, or `latest`")
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    sort_by: str | None = Field(default="sequence_id", description="A field of the item")


class RolloutRequest(BaseModel):
    """A rollout to start at once."""

    input: Storable
    mode: RolloutMode | None = None
    resources_id: Identifier | None = None
    config: RolloutConfig | None = None
    metadata: StorableDict | None = None
    worker_id: Identifier | None = None


class EnqueueManyRolloutsRequest(BaseModel):
    rollouts: Annotated[list[EnqueueRolloutRequest], FirstFault()]


class DequeueRolloutRequest(BaseModel):
    worker_id: Identifier | None = None


class DequeueManyRolloutsRequest(DequeueRolloutRequest):
    limit: Count = 1


class StartAttemptRequest(BaseModel):
    worker_id: Identifier | None = None


class UpdateRolloutRequest(BaseModel):
    """A key that is present is written, one that is missing is left alone."""

    input: Storable = None
    mode: RolloutMode | None = None
    resources_id: Identifier | None = None
    status: RolloutStatus | None = None
    config: RolloutConfig | None = None
    metadata: StorableDict | None = None


class UpdateAttemptRequest(BaseModel):
    """A key that is present is written, one that is missing is left alone."""

    status: AttemptStatus | None = None
    worker_id: Identifier | None = None
    last_heartbeat_time: Timestamp | None = None
    metadata: StorableDict | None = None


class UpdateWorkerRequest(BaseModel):
    """A key that is present is written, one that is missing is left alone."""

    heartbeat_stats: StorableDict | None = None


class UpdateManyAttemptsRequest(BaseModel):
    updates: Annotated[list[AttemptUpdate], FirstFault()]


class AttemptUpdateFailure(BaseModel):
    """Why one update of many was refused."""

    status: int
    """What the update alone would have been answered."""

    detail: str
    error_type: str
    """Name of the exception class."""


class AttemptUpdateResult(BaseModel):
    """The attempt as it is after its update, or why there was none."""

    attempt: Attempt | None = None
    error: AttemptUpdateFailure | None = None


class AddManySpansRequest(BaseModel):
    spans: Annotated[list[Span], FirstFault()]


class NextSequenceIdRequest(BaseModel):
    rollout_id: Identifier
    attempt_id: Identifier


class NextSequenceIdResponse(BaseModel):
    sequence_id: int


class ManySequenceIdsRequest(BaseModel):
    requests: Annotated[list[NextSequenceIdRequest], FirstFault()]


class ManySequenceIdsResponse(BaseModel):
    sequence_ids: list[int]
    """One for each request, in the same order."""


class StuckQuery(BaseModel):
    limit: int = Field(default=20, ge=1, le=1000, description="Most items of each kind")


class SuggestedItem(StuckItem):
    """A rollout that may need a look, and what to do about it."""

    command: str
    """A command line to look at it or to end it."""


class StuckReport(BaseModel):
    items: list[SuggestedItem]


class WaitForRolloutsRequest(BaseModel):
    rollout_ids: Annotated[list[str], FirstFault()]
    timeout: float | None = Field(default=None, description="Seconds, 60 at most; null for 60")


class Health(BaseModel):
    """Answer of the health endpoint."""

    status: str = "ok"
    instance_id: str = ""
    """Drawn anew by every server that starts; a server of 0.3 tells none."""

    version: str = ""

    features: list[str] = Field(default_factory=list[str])
    """What the server has beyond agent-lightning 0.3; clients use what is listed."""


class ErrorBody(BaseModel):
    """Answer to a request that failed in the store."""

    detail: str
    error_type: str
    """Name of the exception class."""

    error_id: str
    """The same id stands in the server's log."""
