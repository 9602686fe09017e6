"""What the tests ask of dashboards: their panels, their queries taken apart, what series exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser
from rule_checks import ALERTS, ROOT, RULES, grouping_labels, known_series, selectors

from agl.ops.alerting import load_alerts, load_recorded
from agl.ops.dashboards import build
from agl.ops.dashboards.thresholds import Alerts
from agl.utils.metrics_catalogue import CATALOGUE

FOLDER = ROOT / "grafana" / "dashboards"
COUNTER = ("_total", "_bucket", "_count", "_sum")
RANGED = {"rate", "deriv", "irate", "increase", "delta", "changes", "resets"}


@cache
def shipped_alerts() -> Alerts:
    """The alerts of prometheus/alerts."""
    return Alerts(load_alerts(ALERTS))


BOARDS: dict[str, dict[str, Any]] = {
    text["uid"]: text for text in map(json.loads, build.render_all(shipped_alerts()).values())
}


@dataclass(frozen=True)
class Target:
    """A query of a panel of a board."""

    uid: str
    panel: dict[str, Any]
    content: dict[str, Any]

    @property
    def expr(self) -> str:
        return self.content["expr"]

    @property
    def name(self) -> str:
        return f"{self.uid} {self.panel['title']} {self.content['refId']}"


def panels_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels of a board, those in collapsed rows too, without the rows."""
    found: list[dict[str, Any]] = []
    for panel in board["panels"]:
        found += panel.get("panels") or [] if panel["type"] == "row" else [panel]
    return found


def targets() -> list[Target]:
    """Every query of every board."""
    return [
        Target(uid, panel, content)
        for uid, board in BOARDS.items()
        for panel in panels_of(board)
        for content in panel.get("targets", [])
    ]


def filled(expr: str, window: str = "20s") -> str:
    """A query as Grafana sends it with every variable on All."""
    text = expr.replace("$__rate_interval", window)
    for name in ("job", "instance", "host", "gpu", "model"):
        text = text.replace(f'"${name}"', '".+"')
    assert "$" not in text, text
    return text


def nodes(expr: str) -> Iterator[tuple[Any, list[Any]]]:
    """Every node of a query, with those it stands in, the outermost first."""
    yield from _nodes(promql_parser.parse(filled(expr)), [])


def _nodes(node: Any, above: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    yield node, above
    inside = [*above, node]
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if isinstance(child, promql_parser.Expr | promql_parser.VectorSelector):
            yield from _nodes(child, inside)
    for argument in getattr(node, "args", None) or []:
        yield from _nodes(argument, inside)


@cache
def selections(expr: str) -> list[tuple[str, dict[str, set[str]], list[Any]]]:
    """Each series a query reads: its name, its matchers (label -> texts), what it stands in."""
    found: list[tuple[str, dict[str, set[str]], list[Any]]] = []
    for node, above in nodes(expr):
        if isinstance(node, promql_parser.VectorSelector):
            matchers: dict[str, set[str]] = {}
            for matcher in node.matchers.matchers:
                matchers.setdefault(matcher.name, set()).add(matcher.value)
            found.append((node.name, matchers, above))
    return found


def served() -> dict[str, set[str]]:
    """Every series that can be had, with its labels: ours, what is scraped, what is recorded."""
    everywhere = {"job", "instance", "host", "stack"}
    found = dict(known_series())
    for metric in CATALOGUE.values():
        name = metric.name.replace(".", "_")
        labels = {label for label, _ in metric.labels} | everywhere
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
        for part in parts.get(metric.type, ("",)):
            found[name + part] = labels | ({"le"} if part == "_bucket" else set())
    for name, expr in load_recorded(RULES).items():
        read = [found.get(series, set()) for series, _ in selectors(expr)]
        made = set(re.findall(r', "(\w+)", "[^"]*", "", ""\)', expr))
        found[name] = set().union(*read) | grouping_labels(expr) | made | everywhere
    return found
