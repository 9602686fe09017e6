"""Reads ``prometheus/alerts`` and ``prometheus/rules``.

Dashboards take their thresholds from here, the table in ``docs/alerts.md`` is made from it, and the
tests hold every alert against its runbook and its promtool tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from agl.errors import EnvironmentFault

SEVERITIES = ("critical", "warning", "info", "none")
"""``critical`` pages at once, ``warning`` waits for the day, ``info`` is only shown, ``none`` is a
signal for machines."""

ANNOTATIONS = (
    "summary",
    "description",
    "runbook_url",
    "dashboard_url",
    "threshold",
    "threshold_source",
)
"""What every alert says of itself; ``threshold`` is one number in the unit of the expression's left
side, or ``none`` where the condition has no number."""


@dataclass(frozen=True)
class Alert:
    """One alert rule."""

    name: str
    component: str
    """The file it stands in: ``store``, ``node``, ..."""

    expr: str
    severity: str
    hold: str
    """How long the condition must hold before it fires, as Prometheus writes durations."""

    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def threshold(self) -> float | None:
        """The number that the expression compares with, or ``None`` if there is none."""
        value = self.annotations.get("threshold", "none")
        return None if value == "none" else float(value)


def load_alerts(folder: Path) -> list[Alert]:
    """All alerts of ``folder``'s files, in the order of files and rules.

    Raises:
        EnvironmentFault: a file that is no rule file.
    """
    return [
        _alert(path, rule)
        for path in sorted(folder.glob("*.yml"))
        for rule in _rules(path)
        if "alert" in rule
    ]


def load_recorded(folder: Path) -> dict[str, str]:
    """Recorded series by name, with their expressions.

    Raises:
        EnvironmentFault: a file that is no rule file.
    """
    return {
        rule["record"]: rule["expr"]
        for path in sorted(folder.glob("*.yml"))
        for rule in _rules(path)
        if "record" in rule
    }


def _rules(path: Path) -> list[dict[str, Any]]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [rule for group in content["groups"] for rule in group["rules"]]
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise EnvironmentFault(
            f"{path} is no rule file: {error}", remedy=f"promtool check rules {path}"
        ) from error


def _alert(path: Path, rule: dict[str, Any]) -> Alert:
    labels = cast("dict[str, str]", rule.get("labels", {}))
    return Alert(
        name=rule["alert"],
        component=path.stem,
        expr=rule["expr"],
        severity=labels.get("severity", ""),
        hold=str(rule.get("for", "0s")),
        labels=labels,
        annotations=cast("dict[str, str]", rule.get("annotations", {})),
    )
