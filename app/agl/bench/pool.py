"""Processes that work at the same time: started together, watched, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar, cast

from agl.errors import EnvironmentFault

S = TypeVar("S")
R = TypeVar("R")

_READY = "ready"
_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_START_POLL_SECONDS = 0.01
_PRELOAD = ("agl.bench.steadfast",)


@dataclass(frozen=True)
class Signals:
    """What a process of a crew hears, and how it says that it is ready.

    ``go`` and ``stop`` have come when their other end is closed, be it by the end of the process
    that has it. (An event would wait for each of its waiters to wake up, for ever when one of them
    was killed.)
    """

    go: Connection
    stop: Connection
    channel: Connection

    def wait_to_begin(self) -> None:
        """Say that all is prepared, and wait for the others."""
        self.channel.send(_READY)
        connection.wait([self.go])

    def stopped(self, seconds: float = 0.0) -> bool:
        """Whether to stop, now or within ``seconds``."""
        return self.stop.poll(seconds)


@dataclass(frozen=True)
class Failure:
    """Why a process left no report."""

    reason: str


Work = Callable[[S, Signals], R]
"""What a process does: settings in, report out. A function of a module. It has to call
:meth:`Signals.wait_to_begin` once it is ready."""


@dataclass
class _Member(Generic[R]):
    name: str
    process: BaseProcess
    channel: Connection
    outcome: R | Failure | None = None


class Crew(Generic[S, R]):
    """One process for each of the named settings.

    They are forked from a fresh process that has imported the work's module, so that a thousand of
    them cost little time and memory. Call :meth:`stop` at the end, whatever happens.
    """

    def __init__(self, work: Work[S, R], settings: Mapping[str, S]) -> None:
        allow_many_files()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*_PRELOAD, work.__module__])
        self._work, self._settings = work, settings
        self._members: list[_Member[R]] = []
        self._heard_go, self._go = self._context.Pipe(duplex=False)
        self._heard_stop, self._stop = self._context.Pipe(duplex=False)

    def _start(self, name: str) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        with theirs:
            signals = Signals(self._heard_go, self._heard_stop, theirs)
            process = self._context.Process(
                target=_be_member,
                args=(self._work, self._settings[name], signals),
                name=name,
                daemon=True,
            )
            process.start()
        self._members.append(_Member(name, process, ours))

    async def wait_ready(self) -> None:
        """Start the processes, and wait until every one is about to begin.

        Raises:
            EnvironmentFault: there may not be so many, one died, or took longer than two minutes.
        """
        try:
            for name in self._settings:
                self._start(name)
                await asyncio.sleep(0)
        except (OSError, EOFError) as error:
            raise EnvironmentFault(
                f"{len(self._members)} of {len(self._settings)} processes could be started:"
                f" {error}",
                remedy="play with fewer of them, or allow more (ulimit -u, ulimit -n)",
            ) from error
        limit = time.monotonic() + _START_TIMEOUT_SECONDS
        for member in self._members:
            while not member.channel.poll():
                if not member.process.is_alive() or time.monotonic() > limit:
                    raise EnvironmentFault(f"process {member.name} did not start")
                await asyncio.sleep(_START_POLL_SECONDS)
            if _receive(member) != _READY:
                raise EnvironmentFault(f"process {member.name} did not start")

    def go(self) -> None:
        """Let all of them begin."""
        self._go.close()

    def gone(self) -> list[str]:
        """Return the processes that have ended without a report."""
        self._collect()
        return [one.name for one in self._members if isinstance(one.outcome, Failure)]

    async def wait_done(self) -> None:
        """Wait until every process has left its report, or has died."""
        while waiting := self._collect():
            await asyncio.to_thread(connection.wait, waiting, _POLL_SECONDS)

    async def stop(self, seconds: float) -> dict[str, R | Failure]:
        """Tell all to stop, wait for their reports so long, end those that go on, and return them.

        A process that has left its report already is not disturbed.
        """
        self._stop.close()
        self._go.close()
        limit = time.monotonic() + seconds
        try:
            while (waiting := self._collect()) and time.monotonic() < limit:
                await asyncio.to_thread(connection.wait, waiting, _POLL_SECONDS)
        finally:
            self._end()
            self._heard_go.close()
            self._heard_stop.close()
        return {one.name: cast("R | Failure", one.outcome) for one in self._members}

    def _end(self) -> None:
        """Kill those that have left no report, and wait for the end of all."""
        for member in self._members:
            if member.outcome is None:
                member.outcome = Failure("did not stop in time and was killed")
                member.process.kill()
        for member in self._members:
            member.process.join()
            member.channel.close()

    def _collect(self) -> list[Connection]:
        """Take in the reports that are there; returns where the others are to come from."""
        waiting = [member for member in self._members if member.outcome is None]
        for member in waiting:
            # Asked before the pipe: what it wrote before it ended is in there.
            alive = member.process.is_alive()
            while member.outcome is None and member.channel.poll():
                message = _receive(member)
                if message != _READY:
                    member.outcome = message
            if member.outcome is None and not alive:
                member.outcome = _died(member)
        return [member.channel for member in waiting if member.outcome is None]


def _be_member(work: Work[S, R], settings: S, signals: Signals) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is gone needs no report.
    with contextlib.suppress(BrokenPipeError):
        signals.channel.send(work(settings, signals))
    signals.channel.close()


def _receive(member: _Member[R]) -> R | Failure:
    try:
        return member.channel.recv()
    except EOFError:
        return _died(member)


def _died(member: _Member[R]) -> Failure:
    member.process.join(1)
    return Failure(f"died with exit code {member.process.exitcode}")


def allow_many_files() -> None:
    """Let this process have as many open files as the system permits."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
