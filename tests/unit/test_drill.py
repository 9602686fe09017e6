"""Drills: shortened windows, pages, turns, and a catalogue that fits the alerts."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
import yaml

from agl.cli import main
from agl.errors import EnvironmentFault, UsageError
from agl.ops.alerting.rules import load_alerts
from agl.ops.drill import receiver, site
from agl.ops.drill.catalogue import DRILLS, SYMPTOMS, Drill
from agl.ops.drill.receiver import page_line
from agl.ops.drill.run import chosen, rounds
from agl.ops.drill.scaling import (
    Scale,
    duration,
    render_scaled,
    scaled_config,
    scaled_rules,
    seconds,
)
from agl.ops.drill.site import Site
from agl.ops.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "prometheus" / "alerts"


class TestScaling:
    def test_durations_are_read_as_prometheus_writes_them(self) -> None:
        assert seconds("1h30m") == 5400
        assert seconds("250ms") == 0.25
        assert duration(7.5) == "7500ms"

    def test_ranges_offsets_and_holds_are_shortened_and_nothing_else(self) -> None:
        rule = (
            "        expr: |-\n"
            "          rate(a[10m]) > 300 and max_over_time(b[1h:1m] offset 1h) > 5\n"
            "          and time() - c > 3600\n"
            "        for: 5m\n"
            "        keep_firing_for: 10m\n"
            "          description: for: 5 minutes, see a[b]\n"
        )
        assert scaled_rules(rule, 20) == (
            "        expr: |-\n"
            "          rate(a[30000ms]) > 300 and max_over_time(b[180000ms:3000ms]"
            " offset 180000ms) > 5\n"
            "          and time() - c > 3600\n"
            "        for: 15000ms\n"
            "        keep_firing_for: 30000ms\n"
            "          description: for: 5 minutes, see a[b]\n"
        )

    def test_a_range_still_holds_several_scrapes(self) -> None:
        assert scaled_rules("x: up[30s]\n", 100) == "x: up[4000ms]\n"

    @pytest.mark.parametrize("path", sorted(ALERTS.glob("*.yml")), ids=lambda path: path.stem)
    def test_no_hold_and_no_range_of_ours_is_overlooked(self, path: Path) -> None:
        """Every duration of the scaled file is one that the scaling wrote."""
        scaled = yaml.safe_load(scaled_rules(path.read_text(), 10))
        real = yaml.safe_load(path.read_text())
        for group, before in zip(scaled["groups"], real["groups"], strict=True):
            for rule, original in zip(group["rules"], before["rules"], strict=True):
                assert rule.get("annotations") == original.get("annotations")
                for found in re.findall(r"\[([^\]]*\d[smhdw][^\]]*)\]", rule["expr"]):
                    assert re.fullmatch(r"\d+ms(:\d+ms)?", found), rule
                if "for" in original:
                    assert seconds(rule["for"]) == seconds(str(original["for"])) / 10

    @pytest.mark.parametrize("name", ["prometheus.base.yml", "prometheus.mongo.yml"])
    def test_the_drills_prometheus_looks_oftener_and_marks_its_alerts(self, name: str) -> None:
        text = (ROOT / "prometheus" / name).read_text()
        config = yaml.safe_load(scaled_config(text, Scale(20, "1e5")))
        assert config["global"]["scrape_interval"] == "1000ms"
        marks = config["alerting"]["alert_relabel_configs"]
        assert marks[0] == {"target_label": "drill", "replacement": "1e5"}
        assert marks[1]["replacement"] == "${1}-drill-1e5"
        real = {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}
        jobs = {job["job_name"] for job in config["scrape_configs"]}
        assert jobs - real == {"drill-node", "drill-dcgm"}
        assert real <= jobs

    def test_a_file_without_alerting_is_refused(self) -> None:
        with pytest.raises(EnvironmentFault, match="no section alerting"):
            scaled_config("global:\n  scrape_interval: 5s\n", Scale(20, "a"))

    def test_a_rule_file_of_another_time_is_removed(self, tmp_path: Path) -> None:
        target = tmp_path / "drill"
        source = ROOT / "prometheus"
        render_scaled(source, "prometheus.base.yml", target, Scale(20, "a"))
        (target / "alerts" / "old.yml").write_text("groups: []\n")
        render_scaled(source, "prometheus.base.yml", target, Scale(20, "a"))
        assert {path.name for path in (target / "alerts").iterdir()} == {
            path.name for path in ALERTS.glob("*.yml")
        }
        assert (target / "prometheus.yml").is_file()


class TestCatalogue:
    alerts: ClassVar = {alert.name: alert for alert in load_alerts(ALERTS)}

    def test_every_drill_is_of_an_alert_that_is_there(self) -> None:
        assert DRILLS.keys() | SYMPTOMS.keys() <= self.alerts.keys()

    def test_symptoms_are_known_and_both_ways_of_silence_are_drilled(self) -> None:
        causes = {name: drill.symptom for name, drill in DRILLS.items() if drill.symptom}
        assert causes.keys() == {"NodeDown", "StoreDown"}
        assert set(causes.values()) <= SYMPTOMS.keys()

    def test_at_least_seven_and_one_critical_can_be_drilled_in_earnest(self) -> None:
        assert len(DRILLS) >= 7
        assert any(
            self.alerts[name].severity == "critical" and not drill.scaled_only
            for name, drill in DRILLS.items()
        )

    def test_unknown_and_impossible_ones_are_refused(self) -> None:
        with pytest.raises(UsageError, match="no drill for 'Nonsense'"):
            chosen(["Nonsense"], scaled=True)
        with pytest.raises(UsageError, match="needs --speed above 1"):
            chosen(["NodeDown"], scaled=False)
        assert len(chosen(["NodeDown", "NodeDown"], scaled=True)) == 1


def test_drills_that_disturb_each_other_take_turns() -> None:
    def nothing(_: Site, __: object) -> None: ...

    breaks = Drill("a", "", nothing, disturbs=frozenset({"x"}))
    needs = Drill("b", "", nothing, needs=frozenset({"x"}))
    also = Drill("c", "", nothing, needs=frozenset({"x"}))
    again = Drill("d", "", nothing, disturbs=frozenset({"x"}))
    assert rounds([breaks, needs, also, again]) == [[breaks], [needs, also], [again]]


class _Busy:
    """A daemon that cannot freeze a container the first times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.did: list[str] = []

    def containers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(id="1", service="app")]

    def pause(self, _: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise EnvironmentFault("unable to freeze")
        self.did.append("pause")

    def unpause(self, _: str) -> None:
        self.did.append("unpause")


def test_a_freeze_that_is_refused_is_tried_again_and_undone_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = _Busy(refusals=2)
    with ExitStack() as undo:
        Site(cast("Engine", busy)).freeze(undo, "app")
        assert busy.did == ["pause"]
    assert busy.did == ["pause", "unpause"]
    monkeypatch.setattr(site, "FREEZE_SECONDS", 0.0)
    busy = _Busy(refusals=9)
    with pytest.raises(EnvironmentFault, match="unable to freeze"), ExitStack() as undo:
        Site(cast("Engine", busy)).freeze(undo, "app")
    assert busy.did == ["unpause"]


def test_a_symptom_is_not_drilled_apart_from_its_cause() -> None:
    both = [drill.alert for drill in chosen(["QueueStuck", "StoreDown"], scaled=True)]
    assert both == ["StoreDown"]
    assert [drill.alert for drill in chosen(["QueueStuck"], scaled=True)] == ["QueueStuck"]


class TestReceiver:
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with ThreadingHTTPServer(("127.0.0.1", 0), receiver._Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            server.shutdown()
            thread.join()

    def test_a_page_is_one_line(self) -> None:
        labels = {"alertname": "StoreDown", "drill": "a", "host": "h", "severity": "critical"}
        body = json.dumps({"alerts": [{"status": "firing", "labels": labels}]}).encode()
        assert json.loads(page_line(body, 5.0)) == {
            "at": 5.0,
            "alerts": [{"name": "StoreDown", "status": "firing", "drill": "a", "host": "h"}],
        }

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"alerts": '])
    def test_what_is_no_page_is_refused(self, url: str, body: bytes) -> None:
        request = urllib.request.Request(f"{url}/page", data=body, method="POST")
        with pytest.raises(urllib.error.HTTPError, match=r"40[04]"):
            urllib.request.urlopen(request)

    def test_a_page_is_written_at_once(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        body = b'{"alerts": [{"status": "firing", "labels": {"alertname": "X"}}]}'
        with urllib.request.urlopen(f"{url}/page", data=body) as answer:
            assert answer.status == 200
        assert json.loads(capsys.readouterr().out)["alerts"][0]["name"] == "X"

    def test_it_serves_the_metrics_it_was_given(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(receiver, "METRICS_FILE", tmp_path / "metrics")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.read() == b""
        (tmp_path / "metrics").write_text("a 1\n")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.read() == b"a 1\n"


def test_the_list_names_every_drill(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stack", "drill", "--list"]) == 0
    said = capsys.readouterr().out
    assert {line.split()[0] for line in said.splitlines()} == set(DRILLS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "which alert?"), (["TargetDown", "--speed=0.5"], "--speed: at least 1")],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stack", "drill", *arguments]) == 2
    assert said in capsys.readouterr().err
