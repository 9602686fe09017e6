"""How the latency of store methods moves as the store fills, within one window."""

from __future__ import annotations

from statistics import fmean

from agl.bench.analysis.groups import STORE
from agl.bench.analysis.model import Growth, Slice
from agl.bench.analysis.source import SLICES, Window

SIZE = "sum(max by (status, mode) (agl_state_rollouts))"
"""The store's rollouts; several exporters tell the same, so they are not summed."""

_METHODS = 8


async def growth(window: Window) -> list[Growth]:
    """The methods that take the most time, each with size and mean latency over the window.

    Empty when the store's size or its methods are not measured.
    """
    if not {"agl_state_rollouts", f"{STORE}_count"} <= window.present:
        return []
    step = window.span.seconds / SLICES
    sizes = await window.course(SIZE, step)
    if not sizes:
        return []
    width = max(int(step), 1)
    total, count = (
        f"sum by (method) (increase({STORE}_{part}[{width}s]))" for part in ("sum", "count")
    )
    times = {s.labels["method"]: s.values for s in await window.course(f"{total} > 0", step)}
    means = await window.course(f"{total} / ({count} > 0)", step)
    busiest = sorted(
        (series for series in means if not series.labels["method"].startswith("_")),
        key=lambda series: _sum(times.get(series.labels["method"], [])),
        reverse=True,
    )
    found = [
        _growth(series.labels["method"], sizes[0].values, series.values)
        for series in busiest[:_METHODS]
    ]
    return [one for one in found if len(one.slices) > 1]


def _growth(
    method: str, sizes: list[float | str | None], latencies: list[float | str | None]
) -> Growth:
    pairs = [
        Slice(size=float(size), latency=float(latency))
        for size, latency in zip(sizes, latencies, strict=True)
        if size is not None and latency is not None
    ]
    ordered = sorted(pairs, key=lambda pair: pair.size)
    third = max(len(ordered) // 3, 1)
    ratio = None
    if len(ordered) >= 3 and ordered[-1].size > ordered[0].size:
        small = fmean(pair.latency for pair in ordered[:third])
        ratio = fmean(pair.latency for pair in ordered[-third:]) / small if small else None
    return Growth(
        method=method,
        slices=tuple(pairs),
        ratio=ratio,
        smallest=ordered[0].size if ordered else 0.0,
        largest=ordered[-1].size if ordered else 0.0,
    )


def _sum(values: list[float | str | None]) -> float:
    return sum(float(value) for value in values if value is not None)
