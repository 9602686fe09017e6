"""Players who send every request once: what the client of 0.3 needs, which sends no keys."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from mongo_store import RunningStore, client_of, sockets, until

LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 0.2
"""Who has paused for so long connects anew: any server may close a connection that idles."""

REQUESTS = 25
"""After so many a player connects anew, so that every process soon has some of them."""


@dataclass
class RawLoad:
    """What became of requests that enqueue one rollout each."""

    store: RunningStore
    answered: Counter[int] = field(default_factory=Counter[int])
    """Answers by status."""

    enqueued: set[str] = field(default_factory=set[str])
    """Rollouts of which the answers told."""

    failures: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Requests without an answer: the client's port, and what it saw."""

    asked: set[str] = field(default_factory=set[str])
    """Tasks, one in each request."""

    stopped: bool = False

    async def progress(self, more: int = 20) -> None:
        target = self.answered[201] + more
        await until("progress", lambda: self.answered[201] >= target)

    async def kill(self, victim: int) -> set[int]:
        """Kill a process that somebody is connected to; returns the ports of those who are."""
        await until("connection", lambda: bool(clients(self.store, victim)))
        os.kill(victim, signal.SIGSTOP)  # so that it takes no more of them
        stat = Path(f"/proc/{victim}/stat")
        await until("halt", lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
        lost = clients(self.store, victim)
        os.kill(victim, signal.SIGKILL)
        return lost

    async def verify(self) -> None:
        """All answers were good, all they told of is there, and nothing twice."""
        assert set(self.answered) == {201}
        async with client_of(self.store) as client:
            found = [
                (one.input["task"], one.rollout_id)
                for one in await client.query_rollouts(limit=-1)
                if one.input["task"] in self.asked
            ]
        assert self.enqueued - {rollout_id for _, rollout_id in found} == set()
        assert len(self.enqueued) == self.answered[201]
        assert len({task for task, _ in found}) == len(found)


def clients(store: RunningStore, pid: int) -> set[int]:
    """Ports of those who are connected to a server process."""
    return {theirs for ours, theirs in sockets(pid) if ours == store.port}


@asynccontextmanager
async def raw_load(
    store: RunningStore, players: int = 8, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[RawLoad]:
    """Players who enqueue as long as the context lasts."""
    raw = RawLoad(store)
    tasks = [asyncio.create_task(_play(raw, tls)) for _ in range(players)]
    try:
        yield raw
    finally:
        raw.stopped = True
        await asyncio.gather(*tasks)


async def _play(raw: RawLoad, tls: ssl.SSLContext | None) -> None:
    while not raw.stopped:
        ports: list[int] = []

        def bound(address: Any, ports: list[int] = ports) -> socket.socket:
            family, kind, protocol, *_ = address
            made = socket.socket(family, kind, protocol)
            made.bind((LOOPBACK, 0))
            ports.append(made.getsockname()[1])
            return made

        connector = aiohttp.TCPConnector(
            limit=1, keepalive_timeout=IDLE_SECONDS, socket_factory=bound, ssl=tls or True
        )
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(REQUESTS):
                if not raw.stopped:
                    await _ask(raw, session, "http" if tls is None else "https", ports)


async def _ask(raw: RawLoad, session: aiohttp.ClientSession, scheme: str, ports: list[int]) -> None:
    url = f"{scheme}://{LOOPBACK}:{raw.store.port}/v1/agl/queues/rollouts/enqueue"
    task = uuid.uuid4().hex
    body = {"rollouts": [{"input": {"task": task}}]}
    raw.asked.add(task)
    try:
        async with session.post(url, json=body) as answer:
            told: Any = await answer.json()
    except aiohttp.ClientError as error:
        raw.failures.append((ports[-1], repr(error)))
        return
    raw.answered[answer.status] += 1
    if answer.status == 201:
        raw.enqueued.add(told[0]["rollout_id"])
