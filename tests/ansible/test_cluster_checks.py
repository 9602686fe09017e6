"""What ``verify`` asks of Prometheus, against answers of its API."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def scraped(when: float, health: str, error: str) -> dict[str, Any]:
    """A target of ``/api/v1/targets`` that was scraped ``when``, in seconds from now."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + when))
    return {
        "labels": {"instance": "gpu1:9100"},
        "health": health,
        "lastError": error,
        "lastScrape": f"{at}.123456789Z",
        "scrapeUrl": "http://gpu1:9100/metrics",
    }


@pytest.mark.parametrize(
    ("when", "health", "wanted", "found"),
    [
        (60, "up", "gpu1:9100", "1 up"),
        (-60, "up", "gpu1:9100", "gpu1:9100: not scraped since this began"),
        (60, "down", "gpu1:9100", "gpu1:9100: connection refused"),
        (60, "up", "gpu2:9100", "gpu2:9100: not known"),
    ],
)
def test_a_target_is_up_by_what_was_seen_since(
    ansible_module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    when: float,
    health: str,
    wanted: str,
    found: str,
) -> None:
    target = scraped(when, health, "" if health == "up" else "connection refused")
    checks = ansible_module("cluster_checks")
    monkeypatch.setattr(checks, "ask", lambda _: {"data": {"activeTargets": [target]}})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (said,) = checks.targets([wanted], -1)
    assert said["found"] == found
    assert (said["status"] == "ok") == (found == "1 up")
