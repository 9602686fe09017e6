"""The shared folder: what prepares it, what reads it, who removes it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from processes import environment, unprivileged_folder
from prometheus_client import REGISTRY

from agl.errors import EnvironmentFault
from agl.utils.metrics import get_prometheus_registry, shutdown_metrics
from agl.utils.multiprocess import prepare_reader_folder, prepare_writer_folder


def run_python(code: str, **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_import_leaves_prometheus_client_alone() -> None:
    code = "import sys, agl.utils.metrics; print('prometheus_client' in sys.modules)"
    assert run_python(code) == "False\n"


def test_setup_makes_a_folder_that_forked_children_share_and_exit_removes() -> None:
    out = run_python(
        """
        import os
        from agl.utils.metrics import (
            PrometheusMetricsBackend, get_prometheus_registry, setup_multiprocess_prometheus,
            shutdown_metrics,
        )
        setup_multiprocess_prometheus()
        setup_multiprocess_prometheus()
        folder = os.environ["PROMETHEUS_MULTIPROC_DIR"]
        from prometheus_client import Gauge, generate_latest
        backend = PrometheusMetricsBackend()
        backend.register_counter("a.total", ["x"])
        gauge = Gauge("live", "a gauge", multiprocess_mode="livesum")
        for amount in (1, 2):
            child = os.fork()
            if child == 0:
                backend.inc("a.total", {"x": "1"}, amount)
                gauge.set(5)
                os._exit(0)
            os.waitpid(child, 0)
            if amount == 1:
                class Worker:
                    pid = child
                shutdown_metrics(None, Worker())
        print(folder)
        print(generate_latest(get_prometheus_registry()).decode())
        """
    )
    folder, text = out.split("\n", 1)
    assert Path(folder).name.startswith("agl-metrics-")
    assert not Path(folder).exists()
    assert 'a_total{x="1"} 3.0\n' in text
    assert "\nlive 0.0\n" in text  # the children have ended, said or not


def test_setup_keeps_and_warns_about_a_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "counter_1.db").touch()
    out = run_python(
        """
        import logging
        logging.basicConfig()
        from agl.utils.metrics import setup_multiprocess_prometheus, shutdown_metrics
        setup_multiprocess_prometheus()
        shutdown_metrics()
        """,
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
    )
    assert f"WARNING:agl.utils.multiprocess:PROMETHEUS_MULTIPROC_DIR is set to {tmp_path}" in out
    assert (tmp_path / "counter_1.db").exists()


def test_registry_follows_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert get_prometheus_registry() is REGISTRY
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert get_prometheus_registry() is not REGISTRY
    assert list(get_prometheus_registry().collect()) == []


def test_shutdown_leaves_a_folder_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    file = tmp_path / f"gauge_livesum_{os.getpid()}.db"
    file.touch()
    shutdown_metrics(None, None, "more", other="arguments")
    assert file.exists()


def test_writer_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert prepare_writer_folder(str(folder)) == folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("prepare", [prepare_writer_folder, prepare_reader_folder])
@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("", "is set, but empty - name a folder"),
        ("{tmp}/no/parent", "/no/parent is missing and cannot be created .* - create it"),
        ("{tmp}/file", "/file is not a directory - "),
        ("{tmp}/file/below", "cannot be created"),
        ("{tmp}/nul\0", "cannot be created"),
    ],
)
def test_folder_faults(prepare: object, folder: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert callable(prepare)
    with pytest.raises(EnvironmentFault, match=text):
        prepare(folder.format(tmp=tmp_path))


def test_writer_folder_that_takes_no_file() -> None:
    with unprivileged_folder(0o500) as folder:
        prepare_reader_folder(str(folder))
        with pytest.raises(EnvironmentFault, match=r"is not writable for uid \d+ .* - make it"):
            prepare_writer_folder(str(folder))


def test_a_full_folder_does_not_keep_a_store_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert prepare_writer_folder(str(tmp_path)) == tmp_path
