"""Thresholds of panels, taken from the alerts, so that a red line is where the alert is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.models import dashboard as dashboard_model

from agl.errors import EnvironmentFault
from agl.ops.alerting.rules import Alert

GREEN = "green"
COLORS = {"critical": "red", "warning": "orange", "info": "blue"}
JUST_ABOVE_ZERO = 1e-6
"""Grafana colours from a threshold on, an alert fires beyond it: at zero that is a difference."""
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)\s*(?:bool\s+)?(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class Limit:
    """Where one alert begins: at ``value`` and beyond it, above or ``below``."""

    value: float
    below: bool
    severity: str


class Alerts:
    """The alerts by name, as boards need them."""

    def __init__(self, alerts: Iterable[Alert]) -> None:
        self._known = {alert.name: alert for alert in alerts}

    def get(self, name: str) -> Alert:
        """The alert with this name.

        Raises:
            EnvironmentFault: there is none.
        """
        try:
            return self._known[name]
        except KeyError:
            raise EnvironmentFault(
                f"a panel names the alert {name!r}, which prometheus/alerts does not have",
                remedy="add the alert, or take its name from the panel",
            ) from None

    def names(self) -> set[str]:
        """The names of all alerts."""
        return set(self._known)

    def of_board(self, uid: str) -> list[Alert]:
        """The alerts that send their reader to this board, in the order of their files."""
        return [
            alert
            for alert in self._known.values()
            if alert.annotations.get("dashboard_url", "").endswith(f"/d/{uid}")
        ]

    def limits(self, names: Sequence[str]) -> list[Limit]:
        """Where the alerts of these names begin, ascending; those without a number have none."""
        found = [limit for name in names if (limit := _limit(self.get(name))) is not None]
        return sorted(found, key=lambda limit: limit.value)

    def steps(self, names: Sequence[str]) -> list[dashboard_model.Threshold]:
        """The colours of a panel, from green to those of the alerts that begin there.

        Raises:
            EnvironmentFault: an alert that is unknown, or some begin below and others above.
        """
        limits = self.limits(names)
        if not limits:
            return [dashboard_model.Threshold(color=GREEN)]
        if len({limit.below for limit in limits}) > 1:
            raise EnvironmentFault(
                f"alerts of one panel begin below and above: {', '.join(names)}",
                remedy="give each direction a panel of its own",
            )
        return _below(limits) if limits[0].below else _above(limits)


def _limit(alert: Alert) -> Limit | None:
    value = alert.threshold
    if value is None:
        return None
    signs = [sign for sign, number in _COMPARISON.findall(alert.expr) if float(number) == value]
    if not signs:
        return None
    below = signs[0].startswith("<") or (signs[0] == "==" and value == 0)
    return Limit(value, below, alert.severity)


def _above(limits: list[Limit]) -> list[dashboard_model.Threshold]:
    steps = {limit.value or JUST_ABOVE_ZERO: COLORS[limit.severity] for limit in limits}
    first = dashboard_model.Threshold(color=GREEN)
    return [first, *(dashboard_model.Threshold(value=v, color=c) for v, c in steps.items())]


def _below(limits: list[Limit]) -> list[dashboard_model.Threshold]:
    """From the gravest upwards: each colour ends where the alert does."""
    edges = [limit.value or JUST_ABOVE_ZERO for limit in limits]
    colors = [COLORS[limit.severity] for limit in limits]
    first = dashboard_model.Threshold(color=colors[0])
    rest = zip(edges, [*colors[1:], GREEN], strict=True)
    return [first, *(dashboard_model.Threshold(value=v, color=c) for v, c in rest)]
