"""The spans of one attempt: recorded with the OpenTelemetry SDK, sent to the store over OTLP."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.trace import Tracer

from agl.store.rest.transport import split_credentials
from agl.store.rest.wire import TRACES_PATH

ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"
SEQUENCE_ID = "agentlightning.span_sequence_id"

_EXPORT_TIMEOUT_SECONDS = 5.0


class _Recorder(SpanProcessor):
    """Numbers each span as it starts and keeps it when it ends."""

    def __init__(self, next_sequence_id: Callable[[], int]) -> None:
        self._next_sequence_id = next_sequence_id
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute(SEQUENCE_ID, self._next_sequence_id())

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class AttemptRecording:
    """Records one attempt; ``next_sequence_id`` is called once for every span that starts."""

    def __init__(
        self, rollout_id: str, attempt_id: str, next_sequence_id: Callable[[], int]
    ) -> None:
        self._recorder = _Recorder(next_sequence_id)
        attributes = {
            "service.name": "agl-bench",
            ROLLOUT_ID: rollout_id,
            ATTEMPT_ID: attempt_id,
        }
        provider = TracerProvider(
            resource=Resource(attributes),
            shutdown_on_exit=False,
            # The first to go beyond a limit would be the span's own number.
            span_limits=SpanLimits(max_span_attributes=SpanLimits.UNSET),
        )
        provider.add_span_processor(self._recorder)
        self._tracer = provider.get_tracer("agl.bench")

    @property
    def tracer(self) -> Tracer:
        """Where the agent's spans go."""
        return self._tracer

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, children before their parents."""
        return self._recorder.ended


def otlp_exporter(store_url: str) -> OTLPSpanExporter:
    """Return an exporter (protobuf, gzip) to the store; credentials in the URL become a header."""
    root, authorization = split_credentials(store_url.rstrip("/"))
    return OTLPSpanExporter(
        endpoint=root + TRACES_PATH,
        headers={"Authorization": authorization} if authorization else {},
        compression=Compression.Gzip,
        timeout=_EXPORT_TIMEOUT_SECONDS,
    )
