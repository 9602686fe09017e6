"""Variables: how texts and queries are filled with them, what is offered and what is chosen."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
from panels_support import FakePrometheus, answering

from agl.ops.panels.interpolation import ALL, Scope, Value, fixed, references
from agl.ops.panels.timerange import TimeRange
from agl.ops.panels.variables import Variable, resolve

SPAN = TimeRange(1_700_000_000, 1_700_003_600)
ONE = Value(("a.b",), ("A",))
MANY = Value(("a.b", 'c"d'), ("A", "C"), many=True)
SINGLE = Value(("a.b",), ("a.b",), many=True)
EVERY = Value(("a", "b"), ("All",), many=True, literal=".+")
SCOPE = Scope(
    {"one": ONE, "many": MANY, "single": SINGLE, "every": EVERY, "__interval": fixed("5s")}
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('x{j="$one"}', 'x{j="a.b"}'),
        ('x{j="${one}"}', 'x{j="a.b"}'),
        ('x{j="[[one]]"}', 'x{j="a.b"}'),
        ('x{j=~"$many"}', r'x{j=~"(a\\.b|c\"d)"}'),
        ('x{j=~"$single"}', r'x{j=~"a\\.b"}'),
        ('x{j=~"$every"}', 'x{j=~".+"}'),
        ("rate(x[$__interval])", "rate(x[5s])"),
        ("x{j=~'${many:pipe}'}", "x{j=~'a.b|c\"d'}"),
        ("${many:csv}", 'a.b,c"d'),
        ("${many:json}", '["a.b", "c\\"d"]'),
        ("${one:regex}", r"a\.b"),
        ("${many:text}", "A + C"),
        ("${one.text}", "A"),
        ("${many:singlequote}", "'a.b','c\"d'"),
        ("${many:glob}", '{a.b,c"d}'),
        ("$unknown ${__field.labels.x} $5", "$unknown ${__field.labels.x} $5"),
        ("$onetwo", "$onetwo"),
    ],
)
def test_queries(text: str, wanted: str) -> None:
    assert SCOPE.query(text) == wanted


def test_a_value_cannot_leave_its_quotes() -> None:
    scope = Scope({"v": Value(('"} or vector(1) or x{y="\\',))})
    assert scope.query('x{j="$v"}') == 'x{j="\\"} or vector(1) or x{y=\\"\\\\"}'


def test_titles_and_links() -> None:
    assert SCOPE.title("Load of $many at $every") == "Load of A + C at All"
    assert SCOPE.link("/d/x?a=$many") == "/d/x?a=a.b%2Cc%22d"
    assert SCOPE.link("/d/x?${many:queryparam}") == "/d/x?var-many=a.b&var-many=c%22d"
    assert SCOPE.link("/d/x?${every:queryparam}") == "/d/x?var-every=%24__all"
    assert references("$a ${b:csv} [[c]]") == {"a", "b", "c"}


async def resolved(
    definition: dict[str, Any],
    prometheus: FakePrometheus | None = None,
    chosen: dict[str, list[str]] | None = None,
) -> Variable:
    async with answering(prometheus or FakePrometheus()) as reader:
        return (await resolve([{"name": "v", **definition}], chosen or {}, reader, SPAN))[0]


def texts(variable: Variable) -> list[str]:
    return [option.text for option in variable.options]


class TestOptions:
    async def test_values_of_a_label(self) -> None:
        prometheus = FakePrometheus({"label/job/values": ["b", "a10", "a9"]})
        query = 'label_values(up{x=~"y,z"}, job)'
        found = await resolved({"type": "query", "query": query, "sort": 7}, prometheus)
        assert texts(found) == ["a9", "a10", "b"]
        assert prometheus.asked[-1]["match[]"] == 'up{x=~"y,z"}'

    async def test_a_query_within_an_object(self) -> None:
        prometheus = FakePrometheus({"label/job/values": ["a"]})
        query = {"query": "label_values(job)", "refId": "A"}
        assert texts(await resolved({"type": "query", "query": query}, prometheus)) == ["a"]

    async def test_a_regex_takes_parts(self) -> None:
        prometheus = FakePrometheus({"label/i/values": ["node-1:9100", "node-2:9100", "other"]})
        definition = {"type": "query", "query": "label_values(i)"}
        plain = await resolved({**definition, "regex": "/node-(\\d)/"}, prometheus)
        assert texts(plain) == ["1", "2"]
        named = "/(?<text>node-\\d):(?<value>\\d+)/"
        found = await resolved({**definition, "regex": named}, prometheus)
        assert [(o.value, o.text) for o in found.options] == [
            ("9100", "node-1"),
            ("9100", "node-2"),
        ]

    async def test_the_result_of_a_query(self) -> None:
        result = {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "3"]}]}
        prometheus = FakePrometheus({"query": result})
        found = await resolved({"type": "query", "query": "query_result(x)"}, prometheus)
        assert texts(found) == ['{a="b"} 3.0']

    @pytest.mark.parametrize(
        ("order", "wanted"),
        [(0, ["b", "A", "10"]), (1, ["10", "A", "b"]), (2, ["b", "A", "10"]), (5, ["10", "A", "b"]),
         (8, ["b", "A", "10"]), (99, ["b", "A", "10"]), ("x", ["b", "A", "10"])],
    )  # fmt: skip
    async def test_order(self, order: Any, wanted: list[str]) -> None:
        prometheus = FakePrometheus({"label/j/values": ["b", "A", "10"]})
        definition = {"type": "query", "query": "label_values(j)", "sort": order}
        assert texts(await resolved(definition, prometheus)) == wanted

    async def test_custom_and_interval(self) -> None:
        found = await resolved({"type": "custom", "query": r"one : 1, two, th\,ree"})
        assert [(o.value, o.text) for o in found.options] == [
            ("1", "one"), ("two", "two"), ("th,ree", "th,ree"),
        ]  # fmt: skip
        auto = await resolved(
            {"type": "interval", "query": "1m,1h", "auto": True, "auto_count": 30}
        )
        assert [(o.value, o.text) for o in auto.options] == [
            ("120s", "auto"),
            ("1m", "1m"),
            ("1h", "1h"),
        ]


class TestChoice:
    QUERY: ClassVar[dict[str, Any]] = {"type": "query", "query": "label_values(j)"}
    ANSWER: ClassVar[dict[str, Any]] = {"label/j/values": ["a", "b", "c"]}

    async def choose(
        self, chosen: list[str] | None = None, **definition: Any
    ) -> tuple[tuple[str, ...], str]:
        found = await resolved(
            {**self.QUERY, **definition},
            FakePrometheus(self.ANSWER),
            {"v": chosen} if chosen is not None else None,
        )
        return found.chosen, Scope({"v": found.value}).query("$v")

    async def test_the_first_when_nothing_is_said(self) -> None:
        assert await self.choose() == (("a",), "a")

    async def test_all_when_it_is_offered(self) -> None:
        assert await self.choose(includeAll=True, multi=True) == ((ALL,), "(a|b|c)")
        assert await self.choose(includeAll=True, allValue=".+") == ((ALL,), ".+")

    async def test_what_was_saved(self) -> None:
        assert await self.choose(current={"value": "b"}) == (("b",), "b")
        assert await self.choose(current={"value": ["b", "c"]}, multi=True) == (("b", "c"), "(b|c)")
        assert await self.choose(current={"value": "gone"}) == (("a",), "a")

    async def test_the_address_wins(self) -> None:
        assert await self.choose(["c"], current={"value": "b"}) == (("c",), "c")
        assert await self.choose(["new"]) == (("new",), "new")
        assert await self.choose(["a", "b"]) == (("a",), "a")
        assert await self.choose(["All"], includeAll=True) == ((ALL,), "(a|b|c)")

    async def test_chained(self) -> None:
        prometheus = FakePrometheus({"label/j/values": ["x"], "label/k/values": ["y"]})
        definitions = [
            {"name": "first", **self.QUERY},
            {"name": "second", "type": "query", "query": 'label_values(m{j="$first"}, k)'},
        ]
        async with answering(prometheus) as reader:
            await resolve(definitions, {}, reader, SPAN)
        assert prometheus.asked[-1]["match[]"] == 'm{j="x"}'


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ({"type": "magic"}, "type 'magic' is not known"),
        ({"type": "query", "query": 7}, "not a text but int"),
        ({"type": "query", "query": ""}, "its query is empty"),
        ({"type": "query", "query": "label_values(j)", "regex": "/(/"}, "unterminated|missing"),
        ({"type": "query", "query": "label_values(up, a-b)"}, "'a-b' is not a label's name"),
    ],
)
async def test_nonsense_is_told_and_offers_nothing(
    definition: dict[str, Any], problem: str
) -> None:
    found = await resolved(definition, FakePrometheus({"label/j/values": ["a"]}))
    assert re.search(problem, found.problem)
    assert found.options == ()


@pytest.mark.parametrize("entry", [7, "x", {}, {"name": "a b"}, {"name": 5}])
async def test_entries_without_a_name(entry: Any) -> None:
    async with answering(FakePrometheus()) as reader:
        found = await resolve([entry], {}, reader, SPAN)
    assert found[0].problem == "variable 1 has no name that could be used"


async def test_prometheus_down_keeps_the_saved_choice() -> None:
    saved = {"type": "query", "query": "label_values(j)", "current": {"value": "b"}}
    found = await resolved(saved, FakePrometheus(status=503))
    assert found.chosen == ("b",)
    assert "503" in found.problem
