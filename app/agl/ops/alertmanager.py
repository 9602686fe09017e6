"""Alertmanager's file, from the settings of ``compose/.env`` and from files of secrets.

Alertmanager expands no variables itself, so ``init --alerting`` writes the whole file. What is
secret stays out of it: the file names files in the secrets volume that Alertmanager alone may read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agl.errors import EnvironmentFault, UsageError

OWNER = (65534, 65534)
SECRETS_FOLDER = Path("/run/agl/secrets")
NOBODY, PAGE, DAY, DEADMAN, DRILL = "nobody", "page", "day", "deadman", "drill"
GROUP_BY = ["deployment", "component"]
SAME_HOST = ["deployment", "host"]
# What is known of a running training only through the store.
SYMPTOMS_OF_STORE = "rollouts|slo|store|workers"
# Alerts of a drill's own Prometheus carry its name in label ``drill``. They page nobody, even when
# the drill is over and Alertmanager still has them.
OF_A_DRILL = 'drill=~".+"'

_URL, _ONE_WORD = re.compile(r"https?://[^\s\"'<>]+"), re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"[^\s@,<>\"]+@[^\s@,<>\"]+")
_SERVER = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}|\[[0-9A-Fa-f:]+\]:[0-9]{1,5}")


@dataclass(frozen=True)
class FileSecret:
    """A secret that an operator may supply, and the variable that may hold it where it is none."""

    name: str
    pattern: re.Pattern[str]
    rule: str
    variable: str = ""


FILE_SECRETS = {
    secret.name: secret
    for secret in (
        FileSecret("alert-webhook-url", _URL, "an http address", "AGL_ALERT_WEBHOOK_URL"),
        FileSecret("alert-slack-url", _URL, "an http address"),
        FileSecret("alert-pagerduty-key", _ONE_WORD, "one word"),
        FileSecret("alert-smtp-password", re.compile(r"[^\x00-\x1f\x7f]+"), "one line"),
        FileSecret("deadman-url", _URL, "an http address", "AGL_DEADMAN_URL"),
    )
}


@dataclass(frozen=True)
class Drill:
    """Where a drill wants pages; alerts of its own Prometheus go there alone.

    Its name makes its alerts and its receiver new to Alertmanager, which would otherwise think that
    it has sent them before.
    """

    url: str
    name: str

    @property
    def receiver(self) -> str:
        return f"{DRILL} {self.name}"


def secret_text(secret: FileSecret, supplied: str | None, environ: Mapping[str, str]) -> str:
    """The text in force: the operator's file, else the variable, else nothing.

    Raises:
        UsageError: both say something else, or the text is not what ``secret.rule`` asks for.
    """
    said = environ.get(secret.variable, "").strip() if secret.variable else ""
    if supplied and said and supplied != said:
        raise UsageError(
            f"{secret.variable} and compose/secrets/{secret.name} are both set: empty one of them"
        )
    text = supplied or said
    if text and not secret.pattern.fullmatch(text):
        where = f"compose/secrets/{secret.name}" if supplied else secret.variable
        raise UsageError(f"{where} is not {secret.rule}")
    return text


def configuration(
    environ: Mapping[str, str],
    present: set[str],
    drill: Drill | None = None,
    folder: Path = SECRETS_FOLDER,
) -> dict[str, Any]:
    """Alertmanager's whole configuration.

    Args:
        environ: The variables ``AGL_ALERT_...``.
        present: Names of ``FILE_SECRETS`` that are there.
        drill: A drill that wants the pages as well.
        folder: Where Alertmanager sees the secrets.

    Raises:
        UsageError: A setting that is half set or not what it should be, by name.
    """
    pagers = _pagerduty(environ, present, folder)
    tellers = {
        **_webhook(present, folder),
        **_slack(environ, present, folder),
        **_email(environ, present, folder),
    }
    page, page_receiver = _receiver(PAGE, {**pagers, **tellers})
    day, day_receiver = _receiver(DAY, tellers)
    dead, dead_receiver = _receiver(
        DEADMAN,
        {
            "webhook_configs": [
                {"url_file": str(folder / "deadman-url"), "send_resolved": False, "max_alerts": 1}
            ]
        }
        if "deadman-url" in present
        else {},
    )
    return {
        "route": {
            "receiver": NOBODY,
            "group_by": GROUP_BY,
            "routes": [
                *_drill_routes(drill),
                {
                    "receiver": dead,
                    "matchers": ['alertname="Watchdog"'],
                    "group_wait": "0s",
                    "group_interval": "30s",
                    "repeat_interval": "50s",
                },
                {
                    "receiver": page,
                    "matchers": ['severity="critical"'],
                    "group_wait": "5s",
                    "group_interval": "1m",
                    "repeat_interval": "4h",
                },
                {
                    "receiver": day,
                    "matchers": ['severity="warning"'],
                    "group_wait": "30s",
                    "group_interval": "5m",
                    "repeat_interval": "12h",
                },
            ],
        },
        "inhibit_rules": inhibit_rules(),
        "receivers": [
            {"name": NOBODY},
            *page_receiver,
            *day_receiver,
            *dead_receiver,
            *([_drill_receiver(drill)] if drill else []),
        ],
    }


def inhibit_rules() -> list[dict[str, Any]]:
    """What is silent while its cause is known: a host that is gone, a store that is gone.

    Instances differ by port, so causes and symptoms are matched by host and deployment.
    """
    return [
        {
            "source_matchers": ['alertname="NodeDown"'],
            "target_matchers": ['alertname!="NodeDown"'],
            "equal": SAME_HOST,
        },
        {
            "source_matchers": ['alertname="StoreDown"'],
            "target_matchers": ['alertname!="StoreDown"', f'component=~"{SYMPTOMS_OF_STORE}"'],
            "equal": SAME_HOST,
        },
    ]


def rendered(config: dict[str, Any]) -> bytes:
    """The file's text. JSON is YAML, and needs no library where this runs."""
    head = "# Written by the init service from compose/.env and compose/secrets.\n"
    return (head + json.dumps(config, indent=2) + "\n").encode()


