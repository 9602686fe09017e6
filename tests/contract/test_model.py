"""Random calls, clocks and failures, and stories made of them, against a model of the rules.

The same examples run every time. ``AGL_EXPLORE=20 pytest tests/contract/test_model.py`` looks at
20 times as many, at random; what it finds is printed as a program to paste into a test.
"""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest
import stores_http
import stores_mongo
from conftest import FACTORIES
from hypothesis.stateful import run_state_machine_as_test
from store_machine import CLOCK, profile
from store_scenarios import FailingScenarioMachine, ScenarioMachine

from agl.store.base import LightningStore
from agl.store.collection.mongo import roots
from agl.store.collection_based import CollectionBasedLightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.threading import LightningStoreThreaded

LOCAL = [
    "memory",
    pytest.param("memory-thread-safe", marks=pytest.mark.slow),
    pytest.param("threaded", marks=pytest.mark.slow),
]
REMOTE = {"client-asyncio": "asyncio", "client-thread": "thread"}
MONGO = ["mongo"]


@pytest.fixture(autouse=True)
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(CollectionBasedLightningStore, "_now", lambda self: CLOCK.now)
    monkeypatch.setattr(roots, "tick", lambda: CLOCK.now + next(ticks) * 1e-9)


def local_backend(store: LightningStore) -> InMemoryLightningStore:
    inner = store.store if isinstance(store, LightningStoreThreaded) else store
    assert isinstance(inner, InMemoryLightningStore)
    return inner


@pytest.mark.parametrize("kind", LOCAL)
def test_a_store_in_this_process_follows_the_rules(kind: str) -> None:
    class Machine(FailingScenarioMachine):
        factories = (FACTORIES[kind],)
        backend_of = staticmethod(local_backend)

    run_state_machine_as_test(Machine, settings=profile(30, 50))


@pytest.mark.slow
@pytest.mark.parametrize("kind", REMOTE)
def test_a_store_behind_a_server_follows_the_rules(kind: str) -> None:
    class Machine(ScenarioMachine):
        factories = (FACTORIES[kind],)
        remote = True

        @staticmethod
        def backend_of(store: LightningStore) -> InMemoryLightningStore:
            return stores_http._shared_server(REMOTE[kind])[0].inner

    run_state_machine_as_test(Machine, settings=profile(3, 25))


@pytest.mark.parametrize("kind", MONGO)
def test_a_store_in_mongodb_follows_the_rules(kind: str) -> None:
    class Machine(ScenarioMachine):
        factories = (partial(FACTORIES[kind], heartbeat_seconds=0),)
        calls_a_state = 4
        backend_of = staticmethod(lambda store: store)

    slow = stores_mongo.shared_server().is_slow
    run_state_machine_as_test(Machine, settings=profile(2 if slow else 8, 25 if slow else 40))
