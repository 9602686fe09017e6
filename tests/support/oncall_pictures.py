"""The pictures of docs/oncall.md: `agl panels` over a real bundle, well and in trouble.

``.venv/bin/python tests/support/oncall_pictures.py`` brings up this tree's bundle under a project
name and ports of its own (those of the environment, where set), lets workers play, freezes the
store, ends the workers, and takes a picture of each. It takes a quarter of an hour: alerts wait as
long as in earnest. The bundle is deleted at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bundle import ROOT, VARIABLES, Stack, docker, leftovers
from chromium import Page, browser
from mongo_support import make_span

from agl.store.client_server import LightningStoreClient
from agl.types import EnqueueRolloutRequest

IMAGES = ROOT / "docs" / "images"
LARGEST_BYTES = 200_000
OVERVIEW = (1280, 860)
PHONE = (390, 844)
WARM_UP_SECONDS = 90
"""Until the board has something to show."""
PAGE_SECONDS = 900
"""The slowest alert of these waits ten minutes."""
PATIENCE = (2.0,) * 60
"""Workers outlast the freeze."""
WORKERS = 4
ATTEMPT_SECONDS = 2.0
WAITING = 12
FREEZES = (
    ("app", "StoreDown", "oncall-store-down"),
    ("app-exporter", "ExporterDown", "oncall-exporter-down"),
)
SETTLED = (
    "document.querySelector('.panel, .text') && !document.querySelector('.spinner:not([hidden])')"
)


def note(text: str) -> None:
    """A line of progress, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


async def work(store: LightningStoreClient, name: str) -> None:
    """A runner: take a rollout, send a span, finish; for ever."""
    while True:
        claimed = await store.dequeue_rollout(worker_id=name)
        if claimed is None:
            await asyncio.sleep(0.5)
            continue
        await asyncio.sleep(ATTEMPT_SECONDS)
        await store.add_span(make_span(claimed, 1))
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
        )


async def enqueue(store: LightningStoreClient, number: int) -> None:
    tasks = [EnqueueRolloutRequest(input={"question": "6 * 7"}, mode="train")] * number
    await store.enqueue_many_rollouts(tasks)


async def train(store: LightningStoreClient) -> None:
    """A trainer: a batch now and then, for ever."""
    while True:
        await enqueue(store, WORKERS)
        await asyncio.sleep(ATTEMPT_SECONDS * 1.2)


@contextlib.asynccontextmanager
async def training(store: LightningStoreClient) -> AsyncIterator[None]:
    """A trainer and its workers, until the block ends."""
    names = [f"runner-{number}" for number in range(WORKERS)]
    tasks = [asyncio.create_task(work(store, name)) for name in names]
    tasks.append(asyncio.create_task(train(store)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for fault in ended:
        if not isinstance(fault, asyncio.CancelledError):
            note(f"ended before its time: {fault!r}")


async def firing(stack: Stack, alert: str) -> None:
    """Until that alert fires, and the board has had time to say so."""
    deadline = time.monotonic() + PAGE_SECONDS
    while not stack.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}'):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{alert} does not fire after {PAGE_SECONDS} s")
        await asyncio.sleep(2)
    note(f"{alert} fires")
    await asyncio.sleep(20)


async def take(page: Page, url: str, name: str, size: tuple[int, int]) -> None:
    """One picture. Raises ValueError when it is too large for a repository."""
    await page.size(*size, phone=size == PHONE)
    await page.open(url)
    await page.until(SETTLED, "the panels have loaded")
    await asyncio.sleep(2)
    path: Path = await page.picture(IMAGES / f"{name}.png")
    length = await asyncio.to_thread(lambda: path.stat().st_size)
    note(f"{path.relative_to(ROOT)}: {length // 1000} KB")
    if length > LARGEST_BYTES:
        raise ValueError(f"{path} has {length} bytes; {LARGEST_BYTES} at most")


@contextlib.contextmanager
def frozen(stack: Stack, service: str) -> Iterator[None]:
    """A service that stands still until the block ends."""
    docker("pause", f"{stack.project}-{service}-1")
    try:
        yield
    finally:
        docker("unpause", f"{stack.project}-{service}-1")


async def pictures(stack: Stack) -> None:
    """Bring about each trouble, and look at it."""
    port = stack.environ["AGL_GRAFANA_PORT"]
    boards = f"http://127.0.0.1:{port}"
    overview = f"{boards}/d/agl-overview?from=now-15m&to=now&theme=light"
    store = LightningStoreClient(stack.store_url, health_retry_delays=PATIENCE)
    async with browser() as page:
        async with training(store):
            note("workers play")
            await asyncio.sleep(WARM_UP_SECONDS)
            await take(page, overview, "oncall-well", OVERVIEW)
            for service, alert, name in FREEZES:
                with frozen(stack, service):
                    await firing(stack, alert)
                    await take(page, overview, name, OVERVIEW)
                await asyncio.sleep(60)
        await enqueue(store, WAITING)
        note("the workers are gone, and rollouts wait")
        await firing(stack, "QueueStuck")
        await take(page, overview, "oncall-queue-stuck", OVERVIEW)
        await take(page, overview, "oncall-phone", PHONE)
        runbook = f"{boards}/runbooks/QueueStuck?theme=light"
        await take(page, runbook, "oncall-runbook", (900, 900))
    await store.close()


def main() -> int:
    stack = Stack(ROOT, {"AGL_HOST_LABEL": "train-1", **VARIABLES, **os.environ})
    keep = "--keep" in sys.argv
    if not keep and any(leftovers(stack.project).values()):
        print(
            f"there is a bundle {stack.project} already - remove it, or use --keep", file=sys.stderr
        )
        return 1
    try:
        stack.script("up", "--yes")
        asyncio.run(pictures(stack))
    finally:
        if not keep:
            stack.script("down", "--volumes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
