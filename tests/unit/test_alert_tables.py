"""What is made from tables and rules: exactly what they say, or a clear refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from rule_checks import ALERTS, ROOT

from agl.errors import EnvironmentFault
from agl.ops.alerting import load_alerts
from agl.ops.alerting.docs import render_alerts
from agl.ops.alerting.generate import main, render_all
from agl.ops.alerting.tables import gpu_xid, mongodb_cve, xid_classes, xid_document

ENTRY = """\
vulnerabilities:
  - cve: CVE-2000-0001
    fixed: [{fixed}]
    unfixed: [{unfixed}]
"""


def affected(folder: Path, fixed: str, unfixed: str = "") -> re.Pattern[str]:
    """What the rule of such a table matches."""
    table = folder / "mongodb_cve.yml"
    table.write_text(ENTRY.format(fixed=fixed, unfixed=unfixed))
    rule = yaml.safe_load(mongodb_cve(table))["groups"][0]["rules"][0]
    found = re.search(r'mongodb=~"([^"]+)"', rule["expr"])
    assert found
    return re.compile(found[1])


@pytest.mark.parametrize("patch", [0, 1, 2, 9, 10, 11, 17, 20, 28, 30, 32, 99])
def test_releases_below_the_fix_and_no_others_are_affected(tmp_path: Path, patch: int) -> None:
    pattern = affected(tmp_path, f"8.0.{patch}, 7.0.3")
    found = {number for number in range(300) if pattern.fullmatch(f"8.0.{number}")}
    assert found == set(range(patch))
    assert not pattern.fullmatch("8.1.0")
    assert not pattern.fullmatch("18.0.0")
    assert bool(pattern.fullmatch("8.0.0-5")) == (patch > 0)


def test_every_release_of_an_unfixed_line_is_affected(tmp_path: Path) -> None:
    pattern = affected(tmp_path, "8.0.17", '"4.2"')
    assert pattern.fullmatch("4.2.25")
    assert pattern.fullmatch("4.2.125-3")
    assert not pattern.fullmatch("4.20.1")
    assert not pattern.fullmatch("4x2.1")


@pytest.mark.parametrize(
    ("fixed", "unfixed", "named"),
    [("8.0", "", "8.0"), ("newest", "", "newest"), ("8.0.1", "4", "4")],
)
def test_wrong_entries_are_named(tmp_path: Path, fixed: str, unfixed: str, named: str) -> None:
    with pytest.raises(EnvironmentFault, match=named):
        affected(tmp_path, fixed, unfixed)


@pytest.mark.parametrize("text", ["", "vulnerabilities: []", "vulnerabilities: [{cve: X}]", "]["])
def test_a_broken_table_is_named(tmp_path: Path, text: str) -> None:
    table = tmp_path / "mongodb_cve.yml"
    table.write_text(text)
    with pytest.raises(EnvironmentFault, match=r"mongodb_cve\.yml"):
        mongodb_cve(table)


XID_TABLE = ROOT / "prometheus" / "data" / "xid.yml"
SERIOUS_EVERYWHERE = (48, 64, 74, 79, 119, 120)
FAULTS_OF_PROGRAMS = (13, 31, 43)


def classes_matched(rule: str, xid: int) -> list[str]:
    """The classes that the rendered rule gives to an XID."""
    branches = yaml.safe_load(rule)["groups"][0]["rules"][0]["expr"].split("\nor\n")
    found: list[str] = []
    for branch in branches:
        operator, pattern = re.findall(r'xid(=~|!~)"([^"]+)"', branch)[0]
        if bool(re.fullmatch(pattern, str(xid))) == (operator == "=~"):
            found += re.findall(r'"class", "(\w+)"', branch)
    return found


@pytest.mark.slow
def test_every_xid_has_exactly_the_class_of_the_table() -> None:
    rule = gpu_xid(XID_TABLE)
    of_table = {xid: entry["class"] for entry in xid_classes(XID_TABLE) for xid in entry["xids"]}
    for xid in range(1000):
        assert classes_matched(rule, xid) == [of_table.get(xid, "unknown")]


def test_xids_that_all_operators_call_serious_page_and_faults_of_programs_do_not() -> None:
    urgency = {x: entry["urgency"] for entry in xid_classes(XID_TABLE) for x in entry["xids"]}
    assert {urgency[xid] for xid in SERIOUS_EVERYWHERE} == {"critical"}
    assert {urgency[xid] for xid in FAULTS_OF_PROGRAMS} == {"info"}


def test_xid_document_names_every_number_with_its_action() -> None:
    rows = xid_document(XID_TABLE).splitlines()
    for entry in xid_classes(XID_TABLE):
        row = next(row for row in rows if f"| {entry['class']} |" in row)
        assert entry["action"] in row
        assert [int(xid) for xid in row.split("|")[1].split(",")] == sorted(entry["xids"])


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("xids: [79]", "xids: [79, 64]", "64"),
        ("xids: [79]", "xids: [seventy]", "seventy"),
        ("urgency: critical", "urgency: dire", "dire"),
        ("    about: an NVLink error\n", "", "about"),
        ("unknown_action:", "some_action:", "unknown_action"),
    ],
)
def test_wrong_xid_entries_are_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = XID_TABLE.read_text()
    assert old in text
    table = tmp_path / "xid.yml"
    table.write_text(text.replace(old, new))
    with pytest.raises(EnvironmentFault, match=named):
        gpu_xid(table)


def test_every_alert_has_its_row_with_runbook_test_and_threshold() -> None:
    text = render_alerts(load_alerts(ALERTS))
    for alert in load_alerts(ALERTS):
        row = next(line for line in text.splitlines() if line.startswith(f"| [{alert.name}]("))
        cells = row.strip("| ").split(" | ")
        assert len(cells) == 7
        assert (ROOT / "docs" / f"runbooks/{alert.name}.md").is_file()
        assert f"](../prometheus/tests/{alert.component}.yml)" in cells[6]
        assert cells[1] == alert.severity
        assert cells[4] == str(alert.annotations["threshold"])


def test_what_is_committed_is_what_is_generated() -> None:
    for path, text in render_all(ROOT).items():
        assert path.read_text("utf-8") == text, "run scripts/generate"


def test_check_fails_for_an_edited_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("alerts", "data"):
        (tmp_path / "prometheus" / folder).mkdir(parents=True)
        for path in (ROOT / "prometheus" / folder).glob("*.yml"):
            (tmp_path / "prometheus" / folder / path.name).write_text(path.read_text())
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert not (tmp_path / "docs").exists()
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0
    rule = tmp_path / "prometheus" / "rules" / "mongodb_cve.yml"
    rule.write_text(rule.read_text().replace("CVE-", "EVC-"))
    capsys.readouterr()
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert "CVE-" in capsys.readouterr().out
