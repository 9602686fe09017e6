"""``./scripts/bench`` without a name: a measurement that fails takes nothing else along."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from bench.all import Session, Step
from bench.documents import figure, flat, unit_of

from agl.bench.results import Figure, Result

WRITES = "import shutil, sys; shutil.copy({source!r}, sys.argv[-1])"


@pytest.fixture
def written(tmp_path: Path) -> str:
    """A result on disk, as a measurement would have left it."""
    path = tmp_path / "source"
    rate = Figure(name="rate", unit="1/s", better="higher", samples=(1.0,))
    Result(kind="load", name="closed", parameters={}, figures=(rate,), started=0, ended=1).write(
        path
    )
    return str(path)


def session(tmp_path: Path, seconds: float) -> Session:
    folder = tmp_path / "out"
    folder.mkdir()
    return Session(folder, time.monotonic() + seconds)


def test_results_are_kept_beside_what_was_said(tmp_path: Path, written: str) -> None:
    found = session(tmp_path, 60)
    program = f"print('hello'); {WRITES.format(source=written)}"
    assert found.play(Step("one", (sys.executable, "-c", program), 0))
    assert [result.kind for result in found.results] == ["load"]
    assert (tmp_path / "out" / "one.log").read_text() == "hello\n"
    assert found.remarks == []


def test_a_measurement_without_a_result_is_named_with_its_last_words(tmp_path: Path) -> None:
    found = session(tmp_path, 60)
    program = "import sys; print('no database'); sys.exit(4)"
    assert not found.play(Step("mongo", (sys.executable, "-c", program), 0))
    assert found.remarks == ["mongo: no result (exit status 4): no database"]


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    found = session(tmp_path, 1)
    assert not found.play(Step("soak", (sys.executable, "-c", "1"), 60))
    assert found.remarks == ["soak: left out, as the time was up"]


@pytest.mark.parametrize(
    ("name", "unit", "factor"),
    [
        ("p50_ms", "s", 1e-3),
        ("server_cpu_us_per_request", "s", 1e-6),
        ("rollouts_per_second", "1/s", 1.0),
        ("idle_mib", "bytes", 1 << 20),
        ("calls dequeue ratio", "ratio", 1.0),
    ],
)
def test_units_come_from_names(name: str, unit: str, factor: float) -> None:
    assert unit_of(name) == (unit, factor)
    assert figure(name, [2.0]).samples == (2 * factor,)
    better = "higher" if unit == "1/s" else "lower"
    assert figure(name, [2.0]).better == better


def test_nested_reports_become_figures() -> None:
    found = flat("", {"plain": {"calls": {"start": {"ratio": 1.1}}}, "note": "text", "on": True})
    assert [(one.name, one.samples) for one in found] == [("plain calls start ratio", (1.1,))]
