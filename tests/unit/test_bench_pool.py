"""Crews of real processes: what ends them, and what cannot keep them from ending."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from agl.bench.interrupts import Interruption
from agl.bench.pool import Crew, Failure, Signals


def wait_for_the_end(pids: str, signals: Signals) -> str:
    """Say who one is, and work until told to stop."""
    Path(pids, str(os.getpid())).touch()
    signals.wait_to_begin()
    while not signals.stopped(60):
        pass
    return "stopped"


async def test_a_crew_outlives_sigterm_and_ends_though_one_was_killed_while_it_waited(
    tmp_path: Path,
) -> None:
    crew = Crew(wait_for_the_end, dict.fromkeys("abc", str(tmp_path)))
    try:
        await crew.wait_ready()
        pids = [int(name) for name in await asyncio.to_thread(os.listdir, tmp_path)]
        crew.go()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        os.kill(pids[0], signal.SIGKILL)
    finally:
        outcomes = list((await crew.stop(60)).values())
    assert outcomes.count("stopped") == 2
    assert [one.reason for one in outcomes if isinstance(one, Failure)] == [
        "died with exit code -9"
    ]


def test_a_signal_that_comes_twice_at_once_is_one_wish() -> None:
    ends: list[str] = []
    wish = Interruption()
    wish.stop_with(lambda: ends.append("now"))
    wish.take(signal.SIGTERM, None)
    wish.take(signal.SIGTERM, None)
    assert ends == ["now"]
    assert wish.reason == "interrupted by SIGTERM"
