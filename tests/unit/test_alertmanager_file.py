"""Who is paged: Alertmanager's file, from settings and secret files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from agl.errors import EnvironmentFault, UsageError
from agl.ops import alertmanager
from agl.ops.alertmanager import FILE_SECRETS, Drill, configuration, secret_text
from agl.ops.init_alertmanager import render_alertmanager
from agl.ops.init_bundle import Folders

ROOT = Path(__file__).resolve().parents[2]
MAIL = {
    "AGL_ALERT_EMAIL_TO": "a@example.org, b@example.org",
    "AGL_ALERT_EMAIL_FROM": "agl@example.org",
    "AGL_ALERT_SMTP": "mail.example.org:587",
}
PAGERDUTY = {"AGL_ALERT_PAGERDUTY_URL": "https://events.pagerduty.com/v2/enqueue"}


def routes(config: dict[str, Any]) -> dict[str, str]:
    """Matcher -> receiver."""
    return {route["matchers"][0]: route["receiver"] for route in config["route"]["routes"]}


def kinds(config: dict[str, Any], name: str) -> set[str]:
    (receiver,) = [item for item in config["receivers"] if item["name"] == name]
    return set(receiver) - {"name"}


class TestReceivers:
    def test_with_no_setting_nobody_is_paged_and_that_is_said(self) -> None:
        config = configuration({}, set())
        assert set(routes(config).values()) == {"nobody"}
        assert config["receivers"] == [{"name": "nobody"}]
        said = alertmanager.warnings(["nobody"])
        assert "NOBODY WILL BE PAGED" in said[0]
        assert "AGL_DEADMAN_URL" in said[1]

    def test_all_of_them(self) -> None:
        config = configuration({**MAIL, **PAGERDUTY}, set(FILE_SECRETS))
        assert routes(config) == {
            'drill=~".+"': "nobody",
            'alertname="Watchdog"': "deadman: webhook",
            'severity="critical"': "page: pagerduty, webhook, slack, email",
            'severity="warning"': "day: webhook, slack, email",
        }
        names = [item["name"] for item in config["receivers"]]
        assert alertmanager.ways(names) == "pagerduty, webhook, slack, email"
        assert alertmanager.warnings(names) == []

    def test_pagerduty_is_for_what_is_critical(self) -> None:
        config = configuration(PAGERDUTY, {"alert-pagerduty-key"})
        assert routes(config)['severity="critical"'] == "page: pagerduty"
        assert routes(config)['severity="warning"'] == "nobody"

    def test_what_is_secret_is_named_by_file_only(self) -> None:
        config = configuration({**MAIL, **PAGERDUTY, "AGL_ALERT_SMTP_USER": "u"}, set(FILE_SECRETS))
        text = json.dumps(config)
        for name in FILE_SECRETS:
            assert f"/run/agl/secrets/{name}" in text
        page = next(item for item in config["receivers"] if item["name"].startswith("page"))
        assert page["pagerduty_configs"][0]["routing_key_file"].endswith("alert-pagerduty-key")
        assert page["email_configs"][0]["auth_password_file"].endswith("alert-smtp-password")

    def test_mail_without_a_user_and_without_tls(self) -> None:
        config = configuration({**MAIL, "AGL_ALERT_SMTP_TLS": "false"}, set())
        (email,) = config["receivers"][1]["email_configs"]
        assert email["require_tls"] is False
        assert email["to"] == "a@example.org, b@example.org"
        assert "auth_username" not in email

    @pytest.mark.parametrize(
        ("environ", "present", "named"),
        [
            ({**MAIL, "AGL_ALERT_EMAIL_TO": "nobody"}, set[str](), "AGL_ALERT_EMAIL_TO"),
            ({**MAIL, "AGL_ALERT_EMAIL_FROM": ""}, set[str](), "AGL_ALERT_EMAIL_FROM"),
            ({**MAIL, "AGL_ALERT_SMTP": "mail.example.org"}, set[str](), "AGL_ALERT_SMTP"),
            ({**MAIL, "AGL_ALERT_SMTP_TLS": "no"}, set[str](), "AGL_ALERT_SMTP_TLS"),
            ({**MAIL, "AGL_ALERT_SMTP_USER": "u"}, set[str](), "alert-smtp-password"),
            ({"AGL_ALERT_SLACK_CHANNEL": "#ops"}, set[str](), "alert-slack-url"),
            ({}, {"alert-pagerduty-key"}, "AGL_ALERT_PAGERDUTY_URL"),
        ],
    )
    def test_half_a_setting_is_named(
        self, environ: dict[str, str], present: set[str], named: str
    ) -> None:
        with pytest.raises(UsageError, match=named):
            configuration(environ, present)


class TestSecretText:
    webhook = FILE_SECRETS["alert-webhook-url"]

    def test_the_file_or_the_variable(self) -> None:
        set_to = {"AGL_ALERT_WEBHOOK_URL": "http://pager.example.org/x"}
        assert secret_text(self.webhook, None, {}) == ""
        assert secret_text(self.webhook, None, set_to) == "http://pager.example.org/x"
        assert secret_text(self.webhook, "https://other.example.org", {}).endswith("org")
        with pytest.raises(UsageError, match="both set"):
            secret_text(self.webhook, "https://other.example.org", set_to)

    def test_what_is_no_address_is_named_by_where_it_stands(self) -> None:
        with pytest.raises(UsageError, match="AGL_DEADMAN_URL is not an http address"):
            secret_text(FILE_SECRETS["deadman-url"], None, {"AGL_DEADMAN_URL": "ftp://x"})


class TestInhibition:
    def test_causes_silence_symptoms_of_the_same_host_and_deployment_alone(self) -> None:
        for rule in alertmanager.inhibit_rules():
            assert rule["equal"] == ["deployment", "host"]

    def test_no_cause_silences_itself(self) -> None:
        for rule in alertmanager.inhibit_rules():
            (source,) = rule["source_matchers"]
            assert source.replace("=", "!=", 1) in rule["target_matchers"]

    def test_the_causes_and_components_are_ours(self) -> None:
        """A renamed alert would silently stop to silence."""
        rules = [
            rule
            for path in sorted((ROOT / "prometheus/alerts").glob("*.yml"))
            for group in yaml.safe_load(path.read_text())["groups"]
            for rule in group["rules"]
        ]
        names = {rule["alert"] for rule in rules}
        components = {rule["labels"]["component"] for rule in rules}
        sources = {
            rule["source_matchers"][0].partition("=")[2].strip('"')
            for rule in alertmanager.inhibit_rules()
        }
        assert sources <= names
        assert set(alertmanager.SYMPTOMS_OF_STORE.split("|")) <= components


class TestDrillRoutes:
    drill = Drill("http://drill-receiver:9095/page", "abc")

    def test_alerts_of_a_drill_page_nobody_during_it_and_afterwards(self) -> None:
        during = configuration(PAGERDUTY, {"alert-pagerduty-key"}, self.drill)["route"]["routes"]
        assert [(r["matchers"], r["receiver"]) for r in during[:2]] == [
            (['drill="abc"'], "drill abc"),
            (['drill=~".+"'], "nobody"),
        ]
        after = configuration(PAGERDUTY, {"alert-pagerduty-key"})["route"]["routes"]
        assert (after[0]["matchers"], after[0]["receiver"]) == (['drill=~".+"'], "nobody")

    def test_in_earnest_pages_go_to_the_drill_as_well(self) -> None:
        config = configuration(PAGERDUTY, {"alert-pagerduty-key"}, self.drill)
        both = config["route"]["routes"][2]
        assert both["continue"] is True
        assert routes(config)['severity="critical"'] == "page: pagerduty"
        assert config["receivers"][-1] == {
            "name": "drill abc",
            "webhook_configs": [{"url": "http://drill-receiver:9095/page"}],
        }


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
class TestRendering:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Folders:
        (tmp_path / "operator").mkdir()
        return Folders(
            tmp_path / "secrets", tmp_path / "operator", tmp_path / "config", tmp_path / "tls"
        )

    def test_a_secret_is_for_alertmanager_alone_and_not_in_the_file(self, folders: Folders) -> None:
        (folders.operator / "alert-slack-url").write_text("https://hooks.example.org/T0/secret\n")
        environ = {"AGL_DEADMAN_URL": "https://dead.example.org/ping"}
        assert render_alertmanager(folders, environ) == "written"
        for name, text in {
            "alert-slack-url": "https://hooks.example.org/T0/secret",
            "deadman-url": "https://dead.example.org/ping",
        }.items():
            path = folders.secrets / name
            status = path.stat()
            assert path.read_text() == text
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (65534, 0o400)
        target = folders.config / "alertmanager" / "alertmanager.yml"
        assert "example.org" not in target.read_text()
        assert stat.S_IMODE(target.stat().st_mode) == 0o644
        assert yaml.safe_load(target.read_text())["route"]["receiver"] == "nobody"

    def test_again_changes_nothing_and_a_secret_taken_away_is_gone(self, folders: Folders) -> None:
        supplied = folders.operator / "alert-slack-url"
        supplied.write_text("https://hooks.example.org/x")
        render_alertmanager(folders, {})
        target = folders.config / "alertmanager" / "alertmanager.yml"
        inode = target.stat().st_ino
        assert render_alertmanager(folders, {}) == "up to date"
        assert target.stat().st_ino == inode
        supplied.unlink()
        assert render_alertmanager(folders, {}) == "written"
        assert not (folders.secrets / "alert-slack-url").exists()
        assert "slack" not in target.read_text()

    def test_a_bad_setting_leaves_the_file_as_it_was(self, folders: Folders) -> None:
        render_alertmanager(folders, {})
        target = folders.config / "alertmanager" / "alertmanager.yml"
        before = target.read_text()
        with pytest.raises(UsageError, match="AGL_ALERT_WEBHOOK_URL"):
            render_alertmanager(folders, {"AGL_ALERT_WEBHOOK_URL": "pager"})
        (folders.operator / "alert-slack-url").write_text("")
        with pytest.raises(EnvironmentFault, match="alert-slack-url is empty"):
            render_alertmanager(folders, {})
        assert target.read_text() == before
