"""Options and outputs that the commands of ``agl bench`` have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from agl.bench.results import Figure, Machine, Result
from agl.cli import main
from agl.cli._bench_options import deliver, keep_apart, writable
from agl.errors import EnvironmentFault, UsageError

Capture = pytest.CaptureFixture[str]
MACHINE = Machine(system="x", processor="x", cores=2, memory=1, python="3.11", load=0.0)


def result(**changed: object) -> Result:
    rate = Figure(name="rate", unit="1/s", better="higher", samples=(1.0,))
    values: dict[str, object] = {
        "kind": "load", "name": "closed", "parameters": {}, "figures": (rate,), "started": 1.0,
        "ended": 2.0, "machine": MACHINE,
    }  # fmt: skip
    return Result.model_validate({**values, **changed})


@pytest.mark.parametrize("text", ["", ".", "/nowhere/x", "/proc/x"])
def test_a_file_that_cannot_be_written_is_refused_beforehand(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"no file in a folder|cannot be written"):
        writable(text)


def test_looking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    assert writable(str(tmp_path / "new"))
    assert writable("/dev/null")
    assert list(tmp_path.iterdir()) == []


def test_outputs_take_the_place_of_no_other_file(tmp_path: Path) -> None:
    a = tmp_path / "a.json"
    keep_apart({"--json": "-", "--html": None, "--x": "/dev/null", "--y": "/dev/null"}, (a,))
    with pytest.raises(UsageError, match="is what is to be read"):
        keep_apart({"--json": f"{tmp_path}/../{tmp_path.name}/a.json"}, (a,))
    with pytest.raises(UsageError, match=r"--html .* is what --json writes"):
        keep_apart({"--json": a, "--html": a})


def test_one_output_that_fails_keeps_nothing_from_the_others(
    tmp_path: Path, capsys: Capture
) -> None:
    def fail() -> None:
        raise EnvironmentFault("--html /x: No space left on device")

    out = tmp_path / "a.json"
    with pytest.raises(EnvironmentFault, match="No space left"):
        deliver(result(problems=("3 failed",)), "the text", str(out), "agl", fail)
    assert out.is_file()
    shown = capsys.readouterr()
    assert shown.out == "the text\n"
    assert "3 failed" in shown.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("micro worker --operations 9999999999", "whole number from 1 to 1000000000"),
        ("load --seconds 1e12", "of a year at most"),
        ("load --server-pid 999999999", "there is no process 999999999 here"),
        ("pair --a {port} --b {port} --ready-path health", "does not begin with /"),
        ("archive --output x --end now-1h", "--end needs --start"),
        ("archive --output x --start then", "--start: 'then' is not a time"),
        ("analyze --start now-1h --end now-2h", "--start (now-1h) must be before --end (now-2h)"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(words: str, told: str, capsys: Capture) -> None:
    assert main(["bench", *words.split()]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.count("\n") == 1
