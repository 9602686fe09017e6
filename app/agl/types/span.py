"""Spans: OpenTelemetry records of an attempt, and their conversion from the OpenTelemetry SDK."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict

from agl.types.bounds import (
    Identifier,
    SequenceId,
    Storable,
    Timestamp,
    storable,
    storable_attributes,
)
from agl.types.first_fault import FirstFault

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource as SdkResource
    from opentelemetry.sdk.trace import Event as SdkEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link as SdkLink
    from opentelemetry.trace import SpanContext as SdkSpanContext
    from opentelemetry.trace import Status as SdkStatus

AttributeValue = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes = dict[str, AttributeValue]
"""In JSON, which has no such numbers, NaN and infinity are ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, as in OTLP's JSON."""

GivenAttributes = Annotated[Attributes, FirstFault(), AfterValidator(storable_attributes)]

TraceState = dict[str, str]
StatusCode = Literal["UNSET", "OK", "ERROR"]

VIRTUAL_SPAN_NAME = "agentlightning.virtual"
REWARD_ATTRIBUTE = "agentlightning.reward.0.value"
REWARD_SPAN_NAME = "agentlightning.reward"
"""What versions before 0.3 called the spans of rewards."""


def convert_timestamp(timestamp: float | None) -> float | None:
    """Nanoseconds (anything above 1e12) to seconds; ``None`` and 0 to ``None``."""
    if not timestamp:
        return None
    return timestamp / 1e9 if timestamp > 1e12 else timestamp


def extract_extra_fields(source: Any, excluded: Sequence[str]) -> dict[str, Any]:
    """What an SDK object carries beyond the fields named in ``excluded``, as JSON-safe values.

    Leading underscores are stripped from names (``_kind`` becomes ``kind``). An attribute whose own
    name the object's class defines too is left out.
    """
    instance: dict[str, Any] = getattr(source, "__dict__", {})
    own_names = set(dir(cast("type[object]", type(source))))
    extras = {
        name.lstrip("_"): value
        for name, value in instance.items()
        if name not in own_names and not {name, name.lstrip("_")} & set(excluded)
    }
    return json.loads(json.dumps(extras, default=str))


class _OpenModel(BaseModel):
    """Unknown keys are kept."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="strings")

    if not TYPE_CHECKING:  # checkers take it for a field
        __pydantic_extra__: dict[str, Storable]


class SpanContext(_OpenModel):
    """Which span of which trace; ids are lower-case hex (32 and 16 digits)."""

    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: Annotated[TraceState, FirstFault(), AfterValidator(storable)]

    @classmethod
    def from_opentelemetry(cls, src: SdkSpanContext) -> Self:
        return cls(
            trace_id=f"{src.trace_id:032x}",
            span_id=f"{src.span_id:016x}",
            is_remote=src.is_remote,
            trace_state=dict(src.trace_state.items()) if src.trace_state else {},
            **extract_extra_fields(src, ["trace_id", "span_id", "is_remote", "trace_state"]),
        )


class TraceStatus(_OpenModel):
    """How a span ended."""

    status_code: StatusCode
    description: str | None = None

    @classmethod
    def from_opentelemetry(cls, src: SdkStatus) -> Self:
        return cls(
            status_code=src.status_code.name,
            description=src.description,
            **extract_extra_fields(src, ["status_code", "description"]),
        )


class Event(_OpenModel):
    """Something that happened during a span; ``timestamp`` in seconds since the epoch."""

    name: str
    attributes: GivenAttributes
    timestamp: Timestamp | None = None

    @classmethod
    def from_opentelemetry(cls, src: SdkEvent) -> Self:
        return cls(
            name=src.name,
            attributes=_attributes(src.attributes),
            timestamp=convert_timestamp(src.timestamp),
            **extract_extra_fields(src, ["name", "attributes", "timestamp"]),
        )


class Link(_OpenModel):
    """A reference to another span."""

    context: SpanContext
    attributes: GivenAttributes | None = None

    @classmethod
    def from_opentelemetry(cls, src: SdkLink) -> Self:
        return cls(
            context=SpanContext.from_opentelemetry(src.context),
            attributes=_attributes(src.attributes) or None,
            **extract_extra_fields(src, ["context", "attributes"]),
        )


class OtelResource(BaseModel):
    """The OpenTelemetry resource (process, service) that produced a span."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    attributes: GivenAttributes
    schema_url: str

    @classmethod
    def from_opentelemetry(cls, src: SdkResource) -> Self:
        return cls(attributes=_attributes(src.attributes), schema_url=src.schema_url or "")


