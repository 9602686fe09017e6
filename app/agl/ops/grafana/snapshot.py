"""``agl stack grafana snapshot``: a dashboard with its data in it, which outlives Prometheus'."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agl.errors import EnvironmentFault
from agl.ops.grafana.boards import panels_of, questions
from agl.ops.grafana.client import Grafana, columns
from agl.ops.panels.timerange import TimeRange
from agl.ops.shapes import items, mapping


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was made.

    Attributes:
        url: Where people look at it; whoever knows it needs no password.
        delete_url: Whoever opens it deletes the snapshot.
        failed: What its panels lack: queries that failed, with their errors.
    """

    uid: str
    url: str
    delete_url: str
    failed: list[str]


def snapshot(
    grafana: Grafana, uid: str, datasource: str, span: TimeRange, expires: int
) -> Snapshot:
    """Keep the dashboard that Grafana has under ``uid`` with the data of ``span``.

    Args:
        grafana: Whose dashboard.
        uid: Which.
        datasource: uid of the Prometheus that its variable stands for.
        span: The time to keep.
        expires: Seconds after which Grafana deletes it; 0 for never.

    Raises:
        EnvironmentFault: There is no such dashboard, or Grafana refuses.
    """
    found = grafana.dashboard(uid)
    if found is None:
        raise EnvironmentFault(
            f"Grafana has no dashboard {uid}", remedy="agl stack grafana verify lists what is there"
        )
    content = copy.deepcopy(mapping(found.get("dashboard")))
    failed = _fill(grafana, content, datasource, span)
    title = str(content.get("title"))
    name = f"{title}, {_written(span.start)} to {_written(span.end)}"
    said = grafana.snapshot(content, name, expires)
    return Snapshot(uid, str(said.get("url")), str(said.get("deleteUrl")), failed)


def _fill(grafana: Grafana, content: dict[str, Any], datasource: str, span: TimeRange) -> list[str]:
    """Put the data into the panels, in the place of what would be asked; queries that failed."""
    failed: list[str] = []
    for panel in panels_of(content):
        panel["snapshotData"] = []
    for question in questions(content, datasource, span.seconds):
        if not question.panel:
            continue
        results = grafana.query(question.queries, span.start, span.end)
        for query in question.queries:
            result = mapping(results.get(str(query["refId"])))
            if result.get("error"):
                failed.append(f"{question.what}, query {query['refId']}: {result['error']}")
            question.panel["snapshotData"] += [
                _frame(frame, str(query["refId"])) for frame in items(result.get("frames"))
            ]
    for panel in panels_of(content):
        panel["targets"] = []
        panel["datasource"] = None
    content["annotations"] = {"list": []}
    for variable in items(mapping(content.get("templating")).get("list")):
        variable["query"] = ""
        variable["refresh"] = 0
    content["time"] = {"from": _written(span.start), "to": _written(span.end)}
    content["refresh"] = ""
    content["id"] = None
    return failed


def _frame(frame: dict[str, Any], ref: str) -> dict[str, Any]:
    """A data frame of the query API in the shape that snapshots hold."""
    schema = mapping(frame.get("schema"))
    values = columns(frame)
    fields = items(schema.get("fields"))
    return {
        "refId": ref,
        "name": schema.get("name"),
        "meta": schema.get("meta") or {},
        "fields": [
            {
                "name": one.get("name"),
                "type": one.get("type"),
                "labels": one.get("labels"),
                "config": one.get("config") or {},
                "values": values[index] if index < len(values) else [],
            }
            for index, one in enumerate(fields)
        ],
    }


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
