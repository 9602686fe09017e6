"""One analysis from its start to its document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from agl.bench.analysis import figures
from agl.bench.analysis.groups import HTTP, METRICS, ROLLOUTS, groups
from agl.bench.analysis.growth import growth
from agl.bench.analysis.layers import layers
from agl.bench.analysis.model import Analysis, Clock, Group
from agl.bench.analysis.source import Window, ahead
from agl.bench.results import Better, Figure, Result
from agl.bench.target import redacted
from agl.errors import EnvironmentFault
from agl.ops.panels.prometheus import PrometheusError, PrometheusReader
from agl.ops.panels.timerange import TimeRange
from agl.store.rest.transport import split_credentials

STATISTICS_PATH = "/v1/agl/statistics"
SKEW_SECONDS = 1.0
"""Clocks that differ by more move samples visibly against what happened."""

_OURS = "agl_"
_STORE_SECONDS = 10.0


@dataclass(frozen=True)
class Question:
    """What to analyze; ``scrape`` is the interval of Prometheus in seconds."""

    prometheus: str
    span: TimeRange
    store: str | None = None
    scrape: float = 5.0


async def analyze(question: Question) -> Result:
    """Ask everything about a window. What fails is named in the document, which is then partial.

    Raises:
        EnvironmentFault: Prometheus does not answer, or has nothing of a store in the window.
    """
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        window = Window(PrometheusReader(question.prometheus, session), question.span)
        clock = await _begin(window, question)
        analysis, remarks = await _collect(window, question, clock, session)
    return _document(analysis, window, question, remarks)


async def _begin(window: Window, question: Question) -> Clock:
    wanted = {**{f"{name}_count": "" for name in METRICS}, **figures.metrics()}
    where = redacted(question.prometheus)
    try:
        difference, within = await ahead(window.reader)
        await window.look({*wanted, "node_time_seconds", "up", "agl_process_start_time_seconds"})
    except PrometheusError as error:
        raise EnvironmentFault(
            f"Prometheus at {where}: {error}", remedy="check --prometheus"
        ) from error
    if not any(name.startswith(_OURS) for name in window.present):
        raise EnvironmentFault(
            f"Prometheus at {where} has no samples of a store in this window"
            f" ({window.span.start:.0f} to {window.span.end:.0f}, epoch seconds);"
            f" its clock is {difference:+.1f} s from this machine's",
            remedy="choose another --start and --end, and see whether it scrapes the store",
        )
    return Clock(prometheus=difference, within=within, hosts=await _hosts(window))


async def _hosts(window: Window) -> dict[str, float]:
    """How far the clocks of scraped hosts are ahead of Prometheus', where they tell the time."""
    if "node_time_seconds" not in window.present:
        return {}
    query = "node_time_seconds - timestamp(node_time_seconds)"
    return {host: value for (host,), value in (await window.values(query, ("instance",))).items()}


async def _collect(
    window: Window, question: Question, clock: Clock, session: aiohttp.ClientSession
) -> tuple[Analysis, list[str]]:
    remarks = [*_skewed(clock, question.span), *await _troubles(window)]
    found, notes = await layers(window)
    totals: dict[str, float] = {}
    if question.store is not None:
        totals = await _totals(question.store, session, window)
    analysis = Analysis(
        start=question.span.start,
        end=question.span.end,
        prometheus=redacted(question.prometheus),
        groups=tuple(await groups(window)),
        values=tuple(await figures.values(window)),
        layers=tuple(found),
        layer_notes=tuple(notes),
        growth=tuple(await growth(window)),
        courses=tuple(await figures.courses(window, question.scrape)),
        clock=clock,
        absent=tuple(_absent(window.present)),
        totals=totals,
    )
    return analysis, remarks


