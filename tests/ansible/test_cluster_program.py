"""What scripts/cluster does around Ansible."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agl.errors import UsageError
from agl.ops.cluster import __main__ as program
from agl.ops.cluster.inventory import (
    judge,
    misspelt,
    parse,
    read_inventory,
    shadowed,
    variables_of,
)
from agl.ops.cluster.release import make_release
from agl.ops.cluster.report import FAIL, OK, WARN, Check, read_report, render, verdict


def document(
    groups: dict[str, list[str]], variables: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    hosts = {host for members in groups.values() for host in members}
    repository = {"nvidia_driver_repository": "https://mirror.example/nvidia"}
    known = {
        host: {"ansible_host": f"{host}.example", "agl_gpus": 8, **repository} for host in hosts
    }
    for host, more in (variables or {}).items():
        known[host] = {**known[host], **more}
    return {
        "_meta": {"hostvars": known},
        "all": {"children": ["ungrouped", *groups]},
        **{name: {"hosts": members} for name, members in groups.items()},
    }


GOOD = {"control": ["c1"], "gpu_nodes": ["g1", "g2"], "cpu_nodes": ["w1"]}


SHARED = {
    "store_secrets": {"api-token": "t"},
    "mongodb_keyfile": "k",
    "mongodb_passwords": {"root": "r"},
}
TWO = ["c1", "c2"]
THREE = {**GOOD, "control": ["c1", "c2", "c3"]}


def shared(*hosts: str, **changes: Any) -> dict[str, dict[str, Any]]:
    return {host: {**SHARED, **changes} for host in hosts}


def found(
    groups: dict[str, list[str]], variables: dict[str, dict[str, Any]] | None = None
) -> list[Check]:
    return [c for c in judge(parse(document(groups, variables))) if c.status != OK]


def test_a_good_inventory() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("groups", "variables", "status", "words", "fix"),
    [
        ({**GOOD, "gpu_node": ["g3"]}, {}, FAIL, "'gpu_node' is not known", "gpu_nodes?"),
        ({**GOOD, "storage": ["s1"]}, {}, WARN, "'storage' gets no role", "known: control"),
        ({**GOOD, "ungrouped": ["x1"]}, {}, FAIL, "hosts in no group: x1", "control, gpu_nodes"),
        ({"gpu_nodes": ["g1"]}, {}, FAIL, "no control node", "group control"),
        (
            {**GOOD, "control": ["c1", "c2"]},
            shared("c1", "c2"),
            FAIL,
            "odd number of voters",
            "external",
        ),
        ({**GOOD, "cpu_nodes": ["g1"]}, {}, FAIL, "gpu_nodes and in cpu_nodes: g1", "one of them"),
        (GOOD, {"g1": {"ansible_host": "g2.example"}}, FAIL, "g1 and g2 are the same", "its own"),
        (
            GOOD,
            {"g1": {"agl_address": "10.0.0.1"}, "w1": {"agl_address": "10.0.0.1"}},
            FAIL,
            "g1 and w1 would be one target, 10.0.0.1",
            "agl_address",
        ),
        (GOOD, {"g1": {"agl_gpus": 0}}, FAIL, "g1: agl_gpus is 0", "cpu_nodes"),
        (GOOD, {"g1": {"agl_gpus": "8"}}, FAIL, "g1: agl_gpus is '8'", "number"),
        (
            GOOD,
            {"g1": {"nvidia_driver_repository": ""}},
            WARN,
            "g1: nvidia_driver_repository is not set",
            "nvidia_driver_key",
        ),
    ],
)
def test_bad_inventories(
    groups: dict[str, list[str]],
    variables: dict[str, dict[str, Any]],
    status: str,
    words: str,
    fix: str,
) -> None:
    checks = found(groups, variables)
    assert [(c.status, words in c.found, fix in c.fix) for c in checks] == [(status, True, True)]


def test_groups_of_ones_own_that_only_sort_are_welcome() -> None:
    assert found({**GOOD, "rack7": ["g1", "w1"]}) == []


def test_the_same_address_on_two_ports_is_two_machines() -> None:
    same = {"ansible_host": "g.example"}
    ports = {"g1": {**same, "ansible_port": 2201}, "g2": {**same, "ansible_port": 2202}}
    assert found(GOOD, ports) == []


def test_addresses_that_are_templates_are_not_compared() -> None:
    template = {"agl_address": "{{ ansible_host }}"}
    assert found(GOOD, {"g1": template, "w1": template}) == []


def test_drivers_of_the_hosts_own_lists_need_no_repository() -> None:
    own = {"nvidia_driver_repository": "", "nvidia_driver_packages": ["nvidia-driver"]}
    assert found(GOOD, {"g1": own, "g2": own}) == []


def test_a_file_of_variables_that_ansible_would_pass_over(tmp_path: Path) -> None:
    """It takes the folder ``all`` and looks for no ``all.yml`` then."""
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    assert shadowed(tmp_path) == []
    (tmp_path / "group_vars" / "all.yml").touch()
    (tmp_path / "group_vars" / "control.yml").touch()
    hosts = tmp_path / "hosts.yml"
    for path in (tmp_path, hosts):
        (check,) = shadowed(path)
        assert check.status == FAIL
        assert "does not read all.yml" in check.found
        assert check.fix == f"mv {tmp_path}/group_vars/all.yml {tmp_path}/group_vars/all/"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("prometheus_retention_time", ""),
        ("agl_gpus", ""),
        ("prometheus_retention", "did you mean prometheus_retention_time?"),
        ("store_setings", "did you mean store_settings?"),
        ("agl_adress", "did you mean agl_address?"),
        ("docker_users", ""),  # somebody else's
    ],
)
def test_a_variable_that_no_role_takes(name: str, fix: str) -> None:
    given = parse(document(GOOD, {"g1": {name: 1}, "w1": {name: 1}}))
    known = variables_of(program.FOLDER / "roles")
    checks = misspelt(given, known)
    assert [(c.status, c.found, c.fix) for c in checks] == (
        [(WARN, f"no role takes {name}", fix)] if fix else []
    )


def test_external_mongodb_takes_any_number_of_control_nodes() -> None:
    external = shared(*TWO, mongodb_mode="external")
    assert found({**GOOD, "control": ["c1", "c2"]}, external) == []


def test_several_control_nodes_are_told_their_secrets_alike() -> None:
    three = shared(*THREE["control"])
    assert found(THREE, three) == []
    checks = found(THREE, {**three, "c2": {"store_secrets": {}}})
    assert [(c.name, c.status) for c in checks] == [("secrets", FAIL)]
    missing = "c2 is not given store_secrets.api-token, mongodb_keyfile, mongodb_passwords"
    assert checks[0].found.startswith(missing)
    external = {"mongodb_mode": "external", "store_secrets": {"api-token": "t"}}
    assert found(THREE, dict.fromkeys(THREE["control"], external)) == []


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--limit", "vault1", "--check"], []),
        (["--vault-password-file", "pass"], ["--vault-password-file=pass"]),
        (["--vault-pass-file=pass", "-J"], ["--ask-vault-pass", "--vault-password-file=pass"]),
        (["-e", "@own.yml", "--diff"], ["--extra-vars=@own.yml"]),
        (["--vault-id", "a@b", "--vault-id", "c"], ["--vault-id=a@b", "--vault-id=c"]),
    ],
)
def test_the_inventory_is_read_with_what_says_its_variables(
    given: list[str], passed: list[str]
) -> None:
    assert program._of_variables(given) == passed


def test_no_inventory_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cp -r ansible/inventory/example"):
        read_inventory(tmp_path / "ansible-inventory", tmp_path / "none", [], tmp_path)


def test_a_wrong_call_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["aply"]) == 2
    assert "aply" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["drain", "undrain"])
def test_nobody_drains_the_whole_cluster_for_a_forgotten_word(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([command]) == 2
    assert f"{command} needs --limit HOST" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 4])
def test_what_only_shows_has_no_report(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        called.append(command)
        assert "cwd" not in options  # files are looked for where scripts/cluster is called
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(program, "read_inventory", lambda *_: parse(document(GOOD)))
    monkeypatch.setattr(subprocess, "run", run)
    assert program.main(["doctor", "-i", str(tmp_path), "--list-hosts"]) == bool(code)
    assert called[0][-3:] == ["--list-hosts", str(program.FOLDER / "doctor.yml"), "--check"]


CHECKS = [
    {"name": "disk", "status": "fail", "found": "1 GB free", "fix": "make room on HOST"},
    {"name": "root", "status": "ok", "found": "yes", "fix": ""},
]


def host(**parts: Any) -> dict[str, Any]:
    return {"checks": [], "failures": [], "unreachable": "", **parts}


def test_the_failure_that_sums_up_checks_is_no_check_of_its_own() -> None:
    left_out = [{"task": "Leave out", "message": "left out: disk"}]
    (report,) = read_report({"hosts": {"g1": host(checks=CHECKS, failures=left_out)}}, {})
    assert [(c.name, c.fix) for c in report.wrong] == [("disk", "make room on g1")]


def test_a_failed_task_is_a_check() -> None:
    failures = [{"task": "docker : Docker", "message": "no such package"}]
    (report,) = read_report({"hosts": {"g1": host(failures=failures)}}, {})
    assert [(c.name, c.found) for c in report.wrong] == [("docker : Docker", "no such package")]


@pytest.mark.parametrize(
    ("body", "name", "fix"),
    [
        (
            host(failures=[{"task": "preflight : Read facts", "message": "Timed out after 45 s"}]),
            "facts",
            "df, nvidia-smi and dmesg on g1",
        ),
        (host(unreachable="Connection timed out"), "reachable", "ssh ops@g1 true"),
        (host(unreachable="Incorrect sudo password"), "root", "--ask-become-pass"),
        (
            host(failures=[{"task": "x", "message": "sudo: a password is required"}]),
            "root",
            "--ask-become-pass",
        ),
    ],
)
def test_a_host_that_cannot_be_had(body: dict[str, Any], name: str, fix: str) -> None:
    (report,) = read_report({"hosts": {"g1": body}}, {"g1": "ssh ops@g1"})
    assert [(c.name, fix in c.fix) for c in report.wrong] == [(name, True)]


def test_the_table_and_the_verdict() -> None:
    hosts = read_report({"hosts": {"g1": host(checks=CHECKS), "g2": host()}}, {})
    inventory = [Check("control", OK, "c1")]
    lines = render(inventory, hosts).splitlines()
    assert lines[0].split() == ["ok", "inventory", "control", "c1"]
    assert lines[2].strip() == "fix: make room on g1"
    assert verdict(inventory, hosts) == (False, "not well: g1")
    assert verdict(inventory, hosts[1:])[0]
    assert not verdict([Check("control", FAIL, "none", "add one")], [])[0]


def test_the_release_is_the_same_for_the_same_tree(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    (root / "compose").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "tests" / "test_x.py").write_text("")
    (root / "compose" / ".env").write_text("A=1\n")
    (root / "compose" / "site.env").write_text("PASSWORD=1\n")
    (root / ".gitignore").write_text("compose/site.env\n")
    (root / "up").write_text("#!/bin/sh\n")
    (root / "up").chmod(0o700)
    subprocess.run(["git", "init", "-q", root], check=True)
    one = make_release(root, tmp_path / "one.tar").read_bytes()
    (root / "compose" / ".env").touch()
    two = make_release(root, tmp_path / "two.tar").read_bytes()
    assert one == two
    with tarfile.open(tmp_path / "one.tar") as tar:
        modes = {entry.name: entry.mode for entry in tar}
    assert modes == {".gitignore": 0o644, "compose/.env": 0o644, "up": 0o755}
    (root / "compose" / ".env").write_text("A=2\n")
    assert make_release(root, tmp_path / "two.tar").read_bytes() != one


@pytest.mark.parametrize(("command", "code"), [("doctor", 1), ("apply", 1), ("backup", 0)])
def test_a_host_that_nothing_was_heard_of(
    command: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A backup asks the control node alone; the other commands ask every host."""
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {}")
    heard = {"hosts": {"c1": host()}, "changed": []}
    monkeypatch.setattr(program, "read_inventory", lambda *_: parse(document(GOOD)))
    monkeypatch.setattr(program, "_ansible", lambda *_, **__: (0, heard))
    assert program.main([command, "-i", str(inventory)]) == code
    assert ("not asked" in capsys.readouterr().out) == (code == 1)
