"""Which MongoDB is meant: options, variables, files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from agl.cli._processes import StoreProcesses
from agl.cli._store_options import parse
from agl.config import DEFAULT_MONGO_URI, MongoSettings
from agl.errors import AglError, EnvironmentFault, UsageError
from agl.utils.cgroup import usable_processors

URI = "mongodb://db:27017/?replicaSet=rs0"
OTHER = "mongodb://other:27017/?replicaSet=rs0"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URI", "URI_FILE", "USER", "PASSWORD_FILE", "DATABASE"):
        monkeypatch.delenv(f"AGL_MONGO_{name}", raising=False)
    monkeypatch.delenv("AGL_PARTITION_ID", raising=False)


def mongo(*arguments: str) -> MongoSettings:
    settings = parse(["--backend", "mongo", *arguments], "agl store")
    assert settings.mongo is not None
    return settings.mongo


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_defaults() -> None:
    assert mongo() == MongoSettings(DEFAULT_MONGO_URI, None, None, "agentlightning", "default")
    assert parse([], "agl store").mongo is None
    assert parse(["--backend", "mongo"], "agl store").n_workers == usable_processors()
    assert parse(["--backend", "mongo", "--n-workers", "3"], "agl store").n_workers == 3
    assert parse(["--n-workers", "auto"], "agl store").n_workers == 1


def test_options_go_before_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = write(tmp_path, "uri", f"{OTHER}\n")
    monkeypatch.setenv("AGL_MONGO_URI", URI)
    monkeypatch.setenv("AGL_MONGO_DATABASE", "mine")
    monkeypatch.setenv("AGL_PARTITION_ID", "run-7")
    assert mongo() == MongoSettings(URI, None, None, "mine", "run-7")
    given = mongo("--mongo-uri-file", file, "--database", "d", "--partition-id", "p")
    assert given == MongoSettings(OTHER, None, None, "d", "p")
    monkeypatch.setenv("AGL_MONGO_URI", "")
    monkeypatch.setenv("AGL_MONGO_URI_FILE", file)
    assert mongo().uri == OTHER


def test_a_user_and_the_file_of_the_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write(tmp_path, "pw", "p w/@:%\n")
    given = mongo("--mongo-uri", URI, "--mongo-user", "store", "--mongo-password-file", file)
    assert (given.user, given.password) == ("store", "p w/@:%")
    monkeypatch.setenv("AGL_MONGO_USER", "store")
    monkeypatch.setenv("AGL_MONGO_PASSWORD_FILE", file)
    assert mongo("--mongo-uri", URI) == given
    inside = mongo("--mongo-uri", "mongodb://u:x@db/?replicaSet=rs0")
    assert (inside.user, inside.password) == (None, None)


def test_settings_do_not_show_secrets(tmp_path: Path) -> None:
    file = write(tmp_path, "pw", "s3cret")
    given = mongo("--mongo-user", "store", "--mongo-password-file", file)
    inside = parse(["--backend", "mongo", "--mongo-uri", "mongodb://u:s3cret@db/"], "agl store")
    assert given.password == "s3cret"
    assert "s3cret" not in repr(given) + repr(inside)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mongo-uri", "http://db"], "starts with mongodb://"),
        (["--mongo-uri", URI, "--mongo-uri-file", "/x"], "not allowed with argument --mongo-uri"),
        (["--mongo-user", "u"], "no password file"),
        (["--mongo-password-file", "/x"], "no user"),
        (
            ["--mongo-uri", "mongodb://u:p@db/", "--mongo-user", "u"],
            "names a user already; give one",
        ),
        (["--mongo-uri-file", "/no/such"], "--mongo-uri-file: /no/such cannot be read"),
        (["--database", "a.b"], "argument --database: 'a.b' is no database name"),
        (["--database", "local"], "argument --database: 'local' is a database of MongoDB's own"),
        (["--partition-id", " x"], "argument --partition-id: ' x'"),
        (["--partition-id", "x" * 121], "longer than 120"),
        (["--n-workers", "many"], "is not a number of processes, from 1 to 512, or auto"),
        (["--n-workers", "513"], "is not a number of processes, from 1 to 512, or auto"),
    ],
)
def test_refused(arguments: list[str], text: str) -> None:
    with pytest.raises((UsageError, EnvironmentFault)) as refused:
        mongo(*arguments)
    assert text in str(refused.value)


@pytest.mark.parametrize("option", ["--mongo-uri", "--mongo-uri-file"])
def test_a_mongodb_for_the_memory_backend(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}: the memory backend has no use"):
        parse([option, URI], "agl store")


def test_two_variables_for_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_MONGO_URI", URI)
    monkeypatch.setenv("AGL_MONGO_URI_FILE", "/x")
    with pytest.raises(EnvironmentFault, match="both set"):
        mongo()


def test_options_from_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, "options", "# limits\n--max-requests 7 --max-waits 9\n\n--port 5000\n")
    settings = parse([f"@{file}"], "agl store")
    assert (settings.max_requests, settings.max_waits, settings.port) == (7, 9, 5000)
    bad = write(tmp_path, "bad", "--host 'x")
    with pytest.raises(UsageError, match="No closing quotation"):
        parse([f"@{bad}"], "agl store")
    with pytest.raises(UsageError, match="No such file"):
        parse(["@/no/such/file"], "agl store")


def test_a_new_partition_has_a_name_that_stays(tmp_path: Path) -> None:
    arguments = ["--backend", "mongo", "--partition-id", "new"]
    settings = parse(arguments, "agl store")
    names = {StoreProcesses(arguments, "agl store", settings).partition_id for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert name.startswith("pt-")
        assert len(name) == 15


def test_what_cannot_be_used_is_refused_at_a_reload(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    arguments = ["--backend", "mongo", "--api-token-file", str(token)]
    processes = StoreProcesses(arguments, "agl store", parse(arguments, "agl store"))
    token.unlink()
    with pytest.raises(AglError, match="--api-token-file"):
        processes.remake()
