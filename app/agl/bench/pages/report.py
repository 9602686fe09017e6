"""Any results as one page: a summary on top, then a part for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Kind:
    """How a kind of result is told: heading, a sentence, and the figures that count most."""

    title: str
    what: str
    headlines: tuple[tuple[str, str], ...] = ()


KINDS = {
    "scenario": Kind(
        "Training loop",
        "An algorithm that enqueues batches and runner processes that trace an agent; every rollout"
        " is read back and verified.",
        (("rollouts_per_second", "rollouts trained"),),
    ),
    "micro": Kind(
        "Calls by many processes",
        "One kind of call, by many processes at once.",
        (("throughput", "calls"),),
    ),
    "collection": Kind(
        "Collections",
        "What lies below the store, without HTTP.",
        (("throughput", "collection operations"),),
    ),
    "load": Kind(
        "Load",
        "A compiled load generator starts rollouts, adds four spans to each and finishes them.",
        (
            ("rollouts_per_second", "rollouts over HTTP"),
            ("latency_p50", "median request"),
            ("latency_p99", "slowest of 100 requests"),
        ),
    ),
    "store": Kind(
        "Server beside a yardstick",
        "The store's server beside the smallest FastAPI application with the same three routes, in"
        " turns.",
        (("throughput, tracker on / yardstick", "times the yardstick's throughput"),),
    ),
    "exporter": Kind(
        "Scrapes",
        "The exporter beside prometheus_client's own collector, on the same folders.",
    ),
    "growth": Kind(
        "A full store beside an empty one",
        "A ratio of 1 says that a call costs the same however much is stored.",
        (("tracker requests add_span ratio", "times the cost of a span in a full store"),),
    ),
    "mongo": Kind("On MongoDB", "The store on MongoDB beside bare inserts into the same server."),
    "soak": Kind("Memory over time", "A server at work, and the slope of its memory."),
    "cost": Kind(
        "Instructions of a request",
        "Bytecode and calls of C functions in the server for one request: counted, so the same on"
        " every machine. CI holds them against a baseline.",
        (("add_span", "instructions for a span"),),
    ),
    "pair": Kind("Two servers in turns", "Ratios are of B to A, within each round."),
    "comparison": Kind("Two runs compared", "A ratio of 1 is no difference."),
    "model": Kind(
        "On paper",
        "Beyond what fits on this machine: simulated from costs that were measured.",
        (("32 processes: rollouts a second", "rollouts on 32 processes, simulated"),),
    ),
    "analysis": Kind("What Prometheus saw", "", (("share of HTTP framing", "of a request: HTTP"),)),
}
_NAMED = ("scenario", "micro", "collection", "load")
"""Kinds of which a page may hold several, which their names tell apart."""

_BARS = 16
"""Bars of a chart at most."""

_HEADLINES_WITHOUT = 1
"""Figures of a kind without headlines of its own that the summary shows."""


def report_of(title: str, results: Sequence[Result], remarks: Sequence[str] = ()) -> str:
    """The page.

    Args:
        title: Its heading.
        results: What was measured, in their order.
        remarks: What could not be measured, and why.
    """
    sections = [Section("Summary", _summary(results, remarks))]
    measured = [result for result in results if result.kind != "analysis"]
    sections += [Section(_title(result), _body(result)) for result in measured]
    for result in results:
        if result.kind == "analysis":
            sections += _analysis(result)
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
    ordered = sorted(results, key=lambda result: result.kind == "analysis")
    parts.append(tiles([headline for result in ordered for headline in _headlines(result)]))
    return "".join(parts)


def _headlines(result: Result) -> list[tuple[str, str]]:
    """The figures that count most, each with what it is."""
    wanted = KINDS[result.kind].headlines if result.kind in KINDS else ()
    how = f" ({result.name})" if result.kind in _NAMED else ""
    found = [
        (f"{words}{how}", spoken(figure.median, figure.unit))
        for name, words in wanted
        if (figure := result.figure(name)) is not None
    ]
    if found:
        return found
    return [
        (f"{_title(result)}: {_words(figure.name)}", spoken(figure.median, figure.unit))
        for figure in result.figures[:_HEADLINES_WITHOUT]
    ]


def _analysis(result: Result) -> list[Section]:
    found = analysis.sections(result)
    first = Section("What Prometheus saw", analysis.lead(result) + found[0].body)
    return [first, *found[1:]]


def _body(result: Result) -> str:
    parts = [paragraph(KINDS[result.kind].what)] if result.kind in KINDS else []
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
    """Charts whose bars can be compared: of one quantity of several servers, else of one unit."""
    beside = _beside(figures)
    by_unit: dict[str, list[Figure]] = {}
    for figure in figures:
        if _quantity(figure) not in beside:
            by_unit.setdefault(figure.unit, []).append(figure)
    drawn = [_chart(_unit(unit), found, _words) for unit, found in by_unit.items()]
    return drawn + [
        _chart(
            _words(quantity[:1].upper() + quantity[1:]), found, lambda name: name.partition(": ")[0]
        )
        for quantity, found in beside.items()
    ]


def _beside(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Figures named ``WHO: WHAT``, by what, where several have it."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(_quantity(figure), []).append(figure)
    return {what: some for what, some in found.items() if what and len(some) > 1}


def _quantity(figure: Figure) -> str:
    return figure.name.partition(": ")[2]


def _chart(title: str, figures: Sequence[Figure], named: Callable[[str], str]) -> str:
    more = len(figures) - _BARS
    note = f"The first {_BARS}; {more} more are in the table." if more > 0 else ""
    rows = [_bar(figure, named(figure.name)) for figure in figures[:_BARS]]
    return bars(title, figures[0].unit, rows, note)


def _bar(figure: Figure, name: str) -> Bar:
    low, high = min(figure.samples), max(figure.samples)
    return Bar(name, figure.median, low, high, spoken(figure.median, figure.unit))


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
    kind = KINDS[result.kind].title if result.kind in KINDS else result.kind.capitalize()
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
