"""Settings and the environment."""

from __future__ import annotations

import ast
import dataclasses
import os
from pathlib import Path

import pytest

import agl
from agl.config import (
    MULTIPROC_DIR_VARIABLE,
    EnvironmentSettings,
    ExporterSettings,
    StoreSettings,
    load_environment,
    process_environment,
    set_multiproc_dir,
)
from agl.errors import EnvironmentFault


def test_defaults_are_upstreams() -> None:
    store, exporter = StoreSettings(), ExporterSettings()
    assert (store.host, store.port, store.n_workers) == ("0.0.0.0", 4747, 1)
    assert (exporter.host, exporter.port) == ("0.0.0.0", 4748)
    assert exporter.metrics_path == "/v1/prometheus"


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        StoreSettings().port = 1  # type: ignore[misc]  # the assignment is what is tested


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, EnvironmentSettings()),
        ({"AGL_LOG_FORMAT": ""}, EnvironmentSettings()),
        ({"AGL_LOG_FORMAT": " JSON "}, EnvironmentSettings(log_format="json")),
        ({MULTIPROC_DIR_VARIABLE: ""}, EnvironmentSettings(multiproc_dir="")),
        ({"AGL_TLS_CERT": "", "AGL_TLS_KEY": ""}, EnvironmentSettings()),
        (
            {"AGL_TLS_CERT": "/c", "AGL_TLS_KEY": "/k"},
            EnvironmentSettings(tls_cert=Path("/c"), tls_key=Path("/k")),
        ),
        ({MULTIPROC_DIR_VARIABLE: "/x"}, EnvironmentSettings(multiproc_dir="/x")),
    ],
)
def test_environment(environ: dict[str, str], expected: EnvironmentSettings) -> None:
    assert load_environment(environ) == expected


def test_bad_log_format_names_variable_value_and_remedy() -> None:
    with pytest.raises(EnvironmentFault, match="AGL_LOG_FORMAT is 'xml' - set it to one of auto"):
        load_environment({"AGL_LOG_FORMAT": "xml"})


def test_multiproc_dir_can_be_set_and_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTIPROC_DIR_VARIABLE, "/before")
    set_multiproc_dir(Path("/after"))
    assert load_environment().multiproc_dir == "/after"
    set_multiproc_dir(None)
    assert load_environment().multiproc_dir is None
    assert MULTIPROC_DIR_VARIABLE not in os.environ


def test_process_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_TEST", "before")
    copy = process_environment()
    copy["AGL_TEST"] = "after"
    assert os.environ["AGL_TEST"] == process_environment()["AGL_TEST"] == "before"


def test_nothing_else_reads_the_environment() -> None:
    package = Path(agl.__file__).parent
    readers = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv", "environb", "putenv")
    }
    runs_before_anything_is_installed = {"ops/preflight.py"}
    assert readers - runs_before_anything_is_installed == {"config.py"}
