"""Alertmanager's file through its own tool: valid, and each alert goes where it should."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from agl.ops.alertmanager import FILE_SECRETS, Drill, configuration, rendered

TOOL = (
    Path(
        os.environ.get("AGL_LAB_TOOLS")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "agl-stack/lab/prometheus"
    )
    / "amtool"
)
pytestmark = pytest.mark.skipif(
    not TOOL.exists(), reason=f"{TOOL} is not there: tests/lab/prometheus/ensure.sh makes it"
)
MAIL = {
    "AGL_ALERT_EMAIL_TO": "a@example.org,b@example.org",
    "AGL_ALERT_EMAIL_FROM": "agl@example.org",
    "AGL_ALERT_SMTP": "mail.example.org:587",
    "AGL_ALERT_SMTP_USER": "agl",
}
ALWAYS = {"AGL_ALERT_PAGERDUTY_URL": "https://events.pagerduty.com/v2/enqueue"}
DRILL = Drill("http://drill-receiver:9095/page", "1e5")


def amtool(*arguments: str | Path) -> str:
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_choice_of_receivers_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    secrets = [name for name in FILE_SECRETS if name != "alert-smtp-password"]
    for size in range(len(secrets) + 1):
        for present in itertools.combinations(secrets, size):
            for mail, drill in ((False, None), (True, DRILL)):
                names = {*present, *(["alert-smtp-password"] if mail else [])}
                environ = {**ALWAYS, **(MAIL if mail else {})}
                path.write_bytes(rendered(configuration(environ, names, drill)))
                amtool("check-config", path)


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["alertname=Watchdog", "severity=none"], "deadman: webhook"),
        (["severity=critical"], "page: pagerduty, webhook, slack, email"),
        (["severity=warning"], "day: webhook, slack, email"),
        (["severity=info"], "nobody"),
        (["severity=critical", "drill=1e4"], "nobody"),
    ],
)
def test_each_alert_goes_where_it_should(tmp_path: Path, labels: list[str], receivers: str) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_bytes(rendered(configuration({**ALWAYS, **MAIL}, set(FILE_SECRETS))))
    assert amtool("config", "routes", "test", f"--config.file={path}", *labels).strip() == receivers


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["severity=critical", "drill=1e5"], "drill 1e5"),
        (["severity=critical", "drill=1e4"], "nobody"),
        (["severity=critical"], "drill 1e5,page: pagerduty"),
    ],
)
def test_alerts_of_a_drill_go_to_the_drill_alone(
    tmp_path: Path, labels: list[str], receivers: str
) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_bytes(rendered(configuration(ALWAYS, {"alert-pagerduty-key"}, DRILL)))
    assert amtool("config", "routes", "test", f"--config.file={path}", *labels).strip() == receivers
