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
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mongo import MongoServer
from mongo_support import make_span
from ports import free_port
from processes import BIN, environment

from agl.store.client_server import LightningStoreClient
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig

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
    """What was acknowledged."""

    enqueued: dict[str, str] = field(default_factory=dict[str, str])
    """Rollouts by the task they were given."""

    spans: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Ids of spans by the attempt."""

    finished: dict[str, str] = field(default_factory=dict[str, str])
    """Attempts by the rollout that they finished."""

    failures: list[str] = field(default_factory=list[str])
    """What clients were told instead."""

    twice: list[str] = field(default_factory=list[str])
    """Rollouts handed out while somebody was at work on them, or when they were finished."""

    at_work: set[str] = field(default_factory=set[str])
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Let the players finish what they are doing, and no more."""
        self.stopped.set()

    def claim(self, rollout_id: str) -> None:
        if rollout_id in self.at_work or rollout_id in self.finished:
            self.twice.append(rollout_id)
        self.at_work.add(rollout_id)

    @classmethod
    def of(cls, one: Ledger, two: Ledger) -> Ledger:
        """Both together; what both have worked on was run twice."""
        shared = (one.at_work | set(one.finished)) & (two.at_work | set(two.finished))
        return cls(
            one.enqueued | two.enqueued,
            one.spans | two.spans,
            one.finished | two.finished,
            one.failures + two.failures,
            [*one.twice, *two.twice, *shared],
        )


@dataclass(frozen=True)
class Work:
    """What players enqueue: so many at once, with so large an input."""

    batch: int = 1
    input_bytes: int = 0
    config: RolloutConfig | None = None

    def request(self) -> EnqueueRolloutRequest:
        filler = os.urandom(self.input_bytes // 2).hex()
        task = {"task": uuid.uuid4().hex, "filler": filler}
        return EnqueueRolloutRequest(input=task, config=self.config)


@asynccontextmanager
async def load(
    store: RunningStore, token: str = "", players: int = 4, work: Work | None = None
) -> AsyncGenerator[Ledger]:
    """Players who enqueue, dequeue, send spans and finish as long as the context lasts."""
    ledger = Ledger()
    async with client_of(store, token) as client:
        tasks = [
            asyncio.create_task(_play(client, f"Worker-{number}", ledger, work or Work()))
            for number in range(players)
        ]
        try:
            yield ledger
        finally:
            ledger.stop()
            await asyncio.gather(*tasks)


async def _play(client: LightningStoreClient, worker_id: str, ledger: Ledger, work: Work) -> None:
    while not ledger.stopped.is_set():
        try:
            await _enqueue(client, ledger, work)
            for _ in range(work.batch):
                await _work(client, worker_id, ledger)
        except Exception as error:
            ledger.failures.append(repr(error))


async def _enqueue(client: LightningStoreClient, ledger: Ledger, work: Work) -> None:
    requests = [work.request() for _ in range(work.batch)]
    if work.batch > 1:
        stored = await client.enqueue_many_rollouts(requests)
    else:
        stored = [await client.enqueue_rollout(requests[0].input, config=work.config)]
    for rollout in stored:
        ledger.enqueued[rollout.input["task"]] = rollout.rollout_id


async def _work(client: LightningStoreClient, worker_id: str, ledger: Ledger) -> None:
    claimed = await client.dequeue_rollout(worker_id=worker_id)
    if claimed is None:
        return
    ledger.claim(claimed.rollout_id)
    attempt_id = claimed.attempt.attempt_id
    for number in (1, 2):
        span = make_span(claimed, number)
        await client.add_span(span)
        ledger.spans.setdefault(attempt_id, set()).add(span.span_id)
    await client.update_attempt(claimed.rollout_id, attempt_id, status="succeeded")
    ledger.finished[claimed.rollout_id] = attempt_id
    ledger.at_work.discard(claimed.rollout_id)


async def verify(store: RunningStore, ledger: Ledger, token: str = "") -> None:
    """Everything acknowledged is there, once, as it was acknowledged; nothing was run twice."""
    assert ledger.twice == []
    async with client_of(store, token) as client:
        found = await client.query_rollouts(limit=-1)
        tasks = Counter(rollout.input["task"] for rollout in found)
        assert [task for task, count in tasks.items() if count > 1] == []
        known = {rollout.input["task"]: rollout.rollout_id for rollout in found}
        assert {task: known.get(task) for task in ledger.enqueued} == ledger.enqueued
        by_id = {rollout.rollout_id: rollout for rollout in found}
        finished = {key: _as_finished(by_id[key]) for key in ledger.finished}
        assert finished == {key: (one, 1, "succeeded") for key, one in ledger.finished.items()}
        for rollout_id, attempt_id in ledger.finished.items():
            spans = await client.query_spans(rollout_id, attempt_id)
            assert {span.span_id for span in spans} == ledger.spans[attempt_id]
            assert len(spans) == len(ledger.spans[attempt_id])
        await _verify_totals(client, len(found))


def _as_finished(rollout: Rollout) -> tuple[str, int, str]:
    assert isinstance(rollout, AttemptedRollout)
    return rollout.attempt.attempt_id, rollout.attempt.sequence_id, rollout.status


async def _verify_totals(client: LightningStoreClient, rollouts: int) -> None:
    """Corrections of totals follow a moment later."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        statistics: dict[str, Any] = dict(await client.statistics())
        if statistics["total_rollouts"] == rollouts or time.monotonic() > deadline:
            assert statistics["total_rollouts"] == rollouts
            return
        await asyncio.sleep(0.1)


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Until ``condition`` holds, with the event loop running."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        await asyncio.sleep(0.05)
