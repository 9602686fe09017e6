"""An analysis for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from agl.bench.analysis.model import Analysis, Group, Row
from agl.bench.pages.document import moment
from agl.bench.pages.units import signed, spoken
from agl.bench.results import Result

HEAD = ("rate", "max", "min", "p50", "p95", "p99", "max", "time/s", "mean", "share")
CHANGES = ("Δ rate", "Δ p50", "Δ p95", "Δ time/s", "Δ mean")
_SHOWN = 20
"""Rows of a table; the JSON has them all."""


def as_text(result: Result) -> str:
    """All tables, one after the other."""
    analysis = Analysis.model_validate(result.details)
    parts = [_header(analysis, result), _values(analysis)]
    parts += [_group(group) for group in analysis.groups if group.rows]
    parts += [_layers(analysis), _growth(analysis)]
    if analysis.absent:
        parts.append("\n".join(["Not in this window", *(f"  {name}" for name in analysis.absent)]))
    if result.problems:
        parts.append("\n".join(["Remarks", *(f"  {problem}" for problem in result.problems)]))
    return "\n\n".join(part for part in parts if part)


def cells(row: Row) -> list[str]:
    """The columns of :data:`HEAD` and :data:`CHANGES`."""
    change = row.change
    return [
        spoken(row.rate, "1/s"),
        spoken(row.peak, "1/s"),
        spoken(row.lowest, "1/s"),
        *(spoken(value, "s") for value in (row.p50, row.p95, row.p99, row.slowest)),
        spoken(row.time, "s"),
        spoken(row.mean, "s"),
        spoken(row.share, "share"),
        signed(change.rate, "1/s"),
        *(signed(value, "s") for value in (change.p50, change.p95, change.time, change.mean)),
    ]


def heading(group: Group) -> str:
    """Its section and what it is by."""
    by = f" by {', '.join(group.by)}" if group.by else ", all"
    return f"{group.section}: {group.metric}{by}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their heads; the first is to the left, the others to the right."""
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    lines = [
        "  ".join(text.rjust(width) if n else text.ljust(width)
                  for n, (text, width) in enumerate(zip(row, widths, strict=True)))
        for row in (head, *rows)
    ]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _header(analysis: Analysis, result: Result) -> str:
    lines = [
        f"{moment(analysis.start)} to {moment(analysis.end)}, {analysis.seconds:.0f} s",
        f"Prometheus {analysis.prometheus}, clock {analysis.clock.prometheus or 0:+.2f} s",
    ]
    if result.partial:
        lines.append(f"PARTIAL: {result.partial}")
    if analysis.totals:
        totals = ", ".join(f"{name} {value:,.0f}" for name, value in analysis.totals.items())
        lines.append(f"the store holds now: {totals}")
    return "\n".join(lines)


def _values(analysis: Analysis) -> str:
    lines: list[str] = []
    for section in dict.fromkeys(value.section for value in analysis.values):
        found = [value for value in analysis.values if value.section == section]
        rows = [(f"  {value.name}", spoken(value.value, value.unit)) for value in found]
        lines += [section, grid(rows[0], rows[1:]), ""]
    return "\n".join(lines).rstrip()


def _group(group: Group) -> str:
    shown = group.rows[:_SHOWN]
    rows = [["  " + (" ".join(row.labels) or "all"), *cells(row)] for row in shown]
    more = len(group.rows) - len(shown)
    tail = f"\n  and {more} more (--json has them)" if more else ""
    return f"{heading(group)}\n{grid(['', *HEAD, *CHANGES], rows)}{tail}"


def _layers(analysis: Analysis) -> str:
    if not analysis.layers:
        return ""
    rows = [
        (f"  {layer.name}", spoken(layer.share, "share"), spoken(layer.time, "s"))
        for layer in analysis.layers
    ]
    notes = [f"  {note}" for note in analysis.layer_notes]
    return "\n".join(
        ["Where the time of a request goes", grid(("", "share", "time/s"), rows), *notes]
    )


def _growth(analysis: Analysis) -> str:
    if not analysis.growth:
        return ""
    rows = [
        (
            f"  {one.method}",
            f"{one.smallest:,.0f}",
            f"{one.largest:,.0f}",
            spoken(one.ratio, "ratio"),
        )
        for one in analysis.growth
    ]
    head = ("", "rollouts, least", "most", "mean latency, most / least")
    return "\n".join(["Latency beside the size of the store", grid(head, rows)])
