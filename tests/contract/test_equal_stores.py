"""The same random calls on every kind of store give the same answers, ids aside.

Beside the calls of the model this asks questions it does not answer: filters, sorting, paging,
requests that make no sense. ``AGL_EXPLORE=N`` looks further, as in ``test_model``.
"""

from __future__ import annotations

from typing import Any

import pytest
import stores_http
from conftest import FACTORIES
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from store_machine import CLOCK, STATUSES, Record, StoreMachine, index, profile, subset

from agl.store.base import LightningStore
from agl.store.collection_based import CollectionBasedLightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.threading import LightningStoreThreaded

KINDS = ["memory", "memory-thread-safe", "memory-tracked", "threaded", "client-thread"]
REMOTE = stores_http._shared_server

orders = st.sampled_from(["asc", "desc"])
logic = st.sampled_from(["and", "or"])
windows = {"limit": st.sampled_from([-1, 1, 2, 5]), "offset": st.integers(0, 3)}


def backend(store: LightningStore) -> InMemoryLightningStore:
    if isinstance(store, LightningStoreThreaded):
        return backend(store.store)
    if isinstance(store, InMemoryLightningStore):
        return store
    return REMOTE("thread")[0].inner


class EqualStores(StoreMachine):
    factories = tuple(FACTORIES[kind] for kind in KINDS)
    backend_of = staticmethod(backend)
    remote = True

    def ask(self, method: str, *args: Any, **kwargs: Any) -> None:
        """A question whose answer the model does not know."""
        self.model.now = CLOCK.now
        first, *others = [one.call(method, *args, **kwargs) for one in self.subjects]
        for result in others:
            self.same(result, first, f"{method} {args} {kwargs}")
        self.model.sweep()

    @rule(
        which=st.lists(index, max_size=3),
        asked=subset(
            status_in=st.lists(st.sampled_from(STATUSES), max_size=3),
            rollout_id_contains=st.sampled_from(["ro-", "RO-", "", "nothing"]),
            filter_logic=logic,
            sort_by=st.sampled_from(["start_time", "end_time", "status", "mode", "metadata", "x"]),
            sort_order=orders,
            **windows,
        ),
        by_id=st.booleans(),
    )
    def query_rollouts(self, which: list[int], asked: Record, by_id: bool) -> None:
        ids = {"rollout_id_in": [self.rollout(one) for one in which]} if by_id else {}
        self.ask("query_rollouts", **ids, **asked)

    @rule(
        which=index,
        attempt=index,
        asked=subset(
            name=st.sampled_from(["name-0", "name-1"]),
            name_contains=st.sampled_from(["ME", "me-2", ""]),
            span_id_contains=st.sampled_from(["1", "2"]),
            parent_id=st.just(f"{1:016x}"),
            parent_id_contains=st.sampled_from(["0", "3"]),
            filter_logic=logic,
            sort_by=st.sampled_from([None, "name", "parent_id", "end_time", "attributes", "x"]),
            sort_order=orders,
            **windows,
        ),
    )
    def query_spans(self, which: int, attempt: int, asked: Record) -> None:
        rollout_id = self.rollout(which)
        self.ask("query_spans", rollout_id, self.attempt(rollout_id, attempt), **asked)

    @rule(
        which=index,
        asked=subset(
            sort_by=st.sampled_from(["sequence_id", "status", "end_time", None, "x"]),
            sort_order=orders,
            **windows,
        ),
    )
    def query_attempts(self, which: int, asked: Record) -> None:
        self.ask("query_attempts", self.rollout(which), **asked)

    @rule(
        asked=subset(
            status_in=st.lists(st.sampled_from(["idle", "busy", "unknown"]), max_size=2),
            worker_id_contains=st.sampled_from(["w", "2", "W"]),
            filter_logic=logic,
            sort_by=st.sampled_from(["worker_id", "last_busy_time", "heartbeat_stats"]),
            sort_order=orders,
            **windows,
        )
    )
    def query_workers(self, asked: Record) -> None:
        self.ask("query_workers", **asked)

    @rule(
        which=index,
        bad=st.sampled_from([{"status": "bogus"}, {"mode": "bogus"}, {"config": None}]),
    )
    def bad_update(self, which: int, bad: Record) -> None:
        rollout_id = self.rollout(which)
        if self.model.attempts.get(rollout_id):  # who else is asked first differs
            self.ask("update_rollout", rollout_id, **bad)
            self.check()

    @rule(which=index, bad=st.sampled_from([{"status": "bogus"}, {"metadata": 3}]))
    def bad_attempt(self, which: int, bad: Record) -> None:
        rollout_id = self.rollout(which)
        if self.model.attempts.get(rollout_id):  # who else is asked first differs
            self.ask("update_attempt", rollout_id, "latest", **bad)
            self.check()


def test_all_stores_answer_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectionBasedLightningStore, "_now", lambda self: CLOCK.now)
    run_state_machine_as_test(EqualStores, settings=profile(5, 25))
