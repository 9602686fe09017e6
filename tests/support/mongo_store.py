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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mongo import MongoServer
from mongo_support import make_span
from ports import free_port
from processes import BIN, environment

from agl.store.client_server import LightningStoreClient
from agl.types import (
    RUNNING_STATUSES,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    Span,
)

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


def sockets(pid: int) -> set[tuple[int, int]]:
    """A process's connections over IPv4, as its own port and that of the other end."""
    held: set[str] = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(str(file.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        (int(ours.rpartition(":")[2], 16), int(theirs.rpartition(":")[2], 16))
        for _, ours, theirs, *fields in rows
        if f"socket:[{fields[6]}]" in held and not theirs.endswith(":0000")
    }


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


Client = TypeVar("Client", bound=LightningStoreClient)


@asynccontextmanager
async def client_of(
    store: RunningStore, token: str = "", kind: type[Client] = LightningStoreClient
) -> AsyncGenerator[Client]:
    login = f"agl:{token}@" if token else ""
    client = kind(
        f"http://{login}127.0.0.1:{store.port}",
        retry_delays=(0.1, 0.2, 0.5, 1.0, 2.0),
        health_retry_delays=(0.1, 0.2, 0.5, 1.0, 2.0),
    )
    try:
        yield client
    finally:
        await client.close()


class _PlayersClient(LightningStoreClient):
    """Counts by player the dequeues that got no answer, which the client itself only logs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unanswered = Counter[str]()

    def _note_failed_dequeue(self, error: Exception) -> None:
        super()._note_failed_dequeue(error)
        task = asyncio.current_task()
        assert task is not None
        self.unanswered[task.get_name()] += 1


AttemptKey = tuple[str, str]
"""Rollout and attempt."""


@dataclass
class Ledger:
    """What was acknowledged."""

    enqueued: dict[str, str] = field(default_factory=dict[str, str])
    """Rollouts by the task they were given."""

    claimed: set[AttemptKey] = field(default_factory=set[AttemptKey])
    unanswered: Counter[str] = field(default_factory=Counter[str])
    """Dequeues by worker that got no answer: each may have claimed a rollout."""

    spans: dict[AttemptKey, set[str]] = field(default_factory=dict[AttemptKey, set[str]])
    """Ids of spans."""

    sent: dict[AttemptKey, set[str]] = field(default_factory=dict[AttemptKey, set[str]])
    """Ids of spans, acknowledged or not."""

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

    def claim(self, rollout: AttemptedRollout) -> None:
        rollout_id = rollout.rollout_id
        if rollout_id in self.at_work or rollout_id in self.finished:
            self.twice.append(rollout_id)
        self.at_work.add(rollout_id)
        self.claimed.add((rollout_id, rollout.attempt.attempt_id))

    def finish(self, rollout: AttemptedRollout) -> None:
        self.finished[rollout.rollout_id] = rollout.attempt.attempt_id
        self.at_work.discard(rollout.rollout_id)

    @classmethod
    def of(cls, one: Ledger, two: Ledger) -> Ledger:
        """Both together; what both have worked on was run twice."""
        shared = (one.at_work | set(one.finished)) & (two.at_work | set(two.finished))
        return cls(
            enqueued=one.enqueued | two.enqueued,
            claimed=one.claimed | two.claimed,
            unanswered=one.unanswered + two.unanswered,
            spans=one.spans | two.spans,
            sent=one.sent | two.sent,
            finished=one.finished | two.finished,
            failures=one.failures + two.failures,
            twice=[*one.twice, *two.twice, *shared],
            at_work=one.at_work | two.at_work,
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
    async with client_of(store, token, _PlayersClient) as client:
        ledger = Ledger(unanswered=client.unanswered)
        tasks = [
            asyncio.create_task(_play(client, name, ledger, work or Work()), name=name)
            for name in (f"Worker-{number}" for number in range(players))
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
    ledger.claim(claimed)
    key = claimed.rollout_id, claimed.attempt.attempt_id
    for number in (1, 2):
        span = make_span(claimed, number)
        ledger.sent.setdefault(key, set()).add(span.span_id)
        await client.add_span(span)
        ledger.spans.setdefault(key, set()).add(span.span_id)
    await client.update_attempt(*key, status="succeeded")
    ledger.finish(claimed)


"""A MongoDB and a database."""


async def verify(store: RunningStore, ledger: Ledger, token: str = "") -> None:
    """Everything acknowledged is there, once, as it was acknowledged; nothing was run twice.

    And nothing is there that nobody knows of: of each attempt its player was told, or is still
    without the answer to a dequeue.

    Args:
        store: Whom to ask.
        ledger: What has to be there.
        token: Of the store.
    """
    assert ledger.twice == []
    async with client_of(store, token) as client:
        found = await client.query_rollouts(limit=-1)
        _verify_rollouts(found, ledger)
        attempts = await _of_each(found, client.query_attempts)
        _verify_attempts(found, attempts, ledger)
        _verify_claims(attempts, ledger)
        spans = await _of_each(found, client.query_spans)
        _verify_spans(spans, ledger)
        await verify_totals(
            client,
            total_rollouts=len(found),
            total_attempts=sum(map(len, attempts.values())),
            total_spans=sum(map(len, spans.values())),
        )


T = TypeVar("T")


async def _of_each(
    rollouts: Sequence[Rollout], ask: Callable[[str], Awaitable[Sequence[T]]]
) -> dict[str, list[T]]:
    """What there is of those on which somebody has begun to work."""
    begun = [one.rollout_id for one in rollouts if isinstance(one, AttemptedRollout)]
    found: dict[str, list[T]] = {}
    for some in (begun[at : at + 32] for at in range(0, len(begun), 32)):
        answers = await asyncio.gather(*map(ask, some))
        found.update(zip(some, map(list, answers), strict=True))
    return found


def _verify_rollouts(found: Sequence[Rollout], ledger: Ledger) -> None:
    tasks = Counter(rollout.input["task"] for rollout in found)
    assert [task for task, count in tasks.items() if count > 1] == []
    known = {rollout.input["task"]: rollout.rollout_id for rollout in found}
    assert {task: known.get(task) for task in ledger.enqueued} == ledger.enqueued
    by_id = {rollout.rollout_id: rollout for rollout in found}
    finished = {key: _as_finished(by_id[key]) for key in ledger.finished}
    wrong = (
        finished.items() ^ {key: (one, "succeeded") for key, one in ledger.finished.items()}.items()
    )
    assert not wrong, sorted(wrong)
    begun = {one.rollout_id for one in found if isinstance(one, AttemptedRollout)}
    untouched = [one for one in found if one.rollout_id not in begun]
    assert [one.rollout_id for one in untouched if one.status != "queuing"] == []


def _as_finished(rollout: Rollout) -> tuple[str, str]:
    assert isinstance(rollout, AttemptedRollout)
    return rollout.attempt.attempt_id, rollout.status


def _verify_attempts(
    found: Sequence[Rollout], attempts: Mapping[str, list[Attempt]], ledger: Ledger
) -> None:
    """Each is there once, only the last one of a rollout may be running, and only one was told of.

    A claim whose answer was lost goes back to the queue some time after its player has given up.
    """
    ids = Counter(one.attempt_id for some in attempts.values() for one in some)
    assert [attempt_id for attempt_id, count in ids.items() if count > 1] == []
    for rollout in found:
        if isinstance(rollout, AttemptedRollout):
            some = attempts[rollout.rollout_id]
            assert [one.sequence_id for one in some] == list(range(1, len(some) + 1))
            assert some[-1].attempt_id == rollout.attempt.attempt_id
            assert [one for one in some[:-1] if one.status in RUNNING_STATUSES] == []
            told = [one for one in some if (one.rollout_id, one.attempt_id) in ledger.claimed]
            assert len(told) <= 1, told
            assert {one.status for one in some[:-1]} <= {"unresponsive"}, some


def _verify_claims(attempts: Mapping[str, list[Attempt]], ledger: Ledger) -> None:
    stored = {(key, one.attempt_id): one for key, some in attempts.items() for one in some}
    assert ledger.claimed - stored.keys() == set()
    untold = Counter(stored[key].worker_id for key in stored.keys() - ledger.claimed)
    assert untold - ledger.unanswered == Counter(), "claims that no player knows of"


def _verify_spans(spans: Mapping[str, list[Span]], ledger: Ledger) -> None:
    stored: dict[AttemptKey, list[str]] = {}
    for span in (span for some in spans.values() for span in some):
        stored.setdefault((span.rollout_id, span.attempt_id), []).append(span.span_id)
    nothing = set[str]()
    for key in stored.keys() | ledger.sent.keys():
        there = stored.get(key, [])
        assert len(there) == len(set(there)), key
        assert ledger.spans.get(key, nothing) <= set(there) <= ledger.sent.get(key, nothing), key


async def verify_totals(client: LightningStoreClient, **expected: int) -> None:
    """Corrections of totals follow a moment later, those of processes that were killed as well."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        statistics: dict[str, Any] = dict(await client.statistics())
        found = {name: statistics[name] for name in expected}
        if found == expected:
            return
        assert time.monotonic() < deadline, f"{found} rather than {expected}"
        await asyncio.sleep(0.1)


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Until ``condition`` holds, with the event loop running."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        await asyncio.sleep(0.05)
