"""How fast an error budget burns, as the alerts of prometheus/alerts/slo.yml look at it."""

from __future__ import annotations

from agl.ops.dashboards.panels import NO_UNIT, Query, SeriesPanel, highest, selected

WINDOWS = ("1h", "6h", "3d")


def burn_panel(title: str, slo: str, promise: str, alerts: tuple[str, ...]) -> SeriesPanel:
    """The panel of one objective; ``promise`` says what of, as in "requests answered in time"."""
    matcher = f'slo="{slo}"'
    return SeriesPanel(
        title,
        f"How fast the budget of {promise} is used up: at 1 it just lasts, at 6 a month's budget "
        "is gone in five days. The short window shows what happens now, the long ones whether it "
        "matters.",
        NO_UNIT,
        8,
        tuple(
            Query(highest(selected(f"slo:error_budget:burn_rate{window}", matcher)), window)
            for window in WINDOWS
        ),
        "No calls",
        alerts=alerts,
    )
