"""An analysis as sections of a page."""

from __future__ import annotations

from collections.abc import Iterable

from agl.bench.analysis.model import Analysis, Course, Group
from agl.bench.analysis.text import CHANGES, HEAD, cells
from agl.bench.pages.charts import Bar, Chart, Line, bars, draw, shares
from agl.bench.pages.document import (
    Section,
    charts,
    folded,
    moment,
    note,
    paragraph,
    table,
    tiles,
)
from agl.bench.pages.units import spoken
from agl.bench.results import Result

_TILES = (
    "rollouts finished a second",
    "spans a second",
    "requests a second",
    "CPU of a request",
    "cores in use",
    "resident memory",
)
_BARS = 10


def sections(result: Result) -> list[Section]:
    """Throughput, time, layers, growth, tables, the machine, and what is missing."""
    analysis = Analysis.model_validate(result.details)
    found = [
        Section("At a glance", _glance(analysis, result)),
        Section("Over the window", charts(_courses(analysis.courses))),
    ]
    if analysis.layers:
        found.append(Section("Where the time of a request goes", _layers(analysis)))
    if analysis.growth:
        found.append(Section("As the store fills", _growth(analysis)))
    for name in dict.fromkeys(group.section for group in analysis.groups):
        groups = [group for group in analysis.groups if group.section == name and group.rows]
        if groups:
            found.append(Section(name, _groups(groups)))
    found.append(Section("All values", _values(analysis)))
    if analysis.absent:
        words = paragraph("These series have no samples in the window, so nothing is said of them.")
        listed = folded(f"{len(analysis.absent)} series", _list(analysis.absent))
        found.append(Section("Not measured", words + listed))
    return found


def lead(result: Result) -> str:
    """The window and its source, below the title."""
    analysis = Analysis.model_validate(result.details)
    return paragraph(
        f"{moment(analysis.start)} to {moment(analysis.end)}, {analysis.seconds:,.0f} s, by"
        f" Prometheus at {analysis.prometheus}.",
        quiet=True,
    )


def _glance(analysis: Analysis, result: Result) -> str:
    values = {value.name: value for value in analysis.values}
    shown = [
        (name, spoken(values[name].value, values[name].unit)) for name in _TILES if name in values
    ]
    shown += [
        (figure.name, spoken(figure.median, figure.unit))
        for figure in result.figures
        if figure.name.startswith("requests p")
    ]
    remarks = note("Read these first", result.problems, "bad") if result.problems else ""
    partial = note(f"Partial: {result.partial}", (), "bad") if result.partial else ""
    clock = analysis.clock.prometheus or 0.0
    told = paragraph(f"Prometheus' clock is {clock:+.2f} s from this machine's.", quiet=True)
    return partial + remarks + tiles(shown) + told


def _courses(courses: Iterable[Course]) -> list[str]:
    by_chart: dict[str, list[Course]] = {}
    for course in courses:
        by_chart.setdefault(course.chart, []).append(course)
    return [
        draw(Chart(name, found[0].unit, [Line(one.name, one.points) for one in found]))
        for name, found in by_chart.items()
    ]


def _layers(analysis: Analysis) -> str:
    parts = [
        (layer.name, layer.share, f"{spoken(layer.time, 's')} a second")
        for layer in analysis.layers
    ]
    drawn = shares("All requests, waits left out", parts)
    return drawn + "".join(paragraph(text, quiet=True) for text in analysis.layer_notes)


def _growth(analysis: Analysis) -> str:
    lines = [
        Line(one.method, [(part.size, part.latency) for part in one.slices])
        for one in analysis.growth
    ]
    drawn = draw(
        Chart(
            "Mean latency beside the number of rollouts",
            "s",
            lines,
            x="count",
            x_title="rollouts in the store",
            dots=True,
            note="Each point is a twelfth of the window.",
        )
    )
    rows = [
        (one.method, f"{one.smallest:,.0f}", f"{one.largest:,.0f}", spoken(one.ratio, "ratio"))
        for one in analysis.growth
    ]
    head = ("store method", "rollouts, least", "most", "mean latency, most / least")
    return charts([drawn]) + table(head, rows)


def _groups(groups: Iterable[Group]) -> str:
    parts: list[str] = []
    drawn = False
    for group in groups:
        if group.by and not drawn:
            rows = [
                Bar(" ".join(row.labels), row.time or 0.0, told=f"{spoken(row.time, 's')}/s")
                for row in group.rows[:_BARS]
            ]
            parts.append(charts([bars(f"Time a second by {', '.join(group.by)}", "s", rows),
                                 bars(f"p95 by {', '.join(group.by)}", "s",
                                      [Bar(" ".join(row.labels), row.p95 or 0.0)
                                       for row in group.rows[:_BARS]])]))  # fmt: skip
            drawn = True
        parts.append(_table(group))
    return "".join(parts)


def _table(group: Group) -> str:
    by = f"by {', '.join(group.by)}" if group.by else "all together"
    rows = [[*(row.labels or ("all",)), *cells(row)] for row in group.rows]
    head = [*(group.by or ("",)), *HEAD, *CHANGES]
    drawn = table(head, rows, max(len(group.by), 1))
    return folded(f"{group.metric}, {by} ({len(rows)} rows)", drawn)


def _values(analysis: Analysis) -> str:
    rows = [(v.section, v.name, spoken(v.value, v.unit)) for v in analysis.values]
    rows += [("Store, now", name, f"{value:,.0f}") for name, value in analysis.totals.items()]
    return table(("", "", "value"), rows, 2)


def _list(lines: Iterable[str]) -> str:
    return table(("series",), [(line,) for line in lines])
