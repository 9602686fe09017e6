"""What a dashboard asks, as Grafana's query API takes it: every variable on All."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agl.ops.panels.interpolation import ALL, Scope, Value
from agl.ops.shapes import items, mapping, texts

POINTS = 300
# Data sources of Grafana itself, and the one that stands for several.
_OWN = {"grafana", "datasource"}
_MIXED = "-- Mixed --"


@dataclass(frozen=True)
class Question:
    """The queries of one panel, or of one annotation.

    Attributes:
        board: uid of the dashboard.
        what: The panel in words, such as ``panel "Requests" (id 4)``.
        panel: The panel's own JSON; empty for an annotation.
        queries: What is asked, ready to be sent; never empty.
    """

    board: str
    what: str
    panel: dict[str, Any]
    queries: list[dict[str, Any]]


def panels_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel of a dashboard, those in collapsed rows too, without the rows."""
    found: list[dict[str, Any]] = []
    for panel in items(content.get("panels")):
        found += items(panel.get("panels")) if panel.get("type") == "row" else [panel]
    return found


def questions(content: dict[str, Any], datasource: str, seconds: float) -> list[Question]:
    """What a dashboard asks, panel by panel, its annotations last.

    Args:
        content: The dashboard's JSON.
        datasource: uid that a variable for data sources stands for.
        seconds: Length of the time range, from which Grafana derives steps.
    """
    uid, scope = str(content.get("uid")), scope_of(content)
    found: list[Question] = []
    for panel in panels_of(content):
        asked = [
            query
            for index, target in enumerate(items(panel.get("targets")))
            for query in _query(target, panel, index, scope, datasource, seconds)
        ]
        if asked:
            what = f'panel "{scope.title(str(panel.get("title")))}" (id {panel.get("id")})'
            found.append(Question(uid, what, panel, asked))
    for entry in items(mapping(content.get("annotations")).get("list")):
        asked = list(_query(entry, entry, 0, scope, datasource, seconds))
        if asked:
            found.append(Question(uid, f'annotation "{entry.get("name")}"', {}, asked))
    return found


def _query(
    target: dict[str, Any],
    panel: dict[str, Any],
    index: int,
    scope: Scope,
    datasource: str,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    expr = target.get("expr")
    source = mapping(target.get("datasource")) or mapping(panel.get("datasource"))
    uid = str(source.get("uid") or "")
    if not isinstance(expr, str) or target.get("hide") is True or source.get("type") in _OWN:
        return
    instant = target.get("instant") is True
    yield {
        "refId": target.get("refId") or chr(ord("A") + index % 26),
        "datasource": {
            "type": source.get("type") or "prometheus",
            "uid": datasource if not uid or uid.startswith("$") or uid == _MIXED else uid,
        },
        "expr": scope.query(expr),
        "instant": instant,
        "range": target.get("range") is True or not instant,
        "format": target.get("format") or "time_series",
        "legendFormat": target.get("legendFormat") or "",
        "intervalMs": max(int(seconds / POINTS * 1000), 1000),
        "maxDataPoints": POINTS,
    }


def scope_of(content: dict[str, Any]) -> Scope:
    """The dashboard's variables: on All where there is one, else as they were saved.

    Grafana's own (``$__rate_interval`` and the like) are left for Grafana to fill in.
    """
    found: dict[str, Value] = {}
    for variable in items(mapping(content.get("templating")).get("list")):
        name, saved = str(variable.get("name")), mapping(variable.get("current")).get("value")
        many = bool(variable.get("multi") or variable.get("includeAll"))
        chosen = texts(saved) if isinstance(saved, list) else [] if saved is None else [str(saved)]
        if variable.get("includeAll"):
            found[name] = Value((), ("All",), many, str(variable.get("allValue") or ".*"))
        elif variable.get("type") != "datasource" and ALL not in chosen:
            found[name] = Value(tuple(chosen), (), many)
    return Scope(found)


def drawn(content: dict[str, Any]) -> list[Any]:
    """What tells two versions of a dashboard apart, whatever Grafana adds when it saves one."""
    shown = [
        [
            panel.get("title"),
            panel.get("type"),
            [target.get("expr") for target in items(panel.get("targets"))],
        ]
        for panel in panels_of(content)
    ]
    variables = [
        # Grafana may make an object of a query that was a text.
        [one.get("name"), mapping(one.get("query")).get("query") or one.get("query")]
        for one in items(mapping(content.get("templating")).get("list"))
    ]
    return [content.get("title"), shown, variables]
