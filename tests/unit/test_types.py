"""Types: defaults, validation and conversions."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

import pytest
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import Status
from opentelemetry.trace import StatusCode as SdkStatusCode
from pydantic import BaseModel, TypeAdapter, ValidationError

from agl import types
from agl.store.base import UNSET, Unset, is_finished, is_queuing, is_running
from agl.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Event,
    Link,
    NamedResources,
    OtelResource,
    PaginatedResult,
    PromptTemplate,
    ProxyLLM,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    SpanContext,
    SpanCoreFields,
    StatusCode,
    TraceStatus,
    Worker,
    WorkerStatus,
    convert_timestamp,
    extract_extra_fields,
)
from agl.utils.ownership import copy_model, copy_value, replace


@pytest.mark.parametrize(
    ("literal", "values"),
    [
        (
            RolloutStatus,
            {
                "queuing",
                "preparing",
                "running",
                "failed",
                "succeeded",
                "cancelled",
                "requeuing",
            },
        ),
        (
            AttemptStatus,
            {"preparing", "running", "failed", "succeeded", "unresponsive", "timeout"},
        ),
        (RolloutMode, {"train", "val", "test"}),
        (WorkerStatus, {"idle", "busy", "unknown"}),
        (StatusCode, {"UNSET", "OK", "ERROR"}),
    ],
)
def test_enumerations(literal: Any, values: set[str]) -> None:
    assert set(get_args(literal)) == values


@pytest.mark.parametrize(
    ("status", "queuing", "running", "finished"),
    [
        ("queuing", True, False, False),
        ("requeuing", True, False, False),
        ("preparing", False, True, False),
        ("running", False, True, False),
        ("failed", False, False, True),
        ("succeeded", False, False, True),
        ("cancelled", False, False, True),
    ],
)
def test_groups_of_statuses(status: Any, queuing: bool, running: bool, finished: bool) -> None:
    rollout = Rollout(rollout_id="r", input=None, start_time=0, status=status)
    assert (is_queuing(rollout), is_running(rollout), is_finished(rollout)) == (
        queuing,
        running,
        finished,
    )


@pytest.mark.parametrize(
    ("model", "given", "defaults"),
    [
        (
            RolloutConfig,
            {},
            {
                "timeout_seconds": None,
                "unresponsive_seconds": None,
                "max_attempts": 1,
                "retry_condition": [],
            },
        ),
        (
            Rollout,
            {"rollout_id": "r", "input": None, "start_time": 1.0},
            {
                "end_time": None,
                "mode": None,
                "resources_id": None,
                "status": "queuing",
                "config": RolloutConfig(),
                "metadata": None,
            },
        ),
        (
            Attempt,
            {"rollout_id": "r", "attempt_id": "a", "sequence_id": 1, "start_time": 1.0},
            {
                "end_time": None,
                "status": "preparing",
                "worker_id": None,
                "last_heartbeat_time": None,
                "metadata": None,
            },
        ),
        (
            EnqueueRolloutRequest,
            {"input": 1},
            {"mode": None, "resources_id": None, "config": None, "metadata": None},
        ),
        (
            Worker,
            {"worker_id": "w"},
            {
                "status": "unknown",
                "heartbeat_stats": None,
                "last_heartbeat_time": None,
                "last_dequeue_time": None,
                "last_busy_time": None,
                "last_idle_time": None,
                "current_rollout_id": None,
                "current_attempt_id": None,
            },
        ),
        (
            LLM,
            {"endpoint": "http://h", "model": "m"},
            {"resource_type": "llm", "api_key": None, "sampling_parameters": {}},
        ),
        (PromptTemplate, {"template": "t", "engine": "poml"}, {"resource_type": "prompt_template"}),
        (TraceStatus, {"status_code": "OK"}, {"description": None}),
        (Event, {"name": "n", "attributes": {}}, {"timestamp": None}),
    ],
)
def test_defaults_and_required_keys(
    model: type[BaseModel], given: dict[str, Any], defaults: dict[str, Any]
) -> None:
    built = model(**given)
    assert {name: getattr(built, name) for name in defaults} == defaults
    assert set(model.model_fields) == {*given, *defaults}
    for missing in given:
        with pytest.raises(ValidationError):
            model(**{key: value for key, value in given.items() if key != missing})


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (RolloutConfig, {"max_attempts": 0}),
        (RolloutConfig, {"retry_condition": ["bogus"]}),
        (Rollout, {"rollout_id": "r", "input": 0, "start_time": 0, "status": "queueing"}),
        (Rollout, {"rollout_id": "r", "input": 0, "start_time": 0, "mode": "eval"}),
        (Worker, {"worker_id": "w", "status": "lazy"}),
        (PromptTemplate, {"template": "t", "engine": "mustache"}),
        (TraceStatus, {"status_code": "BAD"}),
        (OtelResource, {"attributes": {"a": None}, "schema_url": ""}),
        (OtelResource, {"attributes": {"a": {"b": 1}}, "schema_url": ""}),
        (OtelResource, {"attributes": {}}),
        (SpanContext, {"trace_id": "t", "span_id": "s", "is_remote": False}),
    ],
)
def test_values_that_are_refused(model: type[BaseModel], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model(**values)


def test_unknown_keys() -> None:
    assert Worker(worker_id="w", shoe_size=44).model_extra is None  # type: ignore[call-arg] # on purpose
    status = TraceStatus(status_code="OK", more=1)  # type: ignore[call-arg] # on purpose
    assert status.model_dump() == {"status_code": "OK", "description": None, "more": 1}


@pytest.mark.parametrize("value", ["x", True, 1, 1.5, ["a"], [1, 2], [True], [1.5]])
def test_attribute_values_keep_their_type(value: Any) -> None:
    resource = OtelResource(attributes={"k": value}, schema_url="")
    assert resource.attributes["k"] == value
    assert type(resource.attributes["k"]) is type(value)
    assert json.loads(resource.model_dump_json())["attributes"]["k"] == value


def test_attempted_rollout_checks_its_attempt() -> None:
    attempt = Attempt(rollout_id="other", attempt_id="a", sequence_id=1, start_time=0)
    with pytest.raises(ValidationError, match="Inconsistent rollout_id"):
        AttemptedRollout(rollout_id="r", input=0, start_time=0, attempt=attempt)


# Resources


@pytest.mark.parametrize(
    ("endpoint", "ids", "url"),
    [
        ("http://h", (None, None), "http://h"),
        ("http://h/v1/", (None, None), "http://h/v1/"),
        ("http://h", ("r", "a"), "http://h/rollout/r/attempt/a"),
        ("http://h/", ("r", "a"), "http://h/rollout/r/attempt/a"),
        ("http://h/v1", ("r", "a"), "http://h/rollout/r/attempt/a/v1"),
        ("http://h/v1/", ("r", "a"), "http://h/rollout/r/attempt/a/v1"),
    ],
)
def test_proxy_urls(endpoint: str, ids: tuple[Any, Any], url: str) -> None:
    assert ProxyLLM(endpoint=endpoint, model="m").get_base_url(*ids) == url


@pytest.mark.parametrize("ids", [("r", None), (None, "a"), (1, "a")])
def test_proxy_urls_need_both_ids(ids: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="both"):
        ProxyLLM(endpoint="http://h", model="m").get_base_url(*ids)


def test_proxy_endpoint_warns(caplog: pytest.LogCaptureFixture) -> None:
    proxy = ProxyLLM(endpoint="http://h", model="m", api_key="k", sampling_parameters={"t": 1})
    proxy.get_base_url("r", "a")
    assert not caplog.records
    assert proxy.endpoint == "http://h"
    assert len(caplog.records) == 1

    attempt = Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=0)
    rollout = AttemptedRollout(rollout_id="r", input=0, start_time=0, attempt=attempt)
    plain = proxy.with_attempted_rollout(rollout)
    assert type(plain) is LLM
    assert plain.endpoint == "http://h/rollout/r/attempt/a"
    assert (plain.model, plain.api_key, plain.sampling_parameters) == ("m", "k", {"t": 1})


def test_llm_base_url_takes_anything() -> None:
    assert LLM(endpoint="http://h", model="m").get_base_url("r", x=1) == "http://h"


def test_prompt_templates() -> None:
    assert PromptTemplate(template="a {x}", engine="f-string").format(x=1) == "a 1"
    for engine in ("jinja", "poml"):
        with pytest.raises(NotImplementedError):
            PromptTemplate(template="a", engine=engine).format()  # type: ignore[arg-type] # both are engines


def test_named_resources_from_json() -> None:
    adapter: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)
    parsed = adapter.validate_python(
        {
            "a": {"resource_type": "llm", "endpoint": "e", "model": "m"},
            "b": {"resource_type": "proxy_llm", "endpoint": "e", "model": "m"},
            "c": {"resource_type": "prompt_template", "template": "t", "engine": "jinja"},
        }
    )
    assert [type(resource) for resource in parsed.values()] == [LLM, ProxyLLM, PromptTemplate]
    with pytest.raises(ValidationError):
        adapter.validate_python({"a": {"endpoint": "e", "model": "m"}})


# Pages and sentinels


@pytest.mark.parametrize(
    ("items", "limit", "offset", "text"),
    [
        ([1, 2], -1, 0, "<PaginatedResult (0: of 9) [1, ...]>"),
        ([1, 2], 2, 4, "<PaginatedResult (4:6 of 9) [1, ...]>"),
        ([1], 2, 0, "<PaginatedResult (0:2 of 9) 1>"),
        ([], 2, 0, "<PaginatedResult (0:2 of 9) empty>"),
    ],
)
def test_pages(items: list[int], limit: int, offset: int, text: str) -> None:
    page = PaginatedResult[int](items=items, limit=limit, offset=offset, total=9)
    assert repr(page) == text
    assert len(page) == len(items)
    assert list(page) == items
    assert page[0:1] == items[0:1]


def test_unset() -> None:
    assert Unset() is UNSET
    assert repr(UNSET) == "UNSET"
    assert isinstance(UNSET, Unset)


# Spans


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), (0, None), (12.5, 12.5), (1e12, 1e12), (1_700_000_000_000_000_000, 1.7e9)],
)
def test_convert_timestamp(given: float | None, expected: float | None) -> None:
    assert convert_timestamp(given) == expected


class _Source:
    def __init__(self) -> None:
        self._hidden = 1
        self.name = "n"
        self.listed = {"a": (1, 2)}
        self.odd = object
        self._method = 5
        self.shadow = 6

    def method(self) -> None:
        return None

    def shadow(self) -> None:  # type: ignore[no-redef] # hidden by the attribute
        return None


def test_extra_fields_are_json_safe() -> None:
    extras = extract_extra_fields(_Source(), ["name"])
    assert extras == {"hidden": 1, "listed": {"a": [1, 2]}, "odd": "<class 'object'>", "method": 5}


def _sdk_span() -> ReadableSpan:
    provider = TracerProvider(resource=SdkResource({"service.name": "s"}, "http://schema"))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("outer") as outer:
        link = SdkLink(outer.get_span_context(), {"why": "because"})
        inner = tracer.start_span("inner", links=[link], attributes={"n": 1, "l": ("a", "b")})
        inner.add_event("happened", {"x": True}, timestamp=1_700_000_000_000_000_000)
        inner.set_status(Status(SdkStatusCode.ERROR, "broke"))
        inner.end()
    assert isinstance(inner, ReadableSpan)
    return inner


def test_span_from_opentelemetry() -> None:
    source = _sdk_span()
    span = Span.from_opentelemetry(source, "r", "a", 7)

    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("r", "a", 7)
    assert source.context is not None
    assert source.parent is not None
    assert span.trace_id == f"{source.context.trace_id:032x}"
    assert span.span_id == f"{source.context.span_id:016x}"
    assert span.parent_id == f"{source.parent.span_id:016x}"
    assert span.parent is not None
    assert span.parent.span_id == span.parent_id
    assert span.context is not None
    assert span.context.is_remote is False
    assert (span.status.status_code, span.status.description) == ("ERROR", "broke")
    assert span.attributes["n"] == 1
    assert list(span.attributes["l"]) == ["a", "b"]  # type: ignore[arg-type] # a list of text
    assert span.start_time is not None
    assert abs(span.start_time - time.time()) < 60
    (event,) = span.events
    assert (event.name, event.attributes, event.timestamp) == ("happened", {"x": True}, 1.7e9)
    (link,) = span.links
    assert link.attributes == {"why": "because"}
    assert link.context.trace_id == span.trace_id
    assert span.resource.attributes["service.name"] == "s"
    assert span.resource.schema_url == "http://schema"
    assert span.model_extra is not None
    assert span.model_extra["kind"] == "SpanKind.INTERNAL"
    assert Span.model_validate_json(span.model_dump_json()).span_id == span.span_id


def test_sdk_span_without_context_and_link_without_attributes() -> None:
    span = Span.from_opentelemetry(ReadableSpan("bare"), "r", "a", 1)
    assert (span.trace_id, span.span_id) == ("0" * 32, "0" * 16)
    assert (span.parent_id, span.context, span.parent) == (None, None, None)
    source = _sdk_span().links[0].context
    assert Link.from_opentelemetry(SdkLink(source)).attributes is None


def test_span_from_attributes() -> None:
    span = Span.from_attributes(attributes={"k": "v"})
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("", "", 0)
    assert span.name == "agentlightning.virtual"
    assert (len(span.trace_id), len(span.span_id)) == (32, 16)
    assert span.status == TraceStatus(status_code="OK")
    assert span.context is not None
    assert (span.context.span_id, span.context.is_remote) == (span.span_id, False)
    assert (span.parent, span.parent_id, span.events, span.links) == (None, None, [], [])
    assert span.resource == OtelResource(attributes={}, schema_url="")
    child = Span.from_attributes(attributes={}, parent_id="p", trace_id="t")
    assert child.parent is not None
    assert (child.parent.span_id, child.parent.trace_id) == ("p", "t")


def test_span_from_core_fields() -> None:
    core = SpanCoreFields(
        name="n",
        status=TraceStatus(status_code="ERROR"),
        attributes={"a": 1},
        start_time=None,
        end_time=3.0,
    )
    before = time.time()
    span = Span.from_core_fields(core, rollout_id="r", attempt_id="a", sequence_id=2)
    assert span.start_time is not None
    assert before <= span.start_time <= time.time()
    assert (span.name, span.end_time, span.sequence_id) == ("n", 3.0, 2)
    assert span.status.status_code == "ERROR"


def test_every_exported_name_exists() -> None:
    for name in types.__all__:
        assert getattr(types, name) is not None


# Copies


def test_copies_share_nothing_that_can_change() -> None:
    span = Span.from_opentelemetry(_sdk_span(), "r", "a", 1)
    twin = copy_model(span)
    assert twin == span
    assert twin.model_fields_set == span.model_fields_set

    twin.attributes["new"] = 1
    twin.events[0].attributes.clear()
    twin.status.description = "other"
    assert twin.model_extra is not None
    twin.model_extra["more"] = 1
    twin.name = "other"
    assert span == Span.model_validate(span.model_dump())
    assert "new" not in span.attributes
    assert span.events[0].attributes == {"x": True}
    assert "more" not in (span.model_extra or {})


def test_copies_of_plain_values() -> None:
    value = {"a": [1, {"b": (1, [2])}], "c": {3}, "d": Worker(worker_id="w")}
    twin = copy_value(value)
    assert twin == value
    twin["a"][1]["b"][1].append(9)
    twin["c"].add(4)
    twin["d"].worker_id = "x"
    assert value == {"a": [1, {"b": (1, [2])}], "c": {3}, "d": Worker(worker_id="w")}


def test_replace_leaves_the_original_alone() -> None:
    rollout = Rollout(rollout_id="r", input=[1], start_time=0)
    changed = replace(rollout, status="running")
    assert (rollout.status, changed.status) == ("queuing", "running")
    assert changed.input is rollout.input
    assert "status" in changed.model_fields_set
    assert "status" not in rollout.model_fields_set
