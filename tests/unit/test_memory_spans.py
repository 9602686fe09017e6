"""Spans kept as JSON: against a plain list of them, and what JSON cannot give back."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agl.errors import DuplicatedPrimaryKeyError, InvalidRequestError, NotFoundError
from agl.store.collection.memory_spans import SpanCollection, decode_span, encode_span
from agl.store.collection.query import parse_filter, predicate, sort_items, window
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.wire import dump
from agl.types import Event, Link, OtelResource, Span, SpanContext, TraceStatus
from agl.types.bounds import MAX_INTEGER, MAX_SEQUENCE_ID, MIN_INTEGER
from agl.utils.encoded import EncodedItems
from agl.utils.ownership import copy_model, share_objects


def make_span(**values: Any) -> Span:
    defaults: dict[str, Any] = {
        "rollout_id": "r",
        "attempt_id": "a",
        "sequence_id": 1,
        "trace_id": "t",
        "span_id": "s",
        "parent_id": None,
        "name": "n",
        "status": TraceStatus(status_code="OK"),
        "attributes": {"k": "v"},
        "events": [],
        "links": [],
        "start_time": None,
        "end_time": None,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**{**defaults, **values})


# Against a list

TRICKY = ['x,"status":{', 'y"', "\\", "é\u2028", "\x00", "status", ""]
ids = st.sampled_from(["a", "b", *TRICKY[:3]])
texts = st.one_of(st.sampled_from(TRICKY), st.text(max_size=5))
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(st.none(), finite, st.sampled_from([0.1, 1e300, -0.0]))
integers = st.integers(MIN_INTEGER, MAX_INTEGER)
scalars = st.one_of(texts, st.booleans(), integers, st.floats(allow_nan=False))
values = st.one_of(scalars, st.lists(texts, max_size=2), st.lists(st.booleans(), max_size=2))
keys = texts.filter(lambda text: "\0" not in text)
attributes = st.dictionaries(keys, values, max_size=3)
contexts = st.none() | st.builds(
    SpanContext, trace_id=texts, span_id=texts, is_remote=st.booleans(), trace_state=st.just({})
)
spans = st.builds(
    make_span,
    rollout_id=ids,
    attempt_id=ids,
    span_id=ids,
    sequence_id=st.integers(-2, 3) | st.sampled_from([MAX_SEQUENCE_ID, -MAX_SEQUENCE_ID]),
    trace_id=texts,
    parent_id=st.none() | texts,
    name=texts,
    attributes=attributes,
    events=st.lists(st.builds(Event, name=texts, attributes=attributes), max_size=1),
    links=st.lists(
        st.builds(
            Link,
            context=st.just(SpanContext(trace_id="", span_id="", is_remote=True, trace_state={})),
        ),
        max_size=1,
    ),
    start_time=numbers,
    context=contexts,
    extra_field=st.none() | texts,
)
conditions = st.one_of(
    st.fixed_dictionaries({"exact": st.none() | ids | st.integers(-1, 3) | st.just([])}),
    st.fixed_dictionaries({"within": st.lists(ids, max_size=3)}),
    st.fixed_dictionaries({"contains": texts}),
)
fields = st.sampled_from(
    [
        *["rollout_id", "attempt_id", "span_id", "trace_id", "parent_id", "name", "extra_field"],
        *["sequence_id", "attributes", "missing"],
    ]
)
filters = st.dictionaries(fields, conditions, max_size=3)
sorts = st.none() | st.fixed_dictionaries(
    {
        "name": st.sampled_from(["sequence_id", "name", "parent_id", "start_time", "span_id"]),
        "order": st.sampled_from(["asc", "desc"]),
    }
)
writes = st.lists(
    st.tuples(
        st.sampled_from(["insert_missing", "insert", "upsert", "update", "delete", "evict"]),
        st.lists(spans, min_size=1, max_size=4),
        st.none() | st.just(["name", "attributes"]) | st.just([]),
    ),
    max_size=6,
)


class Naive:
    """What a collection of spans should do, with a list."""

    def __init__(self) -> None:
        self.items: list[Span] = []

    def _at(self, span: Span) -> int | None:
        keys = [(s.rollout_id, s.attempt_id, s.span_id) for s in self.items]
        key = (span.rollout_id, span.attempt_id, span.span_id)
        return keys.index(key) if key in keys else None

    def insert_missing(self, given: list[Span]) -> list[Span]:
        added: list[Span] = []
        for span in given:
            if self._at(span) is None:
                self.items.append(copy_model(span))
                added.append(span)
        return added

    def insert(self, given: list[Span]) -> None:
        before = list(self.items)
        if len(self.insert_missing(given)) < len(given):
            self.items = before
            raise DuplicatedPrimaryKeyError

    def upsert(self, given: list[Span], names: list[str] | None) -> None:
        for span in given:
            if not self.insert_missing([span]):
                self.update([span], names)

    def update(self, given: list[Span], names: list[str] | None) -> None:
        places = [self._at(span) for span in given]
        if None in places:
            raise NotFoundError
        for span, at in zip(given, places, strict=True):
            assert at is not None
            if names is None:
                self.items[at] = copy_model(span)
            else:
                for name in names:
                    setattr(self.items[at], name, getattr(copy_model(span), name))

    def delete(self, given: list[Span]) -> None:
        if any(self._at(span) is None for span in given):
            raise NotFoundError
        for span in given:
            at = self._at(span)
            if at is not None:
                del self.items[at]

    def query(self, filter: Any, sort: Any, limit: int, offset: int) -> tuple[list[Span], int]:
        query = parse_filter(filter)
        matches = predicate(query.required, query.optional)
        found = [span for span in self.items if matches is None or matches(span)]
        total = len(found)
        if sort is not None:
            found = sort_items(found, sort["name"], sort["order"])
        return window(found, limit, offset), total


async def _carry_out(
    collection: SpanCollection, naive: Naive, kind: str, given: list[Span], names: Any
) -> None:
    if kind == "evict":
        rollout_id = given[0].rollout_id
        counts = collection.remove_rollout(rollout_id)
        gone = [span.attempt_id for span in naive.items if span.rollout_id == rollout_id]
        assert counts == {attempt_id: gone.count(attempt_id) for attempt_id in gone}
        naive.items = [span for span in naive.items if span.rollout_id != rollout_id]
    elif kind == "insert_missing":
        stored = await collection.insert_missing(given)
        assert [id(s) for s in stored] == [id(s) for s in naive.insert_missing(given)]
    else:
        if kind == "delete":  # the same span twice in one call is nobody's business
            given = given[:1]
        arguments = (given, names) if kind in ("upsert", "update") else (given,)
        expected: type[Exception] | None = None
        try:
            getattr(naive, kind)(*arguments)
        except (DuplicatedPrimaryKeyError, NotFoundError) as error:
            expected = type(error)
        if expected is None:
            await getattr(collection, kind)(*arguments)
        else:
            with pytest.raises(expected):
                await getattr(collection, kind)(*arguments)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    writes=writes,
    shared=st.booleans(),
    questions=st.lists(
        st.tuples(
            filters,
            st.sampled_from(["and", "or"]),
            st.none() | filters,
            sorts,
            st.integers(-1, 3),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_it_behaves_as_a_list_of_spans(writes: Any, shared: bool, questions: Any) -> None:
    async def run() -> None:
        collection, naive = SpanCollection(), Naive()
        for kind, given_spans, names in writes:
            await _carry_out(collection, naive, kind, given_spans, names)
        assert await collection.size() == len(naive.items)
        for span in naive.items:
            key = (span.rollout_id, span.attempt_id, span.span_id)
            assert await collection.find(*key) == span
        for plain, aggregate, must, sort, limit, offset in questions:
            filter = {**plain, "_aggregate": aggregate, "_must": must}
            found = await collection.query(filter, sort, limit, offset)
            items, total = naive.query(filter, sort, limit, offset)
            assert (list(found.items), found.total) == (items, total)
            first = (naive.query(filter, sort, 1, 0)[0] or [None])[0]
            assert await collection.get(filter, sort) == first
            assert json.loads(dump(found)) == json.loads(
                dump(found.model_copy(update={"items": items}))
            )

    if shared:
        with share_objects():
            asyncio.run(run())
    else:
        asyncio.run(run())


# What JSON cannot give back

UNUSUAL: list[dict[str, Any]] = [
    {"attributes": {"pair": ("a", "b")}},
    {"attributes": {"nan": math.nan}},
    {"attributes": {"endless": math.inf}},
    {"handle": Decimal("1.5")},
    {"handle": {1: "an integer key"}},
    {"sequence_id": 2**64},
    {"name": "\ud800"},
]


@pytest.mark.parametrize("values", UNUSUAL, ids=str)
async def test_what_json_cannot_give_back_is_kept_all_the_same(values: dict[str, Any]) -> None:
    collection = SpanCollection()
    span = make_span()
    for name, value in values.items():
        setattr(span, name, value)
    await collection.insert([span])
    found = await collection.find("r", "a", "s")
    assert found is not None
    assert found is not span
    assert found.attributes is not span.attributes
    (again,) = await collection.query({"name": {"exact": span.name}})
    for name, value in values.items():
        assert repr(getattr(found, name)) == repr(value)
        assert repr(getattr(again, name)) == repr(value)


async def test_a_class_of_its_own_is_kept() -> None:
    class MySpan(Span):
        pass

    collection = SpanCollection()
    await collection.insert([MySpan(**dict(make_span()))])
    assert type(await collection.find("r", "a", "s")) is MySpan


async def test_fields_that_do_not_come_first_are_found() -> None:
    collection = SpanCollection()
    values = dict(reversed(make_span(name="late").__dict__.items()))
    await collection.insert([Span.model_construct(**values)])
    assert (await collection.query({"name": {"exact": "late"}})).total == 1
    assert (await collection.query({"status": {"exact": TraceStatus(status_code="OK")}})).total == 1


def test_the_encoding_is_the_one_of_the_wire() -> None:
    span = make_span()
    data = encode_span(span)
    assert data == dump(span) == span.model_dump_json().encode()
    assert decode_span(data) == span


# Nobody shares an object with the collection


async def test_neither_the_given_nor_the_returned_is_stored() -> None:
    collection = SpanCollection()
    for shared in (make_span(), make_span(span_id="odd", attributes={"k": ("v",)})):
        await collection.insert([shared])
        shared.attributes["k"] = "changed"
        for _ in range(2):
            (found,) = await collection.query({"span_id": {"exact": shared.span_id}})
            assert found.attributes["k"] != "changed"
            found.attributes["k"] = "changed"


async def test_wrong_types_change_nothing() -> None:
    collection = SpanCollection()
    wrong: Any = [make_span(), "span"]
    for method in (collection.insert, collection.insert_missing, collection.upsert):
        with pytest.raises(TypeError, match="Collection of Span cannot take str"):
            await method(wrong)
    assert await collection.size() == 0


async def test_what_cannot_be_sorted_is_said() -> None:
    collection = SpanCollection()
    await collection.insert([make_span(), make_span(span_id="2")])
    with pytest.raises(InvalidRequestError, match="attributes"):
        await collection.query(None, {"name": "attributes", "order": "asc"})


async def test_the_same_span_twice_in_one_batch_is_stored_and_returned_once() -> None:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout("a")
    span = make_span(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id)
    assert len(await store.add_many_spans([span, span])) == 1
    assert (await store.statistics())["total_spans"] == 1


async def test_spans_pickle() -> None:
    collection = SpanCollection()
    await collection.insert([make_span()])
    twin: SpanCollection = pickle.loads(pickle.dumps(collection))
    assert await twin.find("r", "a", "s") == make_span()


# Bytes for the wire


async def test_a_page_is_served_from_what_is_stored() -> None:
    store = InMemoryLightningStore()
    rollout = await store.start_rollout("a")
    key = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    plain, odd = make_span(**key), make_span(**key, span_id="2", attributes={"x": math.nan})
    with share_objects():
        assert dump(await store.add_span(plain)) == plain.model_dump_json().encode()
        assert json.loads(dump(await store.add_span(odd)))["attributes"] == {"x": "NaN"}
        found = await store.query_spans(rollout.rollout_id)
    assert isinstance(found.items, EncodedItems)
    expected = [plain.model_dump(mode="json"), odd.model_dump(mode="json")]
    expected[1]["attributes"] = {"x": "NaN"}
    assert json.loads(dump(found)) == {"items": expected, "limit": -1, "offset": 0, "total": 2}
    assert [span.span_id for span in found.items[:1]] == ["s"]
    assert isinstance((await store.query_spans(rollout.rollout_id)).items, list)
