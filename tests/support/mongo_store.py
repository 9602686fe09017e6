"""``agl store`` on MongoDB as real processes, and a load with a ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mongo import MongoServer
from ports import free_port
from processes import BIN, environment

from agl.store.client_server import LightningStoreClient

PATIENCE_SECONDS = 60.0


@dataclass
class RunningStore:
    """A store; ``process`` is the arbiter."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def messages(self) -> list[str]:
        return [str(line["message"]) for line in self.lines()]

    def logged(self, text: str) -> int:
        """In how many log lines ``text`` is."""
        return sum(text in message for message in self.messages())

    def workers(self) -> set[int]:
        """The pids of the server processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in children.read_text().split()}

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Until ``condition`` holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, f"ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {what}: {self.log.read_text()}"
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def store_on_mongo(
    server: MongoServer,
    database: str,
    *arguments: str,
    port: int = 0,
    processes: int = 2,
    env: Mapping[str, str] | None = None,
    within: tuple[str, ...] = (),
) -> Iterator[RunningStore]:
    """A store that serves; it and its processes are ended by their pids.

    Args:
        server: Its MongoDB.
        database: Its database.
        *arguments: Further options.
        port: Where it listens; a free port by default.
        processes: How many server processes.
        env: Further variables.
        within: A command that runs it, such as ``unshare``.
    """
    port = port or free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--n-workers", str(processes))
    mongo = ("--backend", "mongo", "--mongo-uri", server.uri, "--database", database)
    with tempfile.TemporaryDirectory(prefix="agl-store-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*within, BIN / "agl", "store", *where, *mongo, *arguments],
                env=environment(env),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        store = RunningStore(port, process, log)
        try:
            store.wait("start", lambda: store.logged("Application startup complete.") >= processes)
            yield store
        finally:
            _end(store)


def _end(store: RunningStore) -> None:
    if store.process.poll() is None:
        children = store.workers()
        store.process.kill()
        store.process.wait()
        for pid in children:
            _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@asynccontextmanager
async def client_of(store: RunningStore, token: str = "") -> AsyncGenerator[LightningStoreClient]:
    login = f"agl:{token}@" if token else ""
    client = LightningStoreClient(
        f"http://{login}127.0.0.1:{store.port}",
        retry_delays=(0.1, 0.2, 0.5, 1.0, 2.0),
        health_retry_delays=(0.1, 0.2, 0.5, 1.0, 2.0),
    )
    try:
        yield client
    finally:
        await client.close()


@dataclass
class Ledger:
    """What was acknowledged: rollouts by the task they were given, and how they ended."""

    enqueued: dict[str, str] = field(default_factory=dict[str, str])
    finished: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def load(store: RunningStore, token: str = "", players: int = 4) -> AsyncGenerator[Ledger]:
    """Players who enqueue, dequeue and finish rollouts as long as the context lasts."""
    ledger, stop = Ledger(), asyncio.Event()
    async with client_of(store, token) as client:
        tasks = [
            asyncio.create_task(_play(client, f"Worker-{number}", ledger, stop))
            for number in range(players)
        ]
        try:
            yield ledger
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def _play(
    client: LightningStoreClient, worker_id: str, ledger: Ledger, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            task = uuid.uuid4().hex
            rollout = await client.enqueue_rollout({"task": task})
            ledger.enqueued[task] = rollout.rollout_id
            claimed = await client.dequeue_rollout(worker_id=worker_id)
            if claimed is not None:
                attempt_id = claimed.attempt.attempt_id
                await client.update_attempt(claimed.rollout_id, attempt_id, status="succeeded")
                ledger.finished[claimed.rollout_id] = attempt_id
        except Exception as error:
            ledger.failures.append(repr(error))


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Until ``condition`` holds, with the event loop running."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        await asyncio.sleep(0.05)
