"""One suite over many stores.

A store joins the suite by a module ``stores_<name>.py`` in this directory with a mapping

    FACTORIES: dict[str, StoreFactory]

of parameter ids to functions that take the keyword arguments of ``InMemoryLightningStore`` and
return an async context manager which yields the store under test.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agl.store.base import LightningStore
from agl.types import AttemptedRollout, OtelResource, Span, TraceStatus

StoreFactory = Callable[..., AbstractAsyncContextManager[LightningStore]]
MakeStore = Callable[..., Awaitable[LightningStore]]
HERE = Path(__file__).parent
SLOW_KINDS = ("mongo-gunicorn", "mongo-turns")
"""Their servers start for each test: one test in ten, unless AGL_TEST_PROCESSES=all."""


def _factories() -> dict[str, StoreFactory]:
    sys.path.insert(0, str(HERE))
    try:
        modules = [importlib.import_module(path.stem) for path in sorted(HERE.glob("stores_*.py"))]
    finally:
        sys.path.remove(str(HERE))
    return {name: factory for module in modules for name, factory in module.FACTORIES.items()}


FACTORIES = _factories()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a database as slow, and leave most tests of the slow kinds out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "mongo" in item.nodeid:
            item.add_marker("slow")
    if os.environ.get("AGL_TEST_PROCESSES") == "all":
        return
    slow = [item for item in items if any(kind in item.name for kind in SLOW_KINDS)]
    left_out = {item for number, item in enumerate(slow) if number % 10}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=str))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=FACTORIES)
async def make_store(request: pytest.FixtureRequest) -> AsyncIterator[MakeStore]:
    """Makes stores of one kind, with the keyword arguments of ``InMemoryLightningStore``."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> LightningStore:
            return await stack.enter_async_context(FACTORIES[request.param](**options))

        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> LightningStore:
    """A store whose watchdog looks in every call."""
    return await make_store(scan_debounce_seconds=0)


def make_span(rollout: AttemptedRollout, number: int, **changes: Any) -> Span:
    """A span of the rollout's attempt whose ids follow from ``number``."""
    values: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
        "sequence_id": number,
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": f"span-{number}",
        "status": TraceStatus(status_code="OK"),
        "attributes": {"number": number, "tags": ["a", "b"]},
        "events": [],
        "links": [],
        "start_time": 1.0,
        "end_time": 2.0,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**{**values, **changes})


async def queued_ids(store: LightningStore) -> list[str]:
    """Empties the queue; the ids in the order in which workers would get them."""
    return [rollout.rollout_id for rollout in await store.dequeue_many_rollouts(limit=1000)]
