"""The way to Prometheus: what it may ask, its limits, and answers that are none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from panels_support import FakePrometheus, answering

from agl.ops.panels.alerts import board_events, periods
from agl.ops.panels.boards import Board
from agl.ops.panels.interpolation import Scope
from agl.ops.panels.prometheus import (
    ENDPOINTS,
    Answer,
    Limits,
    PrometheusError,
    PrometheusReader,
    Series,
)
from agl.ops.panels.timerange import TimeRange
from agl.ops.panels.views import MAX_SERIES, largest, legends

SPAN = TimeRange(1000, 1060)
MATRIX = {
    "resultType": "matrix",
    "result": [
        {"metric": {"a": "1"}, "values": [[1000, "1"], [1030, "NaN"], [1060, "+Inf"]]},
        {"metric": {"a": "2"}, "values": [[1015, "2.5"]]},
    ],
}


async def refused(asking: Any) -> PrometheusError:
    with pytest.raises(PrometheusError) as caught:
        await asking
    return caught.value


async def test_a_range_is_laid_on_its_steps() -> None:
    async with answering(FakePrometheus({"query_range": MATRIX})) as reader:
        answer = await reader.range("x", SPAN, 15)
    assert [series.values for series in answer.series] == [
        [1.0, None, None, None, "+Inf"],
        [None, 2.5, None, None, None],
    ]


async def test_only_reading_endpoints_are_ever_asked() -> None:
    vector = {"resultType": "vector", "result": []}
    answers = {
        "query": vector, "query_range": MATRIX, "labels": [], "label/a/values": [], "series": [],
        "rules": {"groups": []}, "alerts": {"alerts": []},
    }  # fmt: skip
    prometheus = FakePrometheus(answers)
    async with answering(prometheus) as reader:
        await reader.range("x", SPAN, 15)
        await reader.instant("x", 5)
        await reader.label_names(SPAN)
        await reader.label_values("a", SPAN)
        await reader.series("x", SPAN)
        await reader.rules()
        await reader.alerts()
    assert len(prometheus.paths) == len(ENDPOINTS)
    assert {path.split("/api/v1/")[1] for path in prometheus.paths} == set(answers)


class TestLimits:
    async def test_more_points_than_prometheus_gives(self) -> None:
        prometheus = FakePrometheus()
        async with answering(prometheus) as reader:
            error = await refused(reader.range("x", TimeRange(0, 11_000), 1))
        assert (error.kind, prometheus.paths) == ("limit", [])
        assert "11001 points" in str(error)

    async def test_a_range_of_years(self) -> None:
        async with answering(FakePrometheus()) as reader:
            error = await refused(reader.range("x", TimeRange(0, 500 * 86400), 86400))
        assert error.kind == "limit"

    async def test_an_expression_without_end(self) -> None:
        async with answering(FakePrometheus(), Limits(expression=100)) as reader:
            assert (await refused(reader.instant("x" * 101, 5))).kind == "limit"
            assert (await refused(reader.instant(" ", 5))).kind == "query"

    async def test_a_large_answer(self) -> None:
        prometheus = FakePrometheus({"query": b"x" * 3_000_000})
        async with answering(prometheus, Limits(answer_bytes=2 << 20)) as reader:
            error = await refused(reader.instant("x", 5))
        assert (error.kind, "larger than 2 MiB" in str(error)) == ("limit", True)

    async def test_an_answer_that_does_not_come(self) -> None:
        prometheus = FakePrometheus(waits=asyncio.Event())
        async with answering(prometheus, Limits(seconds=0.2)) as reader:
            error = await refused(reader.instant("x", 5))
        assert (error.kind, "longer than 0.2 s" in str(error)) == ("limit", True)

    async def test_so_many_at_once_and_no_more(self) -> None:
        prometheus = FakePrometheus(
            {"query": {"resultType": "vector", "result": []}}, waits=asyncio.Event()
        )
        async with answering(prometheus, Limits(at_once=2)) as reader:
            asking = [asyncio.create_task(reader.instant(f"x{i}", 5)) for i in range(6)]
            await prometheus.until_asked(2)
            await asyncio.sleep(0.05)
            assert len(prometheus.paths) == 2
            assert prometheus.waits is not None
            prometheus.waits.set()
            await asyncio.gather(*asking)
        assert len(prometheus.paths) == 6

    async def test_a_label_is_no_way_out_of_the_path(self) -> None:
        prometheus = FakePrometheus()
        async with answering(prometheus) as reader:
            for label in ("../admin/tsdb/snapshot", "a/b", "", "a?b", "ä"):
                assert (await refused(reader.label_values(label, SPAN))).kind == "query"
        assert prometheus.paths == []

    async def test_a_redirect_is_not_followed(self) -> None:
        away = aiohttp.web.HTTPFound("http://192.0.2.1/")
        async with answering(FakePrometheus({"query": away})) as reader:
            error = await refused(reader.instant("x", 5))
        assert (error.kind, "302" in str(error)) == ("down", True)


async def test_one_question_for_all_who_ask_the_same() -> None:
    prometheus = FakePrometheus({"query": {"resultType": "vector", "result": []}})
    async with answering(prometheus) as reader:
        await asyncio.gather(*(reader.instant("x", 5) for _ in range(20)))
        await reader.instant("y", 5)
    assert len(prometheus.paths) == 2


async def test_one_who_hangs_up_leaves_the_others_their_answer() -> None:
    prometheus = FakePrometheus(
        {"query": {"resultType": "vector", "result": []}}, waits=asyncio.Event()
    )
    async with answering(prometheus) as reader:
        first = asyncio.create_task(reader.instant("x", 5))
        second = asyncio.create_task(reader.instant("x", 5))
        await prometheus.until_asked(1)
        first.cancel()
        assert prometheus.waits is not None
        prometheus.waits.set()
        assert (await second).series == []


def success(data: str) -> bytes:
    return f'{{"status":"success","data":{data}}}'.encode()


@pytest.mark.parametrize(
    ("body", "status", "kind", "told"),
    [
        (b'{"status":"error","error":"parse error: x"}', 400, "query", "parse error: x"),
        (b"<html>", 200, "down", "200, which is no result"),
        (b"", 503, "down", "503"),
        (success("{}"), 200, "query", "a None has no value"),
        (
            success('{"resultType":"vector","result":[{"value":[1]}]}'),
            200,
            "down",
            "Prometheus' API",
        ),
        (success('{"resultType":"vector","result":[{"value":[1,"x"]}]}'), 200, "down", "' API"),
        (b"\xff", 200, "down", "no result"),
    ],
)
async def test_answers_that_are_none(body: bytes, status: int, kind: str, told: str) -> None:
    async with answering(FakePrometheus({"query": body}, status=status)) as reader:
        error = await refused(reader.instant("x", 5))
    assert error.kind == kind
    assert told in str(error)


async def test_nobody_there() -> None:
    async with aiohttp.ClientSession() as session:
        reader = PrometheusReader("http://127.0.0.1:1", session)
        error = await refused(reader.instant("x", 5))
    assert error.kind == "down"
    assert "127.0.0.1:1: Connection refused" in str(error)


class TestNames:
    FOUND = [{"__name__": "x", "a": "1", "b": "z"}, {"__name__": "x", "a": "2", "b": "z"}]  # noqa: RUF012

    @pytest.mark.parametrize(
        ("template", "wanted"),
        [
            ("{{a}} of {{ b }}", ["1 of z", "2 of z"]),
            ("{{gone}}", ["x", "x"]),
            ("P50", ["P50", "P50"]),
            ("__auto", ["1", "2"]),
            ("", ['x{a="1", b="z"}', 'x{a="2", b="z"}']),
        ],
    )
    def test_legends(self, template: str, wanted: list[str]) -> None:
        assert legends(self.FOUND, template, "x") == wanted

    def test_a_series_without_labels_is_called_by_its_query(self) -> None:
        assert legends([{}], "", "sum(x)") == legends([{}], "__auto", "sum(x)") == ["sum(x)"]


def test_of_a_thousand_series_the_largest_stay_in_their_order() -> None:
    series = [Series({"n": str(i)}, [float(i % 500), None, "+Inf"]) for i in range(1000)]
    kept = largest(Answer(series), MAX_SERIES)
    assert len(kept) == MAX_SERIES
    assert {s.labels["n"] for s in kept} == {
        str(i) for i in range(1000) if i % 500 >= 500 - MAX_SERIES // 2
    }
    assert [int(s.labels["n"]) for s in kept] == sorted(int(s.labels["n"]) for s in kept)
    assert largest(Answer(series[:5]), MAX_SERIES) == series[:5]


def test_periods_are_the_times_without_a_gap() -> None:
    series = Series({}, [None, 1.0, 1.0, None, 0.0, 1.0])
    found = periods(series, 100, 10)
    assert [(p.start, p.end, p.open) for p in found] == [(110, 120, False), (150, 150, True)]


async def test_events_that_only_grafana_has_are_left_out_and_others_tell_what_is_wrong() -> None:
    content = {
        "annotations": {
            "list": [
                {"name": "Ours", "datasource": {"type": "grafana", "uid": "-- Grafana --"}},
                {"name": "Loki", "datasource": {"type": "loki", "uid": "x"}},
            ]
        }
    }
    board = Board("b", "B", Path("b.json"), content)
    async with answering(FakePrometheus()) as reader:
        found = await board_events(board, Scope({}), SPAN, reader, 5)
    assert found["events"] == []
    assert [problem.partition(":")[0] for problem in found["problems"]] == ["annotation Loki"]
