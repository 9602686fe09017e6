"""Any results as one page: a summary on top, then a part for each."""

from __future__ import annotations

from collections.abc import Sequence

from agl.bench.analysis import sections as analysis
from agl.bench.pages.charts import Bar, bars
from agl.bench.pages.document import (
    Section,
    charts,
    folded,
    moment,
    note,
    page,
    paragraph,
    table,
    tiles,
)
from agl.bench.pages.units import spoken
from agl.bench.results import Figure, Machine, Result

WHAT = {
    "scenario": "A training loop: an algorithm and runner processes, every rollout verified.",
    "micro": "One kind of call by many processes.",
    "collection": "The collections below the store, without HTTP.",
    "load": "The HTTP server under a compiled load generator.",
    "store": "The HTTP server beside the smallest FastAPI application with the same routes.",
    "exporter": "Scrapes, beside prometheus_client's own collector.",
    "growth": "The full store beside one that is nearly empty.",
    "mongo": "The store on MongoDB beside bare inserts.",
    "soak": "Memory of a server that works for long.",
    "pair": "Two servers in turns, within one run.",
    "comparison": "Two runs of one measurement. A ratio of 1 is no difference.",
    "model": "Beyond what fits on this machine: simulated from measured costs.",
}


def report_of(title: str, results: Sequence[Result], remarks: Sequence[str] = ()) -> str:
    """The page.

    Args:
        title: Its heading.
        results: What was measured, in their order.
        remarks: What could not be measured, and why.
    """
    sections = [Section("Summary", _summary(results, remarks))]
    for result in results:
        if result.kind == "analysis":
            sections += _analysis(result)
        else:
            sections.append(Section(_title(result), _body(result)))
    if results:
        sections.append(Section("How to read this", _reading(results)))
    return page(title, _lead(results), sections)


def _lead(results: Sequence[Result]) -> str:
    if not results:
        return paragraph("Nothing was measured.")
    machine = results[0].machine
    began, ended = min(r.started for r in results), max(r.ended for r in results)
    return paragraph(
        f"{moment(began)}, {(ended - began) / 60:.1f} minutes on {_machine(machine)}."
        f" agl-stack {results[0].version}.",
        quiet=True,
    )


def _summary(results: Sequence[Result], remarks: Sequence[str]) -> str:
    ill = [result for result in results if not result.ok]
    parts: list[str] = []
    if ill or remarks:
        lines = [f"{_title(result)}: {_trouble(result)}" for result in ill]
        parts.append(note("Not everything went as it should", [*lines, *remarks], "bad"))
    else:
        parts.append(note("Everything ran to its end, and nothing was amiss.", (), "well"))
    shown = [(result, result.figures[0]) for result in results if result.figures]
    parts.append(
        tiles(
            [
                (f"{_title(result)}: {_words(f.name)}", spoken(f.median, f.unit))
                for result, f in shown
            ]
        )
    )
    return "".join(parts)


def _analysis(result: Result) -> list[Section]:
    found = analysis.sections(result)
    first = Section("What Prometheus saw", analysis.lead(result) + found[0].body)
    return [first, *found[1:]]


def _body(result: Result) -> str:
    parts = [paragraph(WHAT.get(result.kind, ""))] if result.kind in WHAT else []
    if result.partial is not None:
        parts.append(note(f"Partial: {result.partial}", (), "bad"))
    if result.problems:
        parts.append(note("Problems", result.problems, "bad"))
    remarks = result.details.get("remarks")
    if isinstance(remarks, list) and remarks:
        parts.append(note("Remarks", [str(remark) for remark in remarks]))  # pyright: ignore
    parts.append(charts(_charts(result.figures)))
    parts.append(folded("All figures", _figures(result.figures)))
    parts.append(folded("Parameters", _parameters(result)))
    return "".join(parts)


def _charts(figures: Sequence[Figure]) -> list[str]:
    """A chart for each unit, so that bars beside each other can be compared."""
    by_unit: dict[str, list[Figure]] = {}
    for figure in figures:
        by_unit.setdefault(figure.unit, []).append(figure)
    return [bars(_unit(unit), unit, [_bar(f) for f in found]) for unit, found in by_unit.items()]


def _bar(figure: Figure) -> Bar:
    low, high = min(figure.samples), max(figure.samples)
    return Bar(_words(figure.name), figure.median, low, high, spoken(figure.median, figure.unit))


def _figures(figures: Sequence[Figure]) -> str:
    rows = [
        (
            _words(figure.name),
            spoken(figure.median, figure.unit),
            spoken(min(figure.samples), figure.unit),
            spoken(max(figure.samples), figure.unit),
            str(len(figure.samples)),
            {"higher": "more is better", "lower": "less is better"}.get(figure.better, ""),
        )
        for figure in figures
    ]
    return table(("figure", "median", "least", "largest", "samples", ""), rows)


def _parameters(result: Result) -> str:
    rows = [(_words(name), f"{value}") for name, value in result.parameters.items()]
    rows.append(("started", moment(result.started)))
    rows.append(("took", spoken(result.ended - result.started, "s")))
    rows.append(("load of the machine before", f"{result.machine.load:.2f}"))
    return table(("parameter", ""), rows)


def _reading(results: Sequence[Result]) -> str:
    machine = results[0].machine
    cells = [
        ("system", machine.system),
        ("processor", machine.processor),
        ("cores", str(machine.cores)),
        ("memory", spoken(machine.memory, "bytes")),
        ("Python", machine.python),
        ("load before", f"{machine.load:.2f}"),
    ]
    return paragraph(
        "Bars show the median of all rounds; the dark line on a bar is the spread from the"
        " least to the largest round. Ratios are taken within a round, so what else runs on the"
        " machine touches both sides alike; absolute times and rates drift with the machine."
    ) + table(("machine", ""), cells)


def _title(result: Result) -> str:
    kind = {"comparison": "Compared", "pair": "Pair"}.get(result.kind, result.kind.capitalize())
    return kind if result.name in (result.kind, "") else f"{kind}: {_words(result.name)}"


def _trouble(result: Result) -> str:
    reasons = [*([f"partial, {result.partial}"] if result.partial else []), *result.problems]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0] + more


def _unit(unit: str) -> str:
    names = {"s": "Time", "1/s": "Rate", "bytes": "Memory", "ratio": "Ratios", "share": "Shares"}
    return names.get(unit, unit.capitalize())


def _machine(machine: Machine) -> str:
    memory = spoken(machine.memory, "bytes")
    return f"{machine.cores} cores, {memory}, Python {machine.python}, load {machine.load:.1f}"


def _words(name: str) -> str:
    return name.replace("_", " ")
