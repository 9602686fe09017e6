"""Models as documents: what is kept as it is, what as text, and what is refused."""

from __future__ import annotations

import datetime
import enum
import math
from typing import Any

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agl.errors import BackendError, InvalidRequestError, TooLargeError
from agl.store.collection.mongo.documents import (
    WRAPPED_KEY,
    decode_value,
    encode_value,
    from_document,
    model_fields,
    sealed,
    some_fields,
)
from agl.store.collection.mongo.ids import new_id, new_ids
from agl.types import OtelResource, Rollout, Span, TraceStatus


def rollout(input: Any) -> Rollout:
    return Rollout(rollout_id="r", input=input, start_time=1.0)


def there_and_back(item: Any) -> Any:
    """Through the bytes that the server would hold."""
    return from_document(bson.decode(bson.encode(model_fields(item))), type(item))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


KEPT = [
    {"a.b": 1, "a": {"b.c": {"": 2}}},
    {"$set": {"$ref": "x", "$id": 1}},
    {"agl$json": "not ours"},
    {"_id": 1, "partition_id": "mine"},
    "nul\0text",
    2**63 - 1,
    [1, [{"x": -(2**63)}]],
    math.inf,
    b"\x00\xff",
    "\U0001d11e",
    {"\U0001d11e": None},
    nested(79),
    nested(150),
    [True, False, None, 1.5, -0.0, ""],
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: repr(value)[:40])
def test_what_json_can_say_is_kept(value: Any) -> None:
    assert there_and_back(rollout(value)).input == value


def test_nan_is_kept_alone_and_beside_what_is_kept_as_text() -> None:
    kept = there_and_back(rollout([math.nan, {"$x": math.nan}])).input
    assert math.isnan(kept[0])
    assert math.isnan(kept[1]["$x"])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
            | st.sampled_from(["$a", "agl$json", "_id", "a.b", "\0"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(value=json_values)
def test_every_json_value_survives_the_servers_encoding(value: Any) -> None:
    stored = bson.decode(bson.encode({"v": encode_value(value, "v")}))["v"]
    assert decode_value(stored) == value


def test_no_key_reaches_the_server_that_has_a_meaning_there() -> None:
    document = model_fields(rollout({"deep": [{"$where": "1"}, {"ok": {"$inc": 1}}]}))
    assert "$" not in repr(document).replace("agl$json", "").replace("agl$wrapped", "").replace(
        '{"$where":"1"}', ""
    ).replace('{"$inc":1}', "")


def test_only_documents_with_text_in_them_are_marked() -> None:
    assert WRAPPED_KEY not in model_fields(rollout({"a.b": [1, 2.5, "x"]}))
    assert model_fields(rollout({"$a": 1}))[WRAPPED_KEY] is True
    assert some_fields(rollout({"$a": 1}), ["input"])[WRAPPED_KEY] is True
    assert some_fields(rollout({"$a": 1}), ["status"]) == {"status": "queuing"}


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2,)), [1, [2]]),
        ({1}, [1]),
        (frozenset(["a"]), ["a"]),
        ({1: "one"}, {"1": "one"}),
        (Colour.RED, "red"),
        (Point(x=1), {"x": 1}),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 678901), "2026-01-02T03:04:05.678901"),
        (bson.Int64(7), 7),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_not_json_becomes_what_it_is_in_json(value: Any, stored: Any) -> None:
    kept = there_and_back(rollout({"v": value})).input["v"]
    assert kept == stored
    assert type(kept) is type(stored)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": ["x", "\ud800"]}, "input.a.1: text with a lone surrogate"),
        ({"a": {"\udfff": 1}}, "input.a: text with a lone surrogate"),
        ({"$a": "\ud800"}, "input: it cannot be stored"),
        ({"a": object()}, "input.a: it has no JSON form"),
        (nested(2000), "input.a.a.a.a.a.a.a.a.a....: it cannot be stored"),
    ],
    ids=["text", "key", "in text", "object", "deep"],
)
def test_what_cannot_be_stored_is_refused_by_its_place(value: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        encode_value(value, "input")
    assert str(raised.value).startswith(text)
    unchecked = Rollout.model_construct(rollout_id="r", input=value, start_time=1.0)
    with pytest.raises(InvalidRequestError, match=r"input|Rollout cannot be stored"):
        model_fields(unchecked)


def span(**fields: Any) -> Span:
    values: dict[str, Any] = {
        "rollout_id": "r",
        "attempt_id": "a",
        "sequence_id": 1,
        "trace_id": "0" * 32,
        "span_id": "0" * 16,
        "parent_id": None,
        "name": "n",
        "status": TraceStatus(status_code="OK"),
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1.5,
        "end_time": None,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span.model_validate({**values, **fields})


def test_spans_keep_their_extra_fields_whatever_they_are_called() -> None:
    extras = {"kind": 1, "_id": "x", "partition_id": "p", "a.b": 2, "$x": 3, "": 4, "agl$json": 5}
    item = span(attributes={"gen_ai.model": "m", "$y": [1, 2]}, **extras)

    document = model_fields(item)

    assert document["kind"] == 1
    assert not {"_id", "partition_id", "a.b", "$x", "", "agl$json"} & document.keys()
    assert there_and_back(item) == item


def test_numbers_that_are_sorted_by_must_fit() -> None:
    with pytest.raises(InvalidRequestError, match="sequence_id: an integer beyond 64 bits"):
        model_fields(span().model_copy(update={"sequence_id": 2**63}))
    assert there_and_back(span(sequence_id=2**62)).sequence_id == 2**62


def test_a_document_of_0_3_is_read_as_it_is() -> None:
    document = {
        "_id": bson.ObjectId(),
        "partition_id": "pt-1",
        "rollout_id": "ro-1",
        "input": {"question": "1+1", "agl$json": "theirs"},
        "start_time": 1.0,
        "end_time": None,
        "mode": "train",
        "resources_id": None,
        "status": "requeuing",
        "config": {
            "timeout_seconds": None,
            "unresponsive_seconds": 5.0,
            "max_attempts": 2,
            "retry_condition": ["timeout"],
        },
        "metadata": {},
    }
    item = from_document(document, Rollout)
    assert item.model_dump() == {
        name: value for name, value in document.items() if name not in ("_id", "partition_id")
    }


def test_a_document_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(BackendError, match="Document 7 is no Rollout: input: Field required"):
        from_document({"_id": 7, "rollout_id": "r", "start_time": 1.0}, Rollout)


def test_a_field_that_does_not_exist_cannot_be_updated() -> None:
    with pytest.raises(InvalidRequestError, match="Rollout has no field 'colour' to update"):
        some_fields(rollout(1), ["colour"])


def test_a_document_beyond_the_limit_is_refused_with_the_limit() -> None:
    fits = {"v": "x" * (16 * 1024 * 1024 - 100)}
    assert sealed(fits, "Rollout r")["v"] == fits["v"]
    with pytest.raises(TooLargeError, match=r"Rollout r takes \d+ bytes .* limit is 16 MiB"):
        sealed({"v": "x" * 16 * 1024 * 1024}, "Rollout r")


def test_ids_rise_even_within_one_tick_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    ids = new_ids(2000)
    assert [before, *ids] == sorted({before, *ids})


def test_ids_sort_among_those_of_0_3_by_their_second() -> None:
    now = datetime.datetime.now(datetime.UTC)
    earlier = bson.ObjectId.from_datetime(now - datetime.timedelta(seconds=2))
    later = bson.ObjectId.from_datetime(now + datetime.timedelta(seconds=3))
    assert earlier < new_id() < later