def ways(receivers: list[str]) -> str:
    """How critical alerts are sent, by the names of Alertmanager's receivers; empty: not at all."""
    return next((name.partition(": ")[2] for name in receivers if name.startswith(PAGE)), "")


def warnings(receivers: list[str]) -> list[str]:
    """What an operator has to know of Alertmanager's receivers, in plain words."""
    said: list[str] = []
    if not ways(receivers):
        said.append(
            "NOBODY WILL BE PAGED: set AGL_ALERT_... in compose/site.env (docs/alerting.md)"
        )
    if not any(name.startswith(DEADMAN) for name in receivers):
        said.append("nobody notices when alerting itself fails: set AGL_DEADMAN_URL")
    return said


def _receiver(name: str, configs: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A receiver, with what it sends by in its name, which `status` reads; none if empty."""
    if not configs:
        return NOBODY, []
    means = ", ".join(key.removesuffix("_configs") for key in configs)
    full = f"{name}: {means}"
    return full, [{"name": full, **configs}]


def _webhook(present: set[str], folder: Path) -> dict[str, Any]:
    if "alert-webhook-url" not in present:
        return {}
    return {"webhook_configs": [{"url_file": str(folder / "alert-webhook-url")}]}


_EACH = (
    "{{ range .Alerts }}*{{ .Labels.alertname }}* ({{ .Labels.severity }}, {{ .Status }}):"
    " {{ .Annotations.description }}\n<{{ .Annotations.runbook_url }}|what to do>"
    " <{{ .Annotations.dashboard_url }}|dashboard>\n{{ end }}"
)


def _slack(environ: Mapping[str, str], present: set[str], folder: Path) -> dict[str, Any]:
    channel = environ.get("AGL_ALERT_SLACK_CHANNEL", "").strip()
    if "alert-slack-url" not in present:
        if channel:
            raise _lacks("AGL_ALERT_SLACK_CHANNEL", "compose/secrets/alert-slack-url")
        return {}
    slack = {
        "api_url_file": str(folder / "alert-slack-url"),
        "send_resolved": True,
        "title": "{{ .Status | toUpper }} {{ .GroupLabels.deployment }}/"
        "{{ .GroupLabels.component }}",
        "text": _EACH,
    }
    return {"slack_configs": [{**slack, "channel": channel} if channel else slack]}


def _pagerduty(environ: Mapping[str, str], present: set[str], folder: Path) -> dict[str, Any]:
    if "alert-pagerduty-key" not in present:
        return {}
    url = environ.get("AGL_ALERT_PAGERDUTY_URL", "").strip()
    if not _URL.fullmatch(url):
        raise UsageError("AGL_ALERT_PAGERDUTY_URL is not an http address")
    pagerduty = {
        "routing_key_file": str(folder / "alert-pagerduty-key"),
        "url": url,
        "severity": "{{ .CommonLabels.severity }}",
        "description": "{{ range .Alerts.Firing }}{{ .Labels.alertname }}:"
        " {{ .Annotations.summary }} {{ end }}",
        "details": {
            "what": "{{ range .Alerts.Firing }}{{ .Annotations.description }}\n{{ end }}",
            "what to do": "{{ range .Alerts.Firing }}{{ .Annotations.runbook_url }}\n{{ end }}",
        },
    }
    return {"pagerduty_configs": [pagerduty]}


def _email(environ: Mapping[str, str], present: set[str], folder: Path) -> dict[str, Any]:
    def setting(name: str) -> str:
        return environ.get(name, "").strip()

    names = ("AGL_ALERT_EMAIL_TO", "AGL_ALERT_EMAIL_FROM", "AGL_ALERT_SMTP")
    to, sender, server = (setting(name) for name in names)
    user, tls = setting("AGL_ALERT_SMTP_USER"), setting("AGL_ALERT_SMTP_TLS") or "true"
    if not to:
        return {}
    addresses = [address.strip() for address in to.split(",")]
    if not all(_ADDRESS.fullmatch(address) for address in addresses):
        raise UsageError("AGL_ALERT_EMAIL_TO holds something else than mail addresses")
    if not _ADDRESS.fullmatch(sender):
        raise UsageError("AGL_ALERT_EMAIL_FROM is not one mail address")
    if not _SERVER.fullmatch(server):
        raise UsageError("AGL_ALERT_SMTP is not host:port of a mail server")
    if tls not in {"true", "false"}:
        raise UsageError("AGL_ALERT_SMTP_TLS is neither true nor false")
    if user and "alert-smtp-password" not in present:
        raise _lacks("AGL_ALERT_SMTP_USER", "compose/secrets/alert-smtp-password")
    email: dict[str, Any] = {
        "to": ", ".join(addresses),
        "from": sender,
        "smarthost": server,
        "require_tls": tls == "true",
        "send_resolved": True,
    }
    if user:
        password_file = str(folder / "alert-smtp-password")
        email.update(auth_username=user, auth_password_file=password_file)
    return {"email_configs": [email]}


def _drill_routes(drill: Drill | None) -> list[dict[str, Any]]:
    if drill is None:
        return [{"receiver": NOBODY, "matchers": [OF_A_DRILL]}]
    return [
        {
            "receiver": drill.receiver,
            "matchers": [f'drill="{drill.name}"'],
            "group_wait": "1s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        {"receiver": NOBODY, "matchers": [OF_A_DRILL]},
        {
            "receiver": drill.receiver,
            "matchers": ['severity=~"critical|warning|info"'],
            "group_wait": "5s",
            "group_interval": "10s",
            "repeat_interval": "1h",
            "continue": True,
        },
    ]


def _drill_receiver(drill: Drill) -> dict[str, Any]:
    if not urlsplit(drill.url).hostname:
        raise EnvironmentFault(f"{drill.url!r} is no address for pages of a drill")
    return {"name": drill.receiver, "webhook_configs": [{"url": drill.url}]}


def _lacks(variable: str, file: str) -> UsageError:
    return UsageError(f"{variable} is set, and {file} is missing")
