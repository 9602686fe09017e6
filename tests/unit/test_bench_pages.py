"""Pages of results: numbers in words, charts of odd data, and nothing foreign in the file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from agl.bench.pages.charts import Bar, Chart, Line, bars, draw, nice, shares
from agl.bench.pages.report import report_of
from agl.bench.pages.units import signed, spoken
from agl.bench.results import Figure, Machine, Result

MACHINE = Machine(
    system="Linux <x>", processor="one", cores=2, memory=1 << 34, python="3.11.7", load=0.1
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000_001_5, "s", "1.50 µs"),
        (0.0123, "s", "12.3 ms"),
        (0, "s", "0 s"),
        (412.2, "s", "412 s"),
        (1234.5, "1/s", "1,234/s"),
        (0.5, "1/s", "0.50/s"),
        (0.123, "share", "12.3 %"),
        (1536, "bytes", "1.50 KiB"),
        (1 << 31, "bytes", "2.00 GiB"),
        (3, "count", "3"),
        (1.234, "ratio", "1.23"),
        (float("inf"), "s", "∞"),
        (float("nan"), "s", "-"),
        (None, "1/s", "-"),
    ],
)
def test_numbers_are_written_as_people_read_them(value: float, unit: str, text: str) -> None:
    assert spoken(value, unit) == text


def test_differences_have_a_sign() -> None:
    assert [signed(value, "1/s") for value in (2.0, -2.0, 0.0, None)] == [
        "+2/s",
        "-2/s",
        "0/s",
        "-",
    ]


@pytest.mark.parametrize(("step", "next_one"), [(0.11, 0.2), (1, 1), (2.2, 2.5), (9, 10), (0, 1)])
def test_ticks_are_at_round_numbers(step: float, next_one: float) -> None:
    assert nice(step) == pytest.approx(next_one)


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 5.0)],
        [(1.0, None), (2.0, None)],
        [],
        [(1.0, 0.0), (2.0, 0.0)],
        [(1.0, -5.0), (2.0, float("inf")), (3.0, 5.0)],
        [(1.0, 1e-9), (1e9, 1e12)],
    ],
)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("x", ["time", "count"])
def test_any_data_gives_a_chart_that_is_well_formed(
    points: list[tuple[float, float | None]], log: bool, x: str
) -> None:
    for dots in (False, True):
        text = draw(Chart("A & B", "s", [Line("<one>", points)], x=x, dots=dots, log=log))
        for number in re.findall(r'c?[xy12]+="([^"]*)"', text):
            assert "nan" not in number
            assert "inf" not in number
        ElementTree.fromstring(text)


def test_bars_and_shares_hold_their_values() -> None:
    drawn = bars("Rates", "1/s", [Bar("a<b", 10, 8, 12), Bar("none", 0)])
    assert "a&lt;b" in drawn
    assert "10/s" in drawn
    assert "left:66.67%" in drawn
    ElementTree.fromstring(drawn)
    assert "25.0 %" in shares("Layers", [("http", 0.25, "1 s"), ("store", 0.75, "3 s")])
    ElementTree.fromstring(bars("Nothing", "s", []))


def test_a_page_shows_every_result_and_nothing_foreign() -> None:
    rate = Figure(name="rollouts_per_second", unit="1/s", better="higher", samples=(10, 20, 30))
    well = Result(
        kind="load",
        name="closed",
        parameters={"clients": 3},
        figures=(rate,),
        started=0,
        ended=60,
        machine=MACHINE,
    )
    ill = well.model_copy(
        update={"kind": "scenario", "name": "<script>", "problems": ("it broke & fell",)}
    )
    text = report_of("A <b>title</b>", [well, ill], ["mongo: no server"])
    assert "<script" not in text
    assert "A &lt;b&gt;title" in text
    assert "it broke &amp; fell" in text
    assert "mongo: no server" in text
    assert "20/s" in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "Nothing was measured" in report_of("Empty", [])
