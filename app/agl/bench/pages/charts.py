"""Charts as inline SVG: no script, no address, both themes, and each point told on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

from agl.bench.pages.units import spoken

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 12, 30
HUES = 8
"""Colours of series, ``--s0`` to ``--s7`` in the page's style."""


@dataclass(frozen=True)
class Line:
    """One series; ``points`` are x and y in the chart's units, y ``None`` where there is none."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Chart:
    """What is drawn.

    Attributes:
        unit: Of y, as :func:`agl.bench.pages.units.spoken` knows it.
        x: ``time`` (seconds since the epoch, shown as time of day in UTC) or a number's unit.
        x_title: What x is, for numbers.
        dots: Points alone, without lines between them.
        log: Both axes by powers, for what spans several.
        note: A sentence below the title.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    x: str = "time"
    x_title: str = ""
    dots: bool = False
    log: bool = False
    note: str = ""


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    at: float
    length: float
    log: bool = False
    power: float = 10.0
    """Of what round numbers are multiples of: 10, or 1024 for bytes."""

    def place(self, value: float) -> float:
        low, high, value = (_log(v) if self.log else v for v in (self.low, self.high, value))
        return self.at + (value - low) / ((high - low) or 1) * self.length

    def ticks(self, wanted: int) -> list[float]:
        if self.log:
            powers = range(math.floor(_log(self.low)), math.ceil(_log(self.high)) + 1)
            every = max(1, math.ceil(len(powers) / wanted))
            ticks = [10.0**power for power in powers if power % every == 0]
            return [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
        step = nice((self.high - self.low) / wanted, self.power)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass
class _Drawing:
    chart: Chart
    x: _Scale
    y: _Scale
    parts: list[str] = field(default_factory=list[str])

    def add(self, text: str) -> None:
        self.parts.append(text)


def nice(step: float, base: float = 10.0) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten that is not below ``step``.

    With another ``base``, such as 1024, it is such a number of the largest power of that.
    """
    if not step > 0:
        return 1.0
    if base != 10.0:
        unit = base ** math.floor(math.log(step, base))
        return nice(step / unit) * unit
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= step * 0.999)


def draw(chart: Chart) -> str:
    """The chart as a ``figure`` element; one that says so when there is nothing to see."""
    lines = [line for line in chart.lines if any(_drawn(chart, point) for point in line.points)]
    note = f'<p class="quiet">{escape(chart.note)}</p>' if chart.note else ""
    head = f"<figcaption>{escape(chart.title)}</figcaption>{note}"
    if not lines:
        return f'<figure class="chart">{head}<p class="quiet">nothing to draw</p></figure>'
    legend = "".join(
        f'<li><i style="background:var(--s{number % HUES})"></i>{escape(line.name)}</li>'
        for number, line in enumerate(lines)
    )
    keys = f'<ul class="legend">{legend}</ul>' if len(lines) > 1 or lines[0].name else ""
    return f'<figure class="chart">{head}{_svg(chart, lines)}{keys}</figure>'


def _svg(chart: Chart, lines: Sequence[Line]) -> str:
    drawing = _Drawing(chart, *_scales(chart, lines))
    _axes(drawing)
    for number, line in enumerate(lines):
        _line(drawing, line, number % HUES)
    label = escape(f"{chart.title}: {', '.join(line.name for line in lines)}", quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(drawing.parts)}</svg>"
    )


def _scales(chart: Chart, lines: Sequence[Line]) -> tuple[_Scale, _Scale]:
    points = [point for line in lines for point in line.points if _drawn(chart, point)]
    xs = [x for x, _ in points]
    ys = [y for _, y in points if y is not None]
    low, high = min(xs), max(xs)
    if low == high:
        low, high = (low / 2, high * 2) if chart.log else (low - 1, high + 1)
    wide = _Scale(low, high, _LEFT, WIDTH - _LEFT - _RIGHT, chart.log)
    bottom, top = (min(ys) / 1.5, max(ys) * 1.5) if chart.log else (min(0.0, *ys), max(ys) * 1.08)
    if bottom == top:
        top = bottom + 1
    height = HEIGHT - _TOP - _BOTTOM
    power = 1024.0 if chart.unit.startswith("bytes") else 10.0
    return wide, _Scale(bottom, top, HEIGHT - _BOTTOM, -height, chart.log, power)


def _axes(drawing: _Drawing) -> None:
    right = WIDTH - _RIGHT
    for tick in drawing.y.ticks(4):
        y = drawing.y.place(tick)
        drawing.add(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = escape(spoken(tick, drawing.chart.unit))
        drawing.add(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    told = _x_text(drawing.chart, drawing.x)
    for tick in _x_ticks(drawing.chart, drawing.x):
        x = drawing.x.place(tick)
        y = HEIGHT - _BOTTOM + 16
        drawing.add(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(told(tick))}</text>')
    if drawing.chart.x_title:
        title = escape(drawing.chart.x_title)
        drawing.add(f'<text x="{right}" y="{HEIGHT - 2}" text-anchor="end">{title}</text>')


def _x_ticks(chart: Chart, scale: _Scale) -> list[float]:
    if chart.x != "time":
        return scale.ticks(5)
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    wanted = (scale.high - scale.low) / 5
    step = next((step for step in steps if step >= wanted), wanted)
    first = math.ceil(scale.low / step)
    return [n * step for n in range(first, math.floor(scale.high / step) + 1)]


def _x_text(chart: Chart, scale: _Scale) -> Callable[[float], str]:
    if chart.x != "time":
        return lambda value: spoken(value, chart.x)
    shape = "%H:%M:%S" if scale.high - scale.low < 600 else "%H:%M"
    if scale.high - scale.low > 2 * 86400:
        shape = "%d %b"
    return lambda value: datetime.fromtimestamp(value, UTC).strftime(shape)


def _line(drawing: _Drawing, line: Line, hue: int) -> None:
    chart, told = drawing.chart, _x_text(drawing.chart, drawing.x)
    if not chart.dots:
        path = _path(drawing, line)
        drawing.add(f'<path d="{path}" style="stroke:var(--s{hue})"/>')
    for x, y in line.points:
        if y is None or not _drawn(chart, (x, y)):
            continue
        what = f"{line.name}: {spoken(y, chart.unit)} · {told(x)}"
        radius = 3.2 if chart.dots else 6
        style = f"fill:var(--s{hue})" if chart.dots else "fill:transparent"
        drawing.add(
            f'<circle cx="{drawing.x.place(x):.1f}" cy="{drawing.y.place(y):.1f}" r="{radius}" '
            f'style="{style}"><title>{escape(what)}</title></circle>'
        )


def _path(drawing: _Drawing, line: Line) -> str:
    parts: list[str] = []
    open_line = False
    for x, y in line.points:
        if y is None or not _drawn(drawing.chart, (x, y)):
            open_line = False
            continue
        letter = "L" if open_line else "M"
        parts.append(f"{letter}{drawing.x.place(x):.1f} {drawing.y.place(y):.1f}")
        open_line = True
    if len(parts) == 1:
        parts.append("h1")
    return "".join(parts)


def _drawn(chart: Chart, point: tuple[float, float | None]) -> bool:
    x, y = point
    if y is None or not math.isfinite(y) or not math.isfinite(x):
        return False
    return not chart.log or (x > 0 and y > 0)


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else 0.0


@dataclass(frozen=True)
class Bar:
    """One bar; ``low`` and ``high`` are the ends of its spread."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    told: str = ""


def bars(title: str, unit: str, rows: Sequence[Bar], note: str = "") -> str:
    """Horizontal bars from zero, each with its value and, where it has one, its spread."""
    largest = max((row.high or row.value for row in rows), default=0) or 1
    drawn = "".join(_bar(row, largest, unit) for row in rows)
    said = f'<p class="quiet">{escape(note)}</p>' if note else ""
    caption = f"<figcaption>{escape(title)}</figcaption>{said}"
    return f'<figure class="chart">{caption}<table class="bars">{drawn}</table></figure>'


def _bar(row: Bar, largest: float, unit: str) -> str:
    share = max(0.0, row.value / largest * 100)
    spread = ""
    if row.low is not None and row.high is not None and row.high > row.low:
        left, width = row.low / largest * 100, (row.high - row.low) / largest * 100
        spread = f'<b style="left:{left:.2f}%;width:{width:.2f}%"></b>'
    told = row.told or spoken(row.value, unit)
    return (
        f'<tr><th scope="row">{escape(row.name)}</th><td class="track">'
        f'<i style="width:{share:.2f}%"></i>{spread}</td>'
        f'<td class="number">{escape(told)}</td></tr>'
    )


def shares(title: str, parts: Sequence[tuple[str, float, str]], note: str = "") -> str:
    """A whole cut into named parts (share from 0 to 1, and what is told of it)."""
    cut = "".join(
        f'<i style="flex:{max(share, 0):.5f};background:var(--s{number % HUES})" '
        f'title="{escape(f"{name}: {share * 100:.1f} %", quote=True)}"></i>'
        for number, (name, share, _) in enumerate(parts)
    )
    keys = "".join(
        f'<li><i style="background:var(--s{number % HUES})"></i>{escape(name)} '
        f"<strong>{share * 100:.1f} %</strong> <span>{escape(told)}</span></li>"
        for number, (name, share, told) in enumerate(parts)
    )
    said = f'<p class="quiet">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{said}'
        f'<div class="shares" role="img" aria-label="{escape(title, quote=True)}">{cut}</div>'
        f'<ul class="legend">{keys}</ul></figure>'
    )