class SpanCoreFields(BaseModel):
    """What a recorder knows of a span before it belongs to a rollout."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None
    end_time: float | None


class SpanRecordingContext(Protocol):
    """A span that is still being recorded."""

    def record_exception(self, exception: BaseException) -> None: ...

    def record_attributes(self, attributes: Attributes) -> None: ...

    def record_status(self, status_code: StatusCode, description: str | None = None) -> None: ...

    def get_recorded_span(self) -> SpanCoreFields: ...


class Span(_OpenModel):
    """One span of an attempt; times in seconds since the epoch; unknown keys are kept."""

    rollout_id: str
    attempt_id: str
    sequence_id: SequenceId
    """Order within the rollout; issued by the store, may repeat."""

    trace_id: Identifier
    span_id: Identifier
    parent_id: Identifier | None
    name: str
    status: TraceStatus
    attributes: GivenAttributes
    events: Annotated[list[Event], FirstFault()]
    links: Annotated[list[Link], FirstFault()]
    start_time: Timestamp | None
    end_time: Timestamp | None
    context: SpanContext | None
    parent: SpanContext | None
    resource: OtelResource

    @classmethod
    def from_opentelemetry(
        cls, src: ReadableSpan, rollout_id: str, attempt_id: str, sequence_id: int
    ) -> Self:
        """Convert a finished span of the OpenTelemetry SDK; its other fields become extras."""
        context = SpanContext.from_opentelemetry(src.context) if src.context else None
        parent = SpanContext.from_opentelemetry(src.parent) if src.parent else None
        return cls(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id=context.trace_id if context else "0" * 32,
            span_id=context.span_id if context else "0" * 16,
            parent_id=parent.span_id if parent else None,
            name=src.name,
            status=TraceStatus.from_opentelemetry(src.status),
            attributes=_attributes(src.attributes),
            events=[Event.from_opentelemetry(event) for event in src.events],
            links=[Link.from_opentelemetry(link) for link in src.links],
            start_time=convert_timestamp(src.start_time),
            end_time=convert_timestamp(src.end_time),
            context=context,
            parent=parent,
            resource=OtelResource.from_opentelemetry(src.resource),
            **extract_extra_fields(src, [*cls.model_fields, "span_processor"]),
        )

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> Self:
        """Build a span that no tracer recorded; missing ids are drawn at random."""
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        ids = RandomIdGenerator()
        trace_id = trace_id or f"{ids.generate_trace_id():032x}"
        span_id = span_id or f"{ids.generate_span_id():016x}"
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or VIRTUAL_SPAN_NAME,
            status=status or TraceStatus(status_code="OK"),
            attributes=attributes,
            events=[],
            links=[],
            start_time=start_time,
            end_time=end_time,
            context=_local_context(trace_id, span_id),
            parent=_local_context(trace_id, parent_id) if parent_id else None,
            resource=resource or OtelResource(attributes={}, schema_url=""),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> Self:
        """Give a recorded span its place; a missing start time is now."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=core.start_time if core.start_time is not None else time.time(),
            end_time=core.end_time,
            status=core.status,
        )


def has_reward(span: Span) -> bool:
    """Whether a span holds a reward, as ``emit_reward`` of agent-lightning makes it."""
    return REWARD_ATTRIBUTE in span.attributes or span.name == REWARD_SPAN_NAME


if TYPE_CHECKING:
    SpanLike = ReadableSpan | Span
else:
    SpanLike = Any  # the SDK is imported only by those who convert its spans


def _attributes(attributes: Mapping[str, Any] | None) -> Attributes:
    return dict(attributes) if attributes else {}


def _local_context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(trace_id=trace_id, span_id=span_id, is_remote=False, trace_state={})
