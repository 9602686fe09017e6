"""The init service: secrets made once, operator's files preferred, configuration rendered."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault, UsageError
from agl.ops import init_bundle
from agl.ops.init_bundle import (
    SECRETS,
    Folders,
    ensure_secret,
    host_label,
    main,
    render,
    supply_tls,
)

REPOSITORY = Path(__file__).resolve().parents[2]
VALUES = {"__AGL_HOST__": "node7", "__AGL_NODE_PORT__": "9100"}
TOKEN = SECRETS["api-token"]
PASSWORD = SECRETS["grafana-admin-password"]

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a file to the uid of another service"
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    operator = tmp_path / "operator"
    operator.mkdir()
    return Folders(tmp_path / "secrets", operator, tmp_path / "config", tmp_path / "tls")


def run_init(folders: Folders, *arguments: str) -> int:
    places = [
        f"--secrets-dir={folders.secrets}",
        f"--operator-dir={folders.operator}",
        f"--config-dir={folders.config}",
        "--compose-file=compose.test.yml",
    ]
    return main([*places, *arguments], "agl stack init")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@as_root
class TestCertificate:
    PEM = b"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"

    def test_it_is_taken_over_and_removed(self, folders: Folders) -> None:
        folders.tls.mkdir()
        source, copy = folders.tls / "tls-cert", folders.secrets / "tls-cert"
        assert supply_tls("tls-cert", folders) == ""
        source.write_bytes(self.PEM)
        assert supply_tls("tls-cert", folders) == "taken over"
        assert (copy.read_bytes(), mode(copy), copy.stat().st_uid) == (self.PEM, 0o400, 10001)
        assert supply_tls("tls-cert", folders) == "there already"
        source.write_bytes(b"")
        assert supply_tls("tls-cert", folders) == "removed"
        assert not copy.exists()

    @pytest.mark.parametrize("content", [b"no certificate", PEM + b"x" * 2**20])
    def test_what_is_none_is_refused(self, folders: Folders, content: bytes) -> None:
        folders.tls.mkdir()
        (folders.tls / "tls-key").write_bytes(content)
        with pytest.raises(EnvironmentFault, match="AGL_TLS_KEY does not name a PEM file"):
            run_init(folders, f"--tls-dir={folders.tls}")


@as_root
class TestSecrets:
    def test_missing_secrets_are_created_for_their_consumers_alone(self, folders: Folders) -> None:
        for secret in SECRETS.values():
            assert ensure_secret(secret, folders) == "created"
            path = folders.secrets / secret.name
            status = path.stat()
            assert (status.st_uid, status.st_gid) == (secret.uid, secret.gid)
            assert mode(path) == 0o400
            assert len(path.read_bytes()) >= 40
        texts = {(folders.secrets / name).read_bytes() for name in SECRETS}
        assert len(texts) == len(SECRETS)

    def test_the_key_file_is_one_that_mongodb_takes(self, folders: Folders) -> None:
        ensure_secret(SECRETS["mongo-keyfile"], folders)
        key = (folders.secrets / "mongo-keyfile").read_text()
        assert re.fullmatch(r"[A-Za-z0-9+/=]{700,1024}", key)

    def test_running_again_changes_nothing(self, folders: Folders) -> None:
        ensure_secret(TOKEN, folders)
        path = folders.secrets / TOKEN.name
        before = (path.read_bytes(), path.stat().st_ino)
        assert ensure_secret(TOKEN, folders) == "there already"
        assert (path.read_bytes(), path.stat().st_ino) == before

    def test_the_operators_file_wins_over_a_generated_one(self, folders: Folders) -> None:
        ensure_secret(TOKEN, folders)
        (folders.operator / TOKEN.name).write_text("chosen-by-hand\n")
        assert ensure_secret(TOKEN, folders) == "taken from compose/secrets"
        path = folders.secrets / TOKEN.name
        assert path.read_bytes() == b"chosen-by-hand"
        assert (path.stat().st_uid, mode(path)) == (TOKEN.uid, 0o400)
        assert ensure_secret(TOKEN, folders) == "yours is in use"

    def test_a_wrong_owner_or_mode_is_put_right_and_the_text_kept(self, folders: Folders) -> None:
        ensure_secret(TOKEN, folders)
        path = folders.secrets / TOKEN.name
        text = path.read_bytes()
        os.chown(path, 0, 0)
        path.chmod(0o644)
        assert ensure_secret(TOKEN, folders) == "there already"
        assert path.read_bytes() == text
        assert (path.stat().st_uid, mode(path)) == (TOKEN.uid, 0o400)

    def test_an_empty_file_and_remains_of_a_crash_are_replaced(self, folders: Folders) -> None:
        folders.secrets.mkdir()
        (folders.secrets / TOKEN.name).touch()
        (folders.secrets / ".tmp-crashed").write_text("half")
        assert ensure_secret(TOKEN, folders) == "created"
        assert [path.name for path in folders.secrets.iterdir()] == [TOKEN.name]

    def test_a_failed_write_keeps_the_old_file(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ensure_secret(TOKEN, folders)
        before = (folders.secrets / TOKEN.name).read_bytes()
        (folders.operator / TOKEN.name).write_text("new")

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(init_bundle.os, "fsync", full)
        with pytest.raises(EnvironmentFault, match="No space left on device"):
            run_init(folders, "--secret=api-token")
        assert (folders.secrets / TOKEN.name).read_bytes() == before
        assert len(list(folders.secrets.iterdir())) == 1

    def test_main_says_where_secrets_are_and_never_what_they_are(
        self, folders: Folders, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_init(folders, "--secret=api-token", "--secret=grafana-admin-password") == 0
        told = capsys.readouterr().out
        assert "init: api-token: created" in told
        show = "docker compose -f compose.test.yml run --rm --no-deps init show"
        assert f"{show} grafana-admin-password" in told
        for name in ("api-token", "grafana-admin-password"):
            assert (folders.secrets / name).read_text() not in told

    def test_show_prints_the_secret_alone(
        self, folders: Folders, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ensure_secret(PASSWORD, folders)
        assert run_init(folders, "show", PASSWORD.name) == 0
        assert capsys.readouterr().out == (folders.secrets / PASSWORD.name).read_text() + "\n"


class TestBadOperatorSecrets:
    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "is empty"),
            (b"\n", "is empty"),
            (b"x" * 4097, "larger than 4096 bytes"),
            (b"\xff\xfe", "not UTF-8"),
            (b"two\nlines", "visible ASCII"),
            (b"with blank", "visible ASCII"),
        ],
    )
    def test_is_refused_in_one_line_and_nothing_is_written(
        self, folders: Folders, content: bytes, problem: str
    ) -> None:
        (folders.operator / TOKEN.name).write_bytes(content)
        with pytest.raises(EnvironmentFault, match=problem) as caught:
            ensure_secret(TOKEN, folders)
        assert "compose/secrets/api-token" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert list(folders.secrets.iterdir()) == []

    def test_a_folder_in_its_place_is_named(self, folders: Folders) -> None:
        (folders.operator / TOKEN.name).mkdir()
        with pytest.raises(EnvironmentFault, match="cannot read compose/secrets/api-token: Is a"):
            ensure_secret(TOKEN, folders)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
    def test_an_unreadable_file_is_named(self, folders: Folders) -> None:
        path = folders.operator / TOKEN.name
        path.write_text("secret")
        path.chmod(0)
        with pytest.raises(EnvironmentFault, match="Permission denied - make it a readable"):
            ensure_secret(TOKEN, folders)

    def test_the_largest_allowed_is_taken(self, folders: Folders) -> None:
        (folders.operator / TOKEN.name).write_bytes(b"x" * 4095 + b"\n")
        assert init_bundle.operator_secret(TOKEN, folders.operator) == b"x" * 4095

    def test_a_password_may_have_blanks_and_accents(self, folders: Folders) -> None:
        (folders.operator / PASSWORD.name).write_text("correct hörse\n", encoding="utf-8")
        assert init_bundle.operator_secret(PASSWORD, folders.operator) == "correct hörse".encode()


class TestUsage:
    def test_an_unknown_secret_is_refused_with_the_known_ones(self, folders: Folders) -> None:
        for arguments in (("--secret=api-tokn",), ("show", "api-tokn")):
            with pytest.raises(UsageError, match=r"unknown secret 'api-tokn' \(known: api-token, "):
                run_init(folders, *arguments)

    def test_show_of_a_missing_secret_says_how_to_start(self, folders: Folders) -> None:
        with pytest.raises(EnvironmentFault, match="there is no api-token yet - start with: docke"):
            run_init(folders, "show", "api-token")

    @pytest.mark.parametrize("port", ["0", "65536", "http"])
    def test_a_port_that_is_none_is_refused(self, folders: Folders, port: str) -> None:
        with pytest.raises(UsageError, match="--node-exporter-port: "):
            run_init(folders, f"--node-exporter-port={port}")

    def test_the_host_label_defaults_to_the_hosts_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node-3")
        assert host_label("") == "gpu-node-3"
        assert host_label("rack1:gpu.3") == "rack1:gpu.3"

    @pytest.mark.parametrize("label", ['a"b', "a b", "-a", "a\nb", "a" * 254])
    def test_a_host_label_that_would_break_yaml_is_refused(self, label: str) -> None:
        with pytest.raises(UsageError, match="AGL_HOST_LABEL"):
            host_label(label)


class TestRender:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        source = tmp_path / "repository" / "prometheus"
        (source / "rules").mkdir(parents=True)
        (source / "main.yml").write_text('host: "__AGL_HOST__:__AGL_NODE_PORT__"\n')
        (source / "rules" / "agl.yml").write_text("groups: []\n")
        (source / "board.json").write_text('{"text": "__AGL_HOST__"}')
        (source / ".main.yml.swp").write_text("editor")
        (source / "tests").mkdir()
        (source / "tests" / "agl.yml").write_text("tests: []\n")
        return source

    def test_copies_what_services_need_for_everybody_to_read(
        self, source: Path, tmp_path: Path
    ) -> None:
        # As git makes them under umask 077.
        for path in [source, *source.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        target = tmp_path / "config" / "prometheus"
        changes = render(source, target, VALUES)
        assert changes.created == ("board.json", "main.yml", "rules/agl.yml")
        assert not changes.worth_loading
        assert sorted(p.name for p in target.rglob("*") if p.is_file()) == [
            "agl.yml",
            "board.json",
            "main.yml",
        ]
        assert (target / "main.yml").read_text() == 'host: "node7:9100"\n'
        assert "__AGL_HOST__" in (target / "board.json").read_text()
        assert {mode(p) for p in target.rglob("*") if p.is_file()} == {0o644}
        assert {mode(p) for p in (target, target / "rules")} == {0o755}

    def test_again_changes_nothing(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "config"
        render(source, target, VALUES)
        inodes = {path: path.stat().st_ino for path in target.rglob("*")}
        assert not render(source, target, VALUES).worth_loading
        assert {path: path.stat().st_ino for path in target.rglob("*")} == inodes

    def test_updates_adds_and_removes(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "config"
        render(source, target, VALUES)
        (source / "main.yml").write_text("host: changed\n")
        (source / "rules" / "agl.yml").unlink()
        (source / "rules" / "new.yml").write_text("groups: []\n")
        changes = render(source, target, VALUES)
        assert changes.created == ("rules/new.yml",)
        assert changes.updated == ("main.yml",)
        assert changes.removed == ("rules/agl.yml",)
        assert changes.worth_loading
        assert not (target / "rules" / "agl.yml").exists()

    def test_an_unknown_placeholder_is_named(self, source: Path, tmp_path: Path) -> None:
        (source / "main.yml").write_text("x: __AGL_TYPO__\n")
        with pytest.raises(EnvironmentFault, match=r"main\.yml .*__AGL_TYPO__"):
            render(source, tmp_path / "config", VALUES)
        assert not (tmp_path / "config").exists()

    @pytest.mark.parametrize("state", ["missing", "empty"])
    def test_an_incomplete_clone_is_named(self, tmp_path: Path, state: str) -> None:
        source = tmp_path / "repository" / "prometheus"
        if state == "empty":
            source.mkdir(parents=True)
        with pytest.raises(EnvironmentFault, match="repository/prometheus holds no file"):
            render(source, tmp_path / "config", VALUES)

    def test_main_renders_this_repository(
        self, folders: Folders, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = [f"--render={REPOSITORY}", "--host-label=node7", "--node-exporter-port=9199"]
        arguments.append("--links-url=https://ops.example/")
        arguments.append("--runbooks-url=https://runbooks.example/agl/")
        assert run_init(folders, *arguments) == 0
        config = (folders.config / "prometheus" / "prometheus.base.yml").read_text()
        assert 'host: "node7"' in config
        assert "node-exporter:9199" in config
        rules = (folders.config / "prometheus" / "alerts" / "meta.yml").read_text()
        assert "runbook_url: https://runbooks.example/agl/runbooks/Watchdog" in rules
        assert "dashboard_url: https://ops.example/d/agl-" in rules
        assert (folders.config / "grafana/provisioning/datasources/prometheus.yml").is_file()
        assert "HUP" not in capsys.readouterr().out
        arguments[1] = "--host-label=other"
        assert run_init(folders, *arguments) == 0
        told = capsys.readouterr().out
        assert "docker compose -f compose.test.yml kill -s HUP prometheus" in told
        assert "init: grafana/provisioning: up to date" in told


def test_links_of_grafanas_dashboards_lead_to_the_runbooks_and_those_of_panels_stay(
    folders: Folders,
) -> None:
    base = "https://runbooks.example"
    assert run_init(folders, f"--render={REPOSITORY}", f"--runbooks-url={base}") == 0
    for path in sorted((REPOSITORY / "grafana/dashboards").glob("*.json")):
        before = path.read_text("utf-8")
        count = before.count("/runbooks/")
        assert count, path
        of_grafana = (folders.config / "grafana/dashboards" / path.name).read_text("utf-8")
        assert of_grafana.count(f"{base}/runbooks/") == of_grafana.count("/runbooks/") == count
        json.loads(of_grafana)
        assert (folders.config / "panels/dashboards" / path.name).read_text("utf-8") == before


@pytest.mark.parametrize("url", ["ops.example", "https://a b", 'https://a"b', "https://a\\b"])
def test_an_address_that_would_break_a_link_is_refused(url: str, folders: Folders) -> None:
    with pytest.raises(UsageError, match=r"--runbooks-url: .* AGL_RUNBOOKS_EXTERNAL_URL"):
        run_init(folders, f"--runbooks-url={url}")


def test_the_parser_needs_no_option() -> None:
    parsed = init_bundle._parser("agl stack init").parse_args([])
    assert isinstance(parsed, argparse.Namespace)
    assert (parsed.secret, parsed.render, parsed.action) == ([], None, None)
