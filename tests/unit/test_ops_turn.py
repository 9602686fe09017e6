"""One command at a time on a checkout, and signals that interrupt it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agl.ops.console import Console
from agl.ops.layout import Layout
from agl.ops.turn import interruptible, turn

HOLDER = """
import sys
from pathlib import Path
from agl.ops.console import Console
from agl.ops.layout import Layout
from agl.ops.turn import turn
with turn(Layout(Path(sys.argv[1]), {}), Console({})):
    print("mine", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "compose").mkdir()
    return Layout(tmp_path, {})


def test_the_second_waits_for_the_first_and_says_so(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", HOLDER, str(layout.root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout and first.stdout.readline() == "mine\n"

        class Ending(Console):
            def mark(self, status: str, text: str) -> None:
                super().mark(status, text)
                first.kill()

        with turn(layout, Ending({})):
            assert first.wait(10) == -signal.SIGKILL
    assert "waiting for its end" in capsys.readouterr().out
    assert list(layout.compose_dir.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup, for one, has SIGHUP ignored
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(number)
            pytest.fail("it was not heard")
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
