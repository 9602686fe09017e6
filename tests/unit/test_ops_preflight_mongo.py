"""The preflight of the bundle on MongoDB."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from agl.config import MOST_SERVER_PROCESSES
from agl.ops import preflight_mongo
from agl.ops.preflight_mongo import (
    check_cache,
    check_data,
    check_database,
    check_external,
    check_processor,
    check_workers,
)

GIB = 1 << 30


def given(**variables: str):  # type: ignore[no-untyped-def]
    return lambda name, default: variables.get(name) or default


def verdicts(findings: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str]]:
    return [(name, status) for name, status, _, _ in findings]


@pytest.mark.parametrize(
    ("uri", "verdict"),
    [
        ("", []),
        ("mongodb://a:b@h:1/?replicaSet=x", [("AGL_MONGO_URI", "ok")]),
        ("mongodb+srv://a:b@h/", [("AGL_MONGO_URI", "ok")]),
        ("https://a:secret@h", [("AGL_MONGO_URI", "fail")]),
        ("mongodb://a secret", [("AGL_MONGO_URI", "fail")]),
        ("mongodb://127.0.0.1:27017/", [("AGL_MONGO_URI", "fail")]),
        ("mongodb://u:secret@localhost/?replicaSet=x", [("AGL_MONGO_URI", "fail")]),
        ("mongodb://h,[::1]:1/", [("AGL_MONGO_URI", "fail")]),
        ("mongodb://localhost.lan/", [("AGL_MONGO_URI", "ok")]),
    ],
)
def test_a_connection_string_is_judged_and_not_shown(
    uri: str, verdict: list[tuple[str, str]]
) -> None:
    findings = list(check_external(given(AGL_MONGO_URI=uri)))
    assert verdicts(findings) == verdict
    assert "secret" not in str(findings)


@pytest.mark.parametrize("name", ["agentlightning", "a-b_1"])
def test_names_of_databases(name: str) -> None:
    assert not list(check_database(given(AGL_MONGO_DATABASE=name)))


@pytest.mark.parametrize("name", ["a/b c", "a.b", "local", "x" * 64])
def test_what_is_no_name_of_a_database(name: str) -> None:
    found = verdicts(check_database(given(AGL_MONGO_DATABASE=name)))
    assert found == [("AGL_MONGO_DATABASE", "fail")]


@pytest.mark.parametrize("workers", ["auto", "1", "32", str(MOST_SERVER_PROCESSES)])
def test_numbers_of_server_processes(workers: str) -> None:
    assert not list(check_workers(given(AGL_N_WORKERS=workers)))


@pytest.mark.parametrize("workers", ["0", "-1", "many", "1.5", str(MOST_SERVER_PROCESSES + 1)])
def test_what_is_no_number_of_server_processes(workers: str) -> None:
    assert verdicts(check_workers(given(AGL_N_WORKERS=workers))) == [("AGL_N_WORKERS", "fail")]


@pytest.mark.parametrize(
    ("architecture", "cpuinfo", "status"),
    [
        ("x86_64", "processor : 0\nflags\t\t: fpu sse avx avx2\n", "ok"),
        ("x86_64", "processor : 0\nflags\t\t: fpu sse avx2x\n", "fail"),
        ("aarch64", "Features\t: fp asimd atomics\n", "ok"),
        ("aarch64", "Features\t: fp asimd\n", "fail"),
    ],
)
def test_processors(architecture: str, cpuinfo: str, status: str) -> None:
    assert verdicts(check_processor(architecture, cpuinfo)) == [("processor", status)]


def test_this_machines_processor_is_read() -> None:
    assert "processor" in preflight_mongo.cpuinfo()


@pytest.mark.parametrize(
    ("cache", "limit", "status"),
    [
        ("1.5", 4 * GIB, None),
        ("2", 4 * GIB, "warn"),
        ("3.6", 4 * GIB, "fail"),
        ("0.25", GIB, None),
        ("0.1", 4 * GIB, "fail"),
        ("1,5", 4 * GIB, "fail"),
    ],
)
def test_the_cache_has_to_fit(cache: str, limit: int, status: str | None) -> None:
    findings = list(check_cache(given(AGL_MONGO_CACHE_GB=cache), limit))
    assert verdicts(findings) == ([("AGL_MONGO_CACHE_GB", status)] if status else [])
    for *_, fix in findings:
        repaired = fix.partition("AGL_MONGO_CACHE_GB=")[2]
        assert not list(check_cache(given(AGL_MONGO_CACHE_GB=repaired), limit))


def test_memory_that_holds_not_even_the_smallest_cache() -> None:
    (finding,) = check_cache(given(AGL_MONGO_CACHE_GB="0.25"), 100 << 20)
    assert finding[:2] == ("AGL_MONGO_MEMORY", "fail")
    assert not list(check_cache(given(AGL_MONGO_CACHE_GB="0.25"), 768 << 20))


def test_where_the_data_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(check_data(given()))
    assert not list(check_data(given(AGL_MONGO_DATA="a_volume-2")))
    for place in ("./data", str(tmp_path / "absent"), str(tmp_path)):
        (finding,) = check_data(given(AGL_MONGO_DATA=place))
        assert finding[1] == "fail"
        assert finding[3]
    monkeypatch.setattr(preflight_mongo, "MONGO_UID", os.getuid())
    (finding,) = check_data(given(AGL_MONGO_DATA=str(tmp_path)))
    assert finding[1] == "ok"
