"""The runner processes of a run: started together, watched, stopped together."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from agl.bench.runner import READY, RunnerReport, RunnerSettings, run_runner
from agl.errors import EnvironmentFault

_START_TIMEOUT_SECONDS = 120.0
_STOP_TIMEOUT_SECONDS = 20.0


@dataclass
class _Member:
    worker_id: str
    process: BaseProcess
    channel: Connection


class RunnerPool:
    """``count`` processes named Worker-0 and up, each with an interpreter of its own."""

    def __init__(self, store_url: str, run_id: str, count: int, deadline: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._members: list[_Member] = []
        for number in range(count):
            settings = RunnerSettings(store_url, run_id, f"Worker-{number}", deadline)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=run_runner,
                args=(settings, self._stop, theirs),
                name=settings.worker_id,
                daemon=True,
            )
            process.start()
            theirs.close()
            self._members.append(_Member(settings.worker_id, process, ours))

    async def wait_ready(self) -> None:
        """Wait until every runner is about to take its first rollout.

        Raises:
            EnvironmentFault: one died, or took longer than two minutes.
        """
        limit = time.monotonic() + _START_TIMEOUT_SECONDS
        for member in self._members:
            while not member.channel.poll():
                if not member.process.is_alive() or time.monotonic() > limit:
                    raise EnvironmentFault(f"runner {member.worker_id} did not start")
                await asyncio.sleep(0.05)
            try:
                message = member.channel.recv()
            except EOFError:
                message = None
            if message != READY:
                raise EnvironmentFault(f"runner {member.worker_id} did not start")

    def gone(self) -> list[str]:
        """Return the runners that are no longer there although nobody told them to stop."""
        return [member.worker_id for member in self._members if not member.process.is_alive()]

    async def stop(self) -> list[RunnerReport]:
        """Tell every runner to finish what it is doing, and return their reports."""
        self._stop.set()
        limit = time.monotonic() + _STOP_TIMEOUT_SECONDS
        reports = [await _report(member, limit) for member in self._members]
        for member in self._members:
            await asyncio.to_thread(member.process.join, max(limit - time.monotonic(), 0.1))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.channel.close()
        return reports


async def _report(member: _Member, limit: float) -> RunnerReport:
    """Return a runner's report, or one that says why there is none."""
    while time.monotonic() < limit:
        if not member.channel.poll():
            await asyncio.sleep(0.02)
            continue
        try:
            message = member.channel.recv()
        except EOFError:
            member.process.join(1)
            code = member.process.exitcode
            return RunnerReport(member.worker_id, error=f"died with exit code {code}")
        if isinstance(message, RunnerReport):
            return message
    return RunnerReport(member.worker_id, error="did not stop in time and was killed")
