"""``agl stack grafana verify``: is a Grafana as it should be?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from agl.ops.grafana.boards import drawn, questions
from agl.ops.grafana.client import Grafana, Refusal, columns
from agl.ops.panels.boards import Board
from agl.ops.panels.timerange import TimeRange
from agl.ops.shapes import items, mapping

PUSH = "agl stack grafana push, or where it is provisioned from files ./scripts/up"
_RELOAD = "./scripts/up takes prometheus/alerts over and says what Prometheus refuses"


@dataclass(frozen=True)
class Problem:
    """What is wrong, where, and what to do about it."""

    where: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        said = f"{self.where}: {self.message}"
        return f"{said} - {self.remedy}" if self.remedy else said


@dataclass
class Report:
    """What was looked at, and what is wrong."""

    url: str
    version: str
    datasource: str = ""
    boards: int = 0
    panels: int = 0
    queries: int = 0
    empty: int = 0
    alerts: int = 0
    firing: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])

    def as_json(self) -> dict[str, Any]:
        """The report as one object."""
        found = dict(vars(self))
        found["problems"] = [vars(problem) for problem in self.problems]
        return {"ok": not self.problems, **found}

    def lines(self) -> list[str]:
        """The report for people, problems last."""
        shown = [
            f"Grafana      {self.version} at {self.url}",
            f"data source  {self.datasource or 'not usable'}",
            f"dashboards   {self.boards} there and up to date",
            f"queries      {self.queries} in {self.panels} panels and annotations,"
            f" {self.empty} of them empty",
            f"alerts       {self.alerts} rules visible, {self.firing} firing",
        ]
        return [*shown, *(f"PROBLEM      {problem}" for problem in self.problems)]


def verify(
    grafana: Grafana,
    boards: list[Board],
    alerts: Collection[str],
    datasource: str,
    span: TimeRange,
) -> Report:
    """Look at everything; what is wrong is in the report, not raised.

    Args:
        grafana: Whom to ask.
        boards: The dashboards that must be there.
        alerts: Names of the alerts that must be visible.
        datasource: uid of the Prometheus.
        span: The time that the panels' queries are asked for.

    Raises:
        EnvironmentFault: Grafana does not answer, or refuses the token.
    """
    health = grafana.health()
    report = Report(grafana.url, str(health.get("version") or "of an unknown version"))
    if health.get("database") != "ok":
        problem = f"its database is {str(health.get('database'))!r}, not ok"
        report.problems.append(Problem("Grafana", problem, "look at its log"))
    usable = _datasource(grafana, datasource, report)
    for board in boards:
        content = _board(grafana, board, report)
        if content is not None and usable:
            _queries(grafana, content, datasource, span, report)
    if usable:
        _alerts(grafana, datasource, alerts, report)
    return report


def _datasource(grafana: Grafana, uid: str, report: Report) -> bool:
    where = f"data source {uid}"
    found = grafana.datasource(uid)
    if found is None:
        remedy = "provision grafana/provisioning/datasources, or name another with --datasource"
        report.problems.append(Problem(where, "there is none with this uid", remedy))
        return False
    if found.get("type") != "prometheus":
        message = f"it is of the type {str(found.get('type'))!r}, not prometheus"
        report.problems.append(Problem(where, message, "name another with --datasource"))
        return False
    try:
        report.datasource = f"{uid}: {grafana.datasource_health(uid)}"
    except Refusal as exc:
        if exc.status in {401, 403}:
            raise
        remedy = f"can Grafana reach {found.get('url')}? Is Prometheus up?"
        report.problems.append(Problem(where, exc.reason, remedy))
        return False
    return True


def _board(grafana: Grafana, board: Board, report: Report) -> dict[str, Any] | None:
    where = f"dashboard {board.uid}"
    if board.problem:
        report.problems.append(Problem(where, board.problem, "scripts/generate makes it anew"))
        return None
    found = grafana.dashboard(board.uid)
    if found is None:
        report.problems.append(Problem(where, "there is none with this uid", PUSH))
        return None
    content = mapping(found.get("dashboard"))
    if drawn(content) == drawn(board.content):
        report.boards += 1
    else:
        report.problems.append(Problem(where, f"it differs from {board.path.name}", PUSH))
    return content


def _queries(
    grafana: Grafana, content: dict[str, Any], datasource: str, span: TimeRange, report: Report
) -> None:
    for question in questions(content, datasource, span.seconds):
        where = f"{question.board}, {question.what}"
        report.panels += 1
        report.queries += len(question.queries)
        try:
            results = grafana.query(question.queries, span.start, span.end)
        except Refusal as exc:
            if exc.status in {401, 403}:
                raise
            report.problems.append(Problem(where, exc.reason))
            continue
        for query in question.queries:
            ref = str(query["refId"])
            result = mapping(results.get(ref))
            if ref not in results:
                message = "Grafana has left it out of its answer"
                report.problems.append(Problem(f"{where}, query {ref}", message))
            elif result.get("error"):
                problem = Problem(f"{where}, query {ref}", str(result["error"]), query["expr"])
                report.problems.append(problem)
            elif not _has_values(result):
                report.empty += 1


def _has_values(result: dict[str, Any]) -> bool:
    return any(any(columns(frame)) for frame in items(result.get("frames")))


def _alerts(grafana: Grafana, datasource: str, wanted: Collection[str], report: Report) -> None:
    try:
        rules = [r for r in grafana.rules(datasource) if r.get("type") == "alerting"]
    except Refusal as exc:
        if exc.status in {401, 403}:
            raise
        report.problems.append(Problem("alerts", exc.reason))
        return
    names = {str(rule.get("name")) for rule in rules}
    report.alerts = len(rules)
    report.firing = sum(rule.get("state") == "firing" for rule in rules)
    for name in sorted(set(wanted) - names):
        report.problems.append(Problem(f"alert {name}", "it is not visible", _RELOAD))
    for rule in rules:
        if rule.get("health") == "err":
            said = str(rule.get("lastError") or "its evaluation fails")
            report.problems.append(Problem(f"alert {rule.get('name')}", said, _RELOAD))
