"""Questions to a running bundle on MongoDB, and work for it with a ledger of what it promised."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import bson
import httpx
from bundle import Stack, docker

from agl.errors import AglError
from agl.store.client_server import LightningStoreClient
from agl.types import OtelResource, Span, TraceStatus

AGL = str(Path(sys.executable).with_name("agl"))


def play(store_url: str, rollouts: int, *more: str, timeout: float = 240) -> dict[str, Any]:
    """Play the training loop; its details. Fails the test unless every rollout is verified."""
    done = subprocess.run(
        [
            *(AGL, "bench", "scenario", "minimal", "--json", "-", "--store-url", store_url),
            *("--rollouts", str(rollouts), "--batch-size", "20", "--runners", "4", "--seed", "11"),
            *more,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    details: dict[str, Any] = json.loads(done.stdout)["details"]
    assert details["verified"] == rollouts
    return details


def wait_until_answers(url: str) -> None:
    """Until a GET is answered with 200."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, url
        time.sleep(0.5)


def inside_app(stack: Stack, program: str) -> str:
    """What a Python program prints inside the container of the store, which can reach MongoDB."""
    return docker("exec", f"{stack.project}-app-1", "/opt/agl/bin/python", "-c", program)


def documents_of(backup: Path) -> dict[str, dict[Any, dict[str, Any]]]:
    """Collection -> id -> document of a backup that our own reader has made."""
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    with gzip.open(backup) as stream:
        header = json.loads(stream.readline())
        for collection in header["collections"]:
            documents = _documents(stream)
            found[collection["name"]] = {str(one["_id"]): one for one in documents}
    return found


def _documents(stream: gzip.GzipFile) -> Iterator[dict[str, Any]]:
    while size := int.from_bytes(head := stream.read(4), "little"):
        yield bson.decode(head + stream.read(size - 4))


@dataclass
class Ledger:
    """A trainer in a thread that notes what the store has acknowledged; a context manager.

    Attributes:
        acknowledged: Rollout id -> span id, each finished as far as the store has said.
        failures: What the store, or its absence, said to the rest.
    """

    store_url: str
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[str] = field(default_factory=list[str])
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Ledger:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(120)

    def wait_for_more(self, count: int, timeout: float = 90) -> None:
        """Until so many more rollouts are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + timeout
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, self.failures[-3:]
            time.sleep(0.1)

    async def _work(self) -> None:
        client = LightningStoreClient(self.store_url)
        try:
            number = 0
            while not self._stop.is_set():
                number += 1
                try:
                    await self._one(client, number)
                except (AglError, aiohttp.ClientError, TimeoutError, OSError) as error:
                    self.failures.append(repr(error))
                    await asyncio.sleep(0.2)
        finally:
            await client.close()

    async def _one(self, client: LightningStoreClient, number: int) -> None:
        rollout = await client.start_rollout({"task": number}, mode="test")
        attempt = rollout.attempt.attempt_id
        now = time.time()
        span = Span.from_attributes(
            attributes={"number": number},
            rollout_id=rollout.rollout_id,
            attempt_id=attempt,
            sequence_id=1,
            start_time=now,
            end_time=now,
            status=TraceStatus(status_code="OK"),
            resource=OtelResource(attributes={}, schema_url=""),
        )
        await client.add_span(span)
        await client.update_attempt(rollout.rollout_id, attempt, status="succeeded")
        self.acknowledged[rollout.rollout_id] = span.span_id

    def check(self) -> None:
        """Everything acknowledged is there. Fails the test when something is not."""
        asyncio.run(self._check())

    async def _check(self) -> None:
        assert self.acknowledged
        client = LightningStoreClient(self.store_url)
        try:
            for rollout_id, span_id in self.acknowledged.items():
                rollout = await client.get_rollout_by_id(rollout_id)
                assert rollout is not None, rollout_id
                assert rollout.status == "succeeded", rollout_id
                spans = await client.query_spans(rollout_id)
                assert [span.span_id for span in spans] == [span_id], rollout_id
        finally:
            await client.close()