def _skewed(clock: Clock, span: TimeRange) -> list[str]:
    """What to distrust since clocks differ."""
    found: list[str] = []
    ahead_by = clock.prometheus or 0.0
    if abs(ahead_by) - clock.within > SKEW_SECONDS:
        found.append(
            f"Prometheus' clock is {abs(ahead_by):.1f} s {_side(ahead_by)} this machine's, so the"
            " window lies that much beside what happened here"
        )
    found += [
        f"the clock of {host} is {abs(value):.1f} s {_side(value)} Prometheus'"
        for host, value in clock.hosts.items()
        if abs(value) > SKEW_SECONDS
    ]
    return found


async def _troubles(window: Window) -> list[str]:
    """Targets that were away and processes that began within the window."""
    found: list[str] = []
    for (job, instance), share in (
        await window.values(f"avg_over_time(up[{window.seconds}s]) < 1", ("job", "instance"))
    ).items():
        found.append(f"{job} ({instance}) was away for {1 - share:.0%} of its scrapes")
    query = f"changes(agl_process_start_time_seconds[{window.seconds}s]) > 0"
    for (slot,), times in (await window.values(query, ("server_process",))).items():
        found.append(f"server process {slot} was started anew {times:.0f} times in the window")
    return found


async def _totals(store: str, session: aiohttp.ClientSession, window: Window) -> dict[str, float]:
    root, authorization = split_credentials(store.rstrip("/"))
    headers = {"Authorization": authorization} if authorization else {}
    try:
        async with session.get(
            root + STATISTICS_PATH,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_STORE_SECONDS),
        ) as response:
            response.raise_for_status()
            told = await response.json()
            return {
                name: float(value)
                for name, value in told.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError) as error:
        window.problems.append(
            f"the store at {redacted(store)} did not tell its totals: "
            f"{error or type(error).__name__}"
        )
        return {}


def _absent(present: Iterable[str]) -> list[str]:
    known = set(present)
    wanted = {f"{name}_count": what for name, what in METRICS.items()}
    wanted = {**figures.metrics(), **wanted}
    return [f"{name} ({what})" for name, what in sorted(wanted.items()) if name not in known]


def _document(analysis: Analysis, window: Window, question: Question, remarks: list[str]) -> Result:
    failed = len(window.problems)
    partial = f"{failed} questions failed" if failed else None
    parameters: Mapping[str, object] = {
        "prometheus": analysis.prometheus,
        "seconds": round(analysis.seconds, 3),
    }
    return Result(
        kind="analysis",
        name="window",
        parameters=dict(parameters),
        figures=tuple(_figures(analysis)),
        started=question.span.start,
        ended=question.span.end,
        partial=partial,
        problems=(*window.problems, *remarks),
        details=analysis.model_dump(mode="json"),
    )


def _figures(analysis: Analysis) -> Iterable[Figure]:
    wanted: dict[str, Better] = {
        "rollouts finished a second": "higher",
        "spans a second": "higher",
        "requests a second": "higher",
        "CPU of a request": "lower",
    }
    for value in analysis.values:
        if value.name in wanted and value.value is not None:
            yield Figure(
                name=value.name,
                unit=value.unit,
                better=wanted[value.name],
                samples=(value.value,),
            )
    yield from _latencies(analysis.groups)
    for layer in analysis.layers:
        yield Figure(
            name=f"share of {layer.name}", unit="share", better="neither", samples=(layer.share,)
        )


def _latencies(found: Iterable[Group]) -> Iterable[Figure]:
    names = {HTTP: "requests", ROLLOUTS: "rollouts"}
    for group in found:
        if group.by or group.metric not in names or not group.rows:
            continue
        row = group.rows[0]
        for quantile, value in (("p50", row.p50), ("p95", row.p95), ("p99", row.p99)):
            if value is not None:
                yield Figure(
                    name=f"{names[group.metric]} {quantile}",
                    unit="s",
                    better="lower",
                    samples=(value,),
                )


def _side(seconds: float) -> str:
    return "ahead of" if seconds > 0 else "behind"
