"""Alert rules as the rest of the product sees them: one reader, whoever asks."""

from agl.ops.alerting.rules import Alert, load_alerts, load_recorded

__all__ = ["Alert", "load_alerts", "load_recorded"]
