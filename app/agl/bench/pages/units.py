"""Numbers as people read them."""

from __future__ import annotations

import math

_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "µs", 1e6), (0.0, "ns", 1e9))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
ABSENT = "-"
_LONG = 1e15


def spoken(value: float | None, unit: str) -> str:
    """``value`` with its unit; a dash where there is none.

    Args:
        value: In ``unit``.
        unit: One of :class:`agl.bench.results.Figure`, or ``share`` (0 to 1, shown as per cent).
    """
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit in ("s", "s/s"):
        return _time(value) + ("/s" if unit == "s/s" else "")
    if unit == "bytes":
        return _size(value)
    if unit == "bytes/s":
        return f"{_size(value)}/s"
    if unit == "share":
        return f"{value * 100:.1f} %"
    if unit == "1/s":
        return f"{_plain(value)}/s"
    return _plain(value)


def signed(value: float | None, unit: str) -> str:
    """The same with its sign, for differences."""
    text = spoken(value, unit)
    return f"+{text}" if value is not None and value > 0 else text


def _time(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:.0f} s"
    if size == 0:
        return "0 s"
    _, name, factor = next(row for row in _SECONDS if size >= row[0])
    return f"{_three(value * factor)} {name}"


def _size(value: float) -> str:
    for size, name in _BYTES:
        if abs(value) >= size:
            return f"{_three(value / size)} {name}"
    return f"{value:.0f} B"


def _plain(value: float) -> str:
    if abs(value) >= _LONG:
        return f"{value:.2e}"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return _three(value)


def _three(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"
