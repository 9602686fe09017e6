"""The preflight of a store that serves HTTPS."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from processes import make_certificate

from agl.ops.preflight_tls import check_pair

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``compose/`` with a certificate, its key, both in one file, and a key of another."""
    folder = tmp_path_factory.mktemp("compose")
    for name in ("own", "other"):
        make_certificate(folder, name)
    (folder / "both.pem").write_text(
        (folder / "own.pem").read_text() + (folder / "own.key").read_text()
    )
    (folder / "junk.pem").write_text("junk")
    return folder


def findings(folder: Path, cert: str, key: str) -> list[tuple[str, str, str, str]]:
    given = {"AGL_TLS_CERT": cert, "AGL_TLS_KEY": key}
    return list(check_pair(lambda name, default: given.get(name) or default, folder))


def test_plain_http_is_not_spoken_of(folder: Path) -> None:
    assert findings(folder, "", "") == []


@pytest.mark.parametrize(("cert", "key"), [("./own.pem", "./own.key"), ("./both.pem", "")])
def test_a_pair(folder: Path, cert: str, key: str) -> None:
    [(name, status, _, fix)] = findings(folder, cert, key)
    assert (name, status, fix) == ("AGL_TLS_CERT", "ok", "")
    if key:
        [(name, status, _, _)] = findings(folder, str(folder / cert), str(folder / key))
        assert (name, status) == ("AGL_TLS_CERT", "ok")


@pytest.mark.parametrize(
    ("cert", "key", "name", "words"),
    [
        ("", "./own.key", "AGL_TLS_KEY", "without AGL_TLS_CERT"),
        ("./own.pem", "", "AGL_TLS_KEY", "own.pem holds no private key"),
        ("./own.pem", "./other.key", "AGL_TLS_KEY", "is not that of the certificate"),
        ("./gone.pem", "./own.key", "AGL_TLS_CERT", "No such file"),
        ("./own.pem", "./gone.key", "AGL_TLS_KEY", "No such file"),
        ("./junk.pem", "./own.key", "AGL_TLS_CERT", "holds no certificate"),
        (".", "./own.key", "AGL_TLS_CERT", "'.' for the name of a volume"),
        ("./", "./own.key", "AGL_TLS_CERT", "Is a directory"),
        ("own.pem", "./own.key", "AGL_TLS_CERT", "for the name of a volume"),
        ("./own.pem", "secrets/own.key", "AGL_TLS_KEY", "for the name of a volume"),
    ],
)
def test_what_would_fail_later_is_named_with_a_remedy(
    folder: Path, cert: str, key: str, name: str, words: str
) -> None:
    [(named, status, found, fix)] = findings(folder, cert, key)
    assert (named, status) == (name, "fail")
    assert words in found
    assert fix


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    [(_, status, _, _)] = findings(Path("/nowhere"), "~/own.pem", "~/own.key")
    assert status == "ok"


def test_a_key_for_root_alone_is_left_to_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def access(path: Path, _: int) -> bool:
        return path.suffix != ".key"

    monkeypatch.setattr(os, "access", access)
    assert findings(folder, "./own.pem", "./other.key") == []
