"""Random calls on stores, each answer compared with that of the model and of the other stores."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from state_recount import REWARD, REWARD_NAME, QueueTimes, recount
from store_model import FINISHED, WAITING, Record, Refused, StoreModel
from store_subject import Failure, InjectedFault, Subject

from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.mongo import MongoLightningStore

Factory = Callable[..., AbstractAsyncContextManager[LightningStore]]
Backend = Callable[[LightningStore], InMemoryLightningStore | MongoLightningStore]

STATUSES = ["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
ATTEMPT_STATUSES = ["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
TICK = 1 / 64
"""Seconds from call to call; exact as a float, so that sums of times are."""


def profile(examples: int, steps: int) -> settings:
    """How long to look.

    The same examples every time, unless ``AGL_EXPLORE=N`` asks for N times as many random ones,
    which are then also made as small as possible.
    """
    factor = int(os.environ.get("AGL_EXPLORE", "0"))
    return settings(
        max_examples=examples * max(1, factor),
        stateful_step_count=steps * (2 if factor else 1),
        derandomize=not factor,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=[Phase.generate, *([Phase.shrink] if factor else [])],
        suppress_health_check=list(HealthCheck),
    )


class Clock:
    """Stands in for the clock of every store while a machine runs."""

    def __init__(self) -> None:
        self.now = 1000.0


CLOCK = Clock()

index = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 7, 12])
"""Mostly the newest, so that calls meet; 12 is nobody."""
worker = st.sampled_from([None, "w-1", "w-2"])
modes = st.sampled_from([None, "train", "val", "test"])
metadata = st.sampled_from([None, {}, {"a": [1, {"b": None}]}])
configs = st.none() | st.fixed_dictionaries(
    {
        "timeout_seconds": st.sampled_from([None, 1.0, 4.0]),
        "unresponsive_seconds": st.sampled_from([None, 0.5, 2.0]),
        "max_attempts": st.integers(1, 3),
        "retry_condition": st.lists(
            st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True
        ),
    }
)
requests = st.fixed_dictionaries(
    {"input": st.sampled_from([None, 1, "task", {"x": [1.5, None]}])},
    optional={"mode": modes, "config": configs, "metadata": metadata},
)
resources = st.sampled_from(
    [{}, {"p": {"resource_type": "prompt_template", "template": "t", "engine": "jinja"}}]
)


def subset(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Record]:
    """Keyword arguments, each given or not."""
    return st.fixed_dictionaries({}, optional=dict(fields))


class StoreMachine(RuleBasedStateMachine):
    """Subclasses say which stores; all of them get every call."""

    factories: ClassVar[Sequence[Factory]]
    backend_of: ClassVar[Backend]
    remote: ClassVar[bool] = False
    """A client asks its server for nothing when it wants no rollouts."""

    calls_a_state: ClassVar[int] = 1
    """After how many calls the figures of the state are compared as well."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.model = StoreModel()
        self.subjects: list[Subject] = []
        self.broken = False
        self.armed: str | None = None
        self.queue_times = QueueTimes()
        self.checks = 0
        self.spans_in_doubt = False
        """A failure struck between spans and what is noted of them."""

    def run(self, work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, 20)

        return self.loop.run_until_complete(bounded())

    @initialize()
    def open(self) -> None:
        for factory in self.factories:
            store = self.run(self.stack.enter_async_context(factory(scan_debounce_seconds=0)))
            self.subjects.append(Subject(store, type(self).backend_of(store), self.run))

    def teardown(self) -> None:
        try:
            if self.subjects and not self.broken:
                self.drain()
        finally:
            self.run(self.stack.aclose())
            self.loop.close()

    def same(self, found: Any, expected: Any, what: str) -> None:
        if found != expected:
            self.broken = True
            raise AssertionError(
                "\n".join([f"{what}: found, expected", *_differences(found, expected)])
            )

    def drain(self, worker_id: str | None = None) -> None:
        """Whoever waits is claimed exactly once, and after that nobody waits."""
        self.armed = None
        waiting = self.model.waiting()
        claimed = self.call("dequeue_many_rollouts", limit=len(waiting) + 20, worker_id=worker_id)
        got = [one["rollout_id"] for one in claimed]
        assert len(got) == len(set(got))
        assert waiting <= set(got)

    # Calling

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """One call on every store and on the model; all have to agree."""
        CLOCK.now += TICK
        self.model.now = CLOCK.now
        if self.armed is not None and self.failing_call(method, args, kwargs):
            return None
        results = [one.call(method, *args, **copy.deepcopy(kwargs)) for one in self.subjects]
        expected = self.expected(method, results[0], args, copy.deepcopy(kwargs))
        for result in results:
            self.same(_comparable(result, expected), expected, method)
        self.check()
        return results[0]

    def expected(self, method: str, result: Any, args: Any, kwargs: Record) -> Any:
        try:
            if method in ("dequeue_rollout", "dequeue_many_rollouts"):
                return self.expected_claim(method, result, **kwargs)
            return getattr(self.model, method)(*args, **kwargs)
        except Refused as refused:
            kind = "RolloutNotFoundError"
            if "ttempt" in str(refused):
                kind = "AttemptNotFoundError"
            return Failure(f"{kind}: {refused}")

    def expected_claim(
        self, method: str, result: Any, limit: int = 1, worker_id: str | None = None
    ) -> Any:
        assert not isinstance(result, Failure), result
        claimed = result if isinstance(result, list) else [result] if result else []
        pairs = self.model.claim(limit, worker_id, [one["rollout_id"] for one in claimed])
        if method == "dequeue_many_rollouts":
            return pairs
        return pairs[0] if pairs else None

    def failing_call(self, method: str, args: Any, kwargs: Record) -> bool:
        """A call during which the backend fails: whatever it was to do is left undone."""
        (subject,) = self.subjects
        subject.faults.armed, subject.faults.struck = self.armed, False
        self.armed = None
        before = copy.deepcopy(self.model)
        try:
            result = subject.call(method, *args, **copy.deepcopy(kwargs))
        except InjectedFault:
            self.model = before
            self.after_fault(subject, method, args)
            return True
        finally:
            subject.faults.armed = None
        assert not subject.faults.struck, f"{method} hid a failure of its backend"
        expected = self.expected(method, result, args, copy.deepcopy(kwargs))
        self.same(_comparable(result, expected), expected, method)
        self.check()
        return True

    def after_fault(self, subject: Subject, method: str, args: Any) -> None:
        content = _by_key(subject.content())
        if method in ("add_span", "add_many_spans"):  # may be stored, its sign of life unseen
            for span in args[0] if method == "add_many_spans" else args:
                key = (span["rollout_id"], span["attempt_id"], span["span_id"])
                if key in content["spans"]:
                    self.spans_in_doubt = True
                    self.model.spans.setdefault(key, span)
        for key, number in subject.counters([*self.model.rollouts, "ro-unknown"]).items():
            assert number >= self.model.counters.get(key, 0)
            self.model.counters[key] = number
        if content != _by_key(self.model.content()):
            self.model.sweep()  # the watchdog looked before the call failed
        self.check()

    def check(self) -> None:
        """What the stores hold is what the model holds, and it makes sense in itself."""
        model = self.model.content()
        expected = _by_key(model)
        self.queue_times.look(model, CLOCK.now)
        figures = recount(model, self.queue_times.entered, CLOCK.now)
        self.checks += 1
        for subject in self.subjects:
            content = subject.content()
            self.same(_by_key(content), expected, "content")
            _check_sense(content)
            if self.checks % self.calls_a_state == 0:
                self.check_state(subject, figures)

    def check_state(self, subject: Subject, figures: Record) -> None:
        """The figures that the store keeps are those that counting gives."""
        state = self.run(subject.store.state()).model_dump()
        wait = state.pop("oldest_queued_age_seconds")
        unsure = {"finished_without_spans", "finished_without_reward"}
        expected = {
            name: value
            for name, value in figures.items()
            if name != "oldest_queued_age_seconds" and not (self.spans_in_doubt and name in unsure)
        }
        self.same({name: state[name] for name in expected}, expected, "state")
        assert abs(wait - figures["oldest_queued_age_seconds"]) < TICK, (wait, figures)

    # Choosing

    def rollout(self, number: int) -> str:
        known = list(self.model.rollouts)
        return known[-1 - number % len(known)] if known and number < 12 else "ro-unknown"

    def attempt(self, rollout_id: str, number: int) -> str:
        attempts = self.model.attempts.get(rollout_id)
        if not attempts or number == 12:
            return "latest" if number % 2 else "at-unknown"
        return "latest" if number > 6 else attempts[-1 - number % len(attempts)]["attempt_id"]

    def span(self, which: int, attempt: int, number: int) -> Record:
        rollout_id = self.rollout(which)
        attempt_id = self.attempt(rollout_id, attempt)
        if attempt_id == "latest":
            attempts = self.model.attempts.get(rollout_id)
            attempt_id = attempts[-1]["attempt_id"] if attempts else "at-unknown"
        ids = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}"}
        return {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": number,
            **ids,
            "parent_id": None if number % 2 else f"{number // 2:016x}",
            "name": REWARD_NAME if number == 5 else f"name-{number % 3}",
            "status": {"status_code": "OK", "description": None},
            "attributes": {
                "n": number,
                "tags": ["a", "b"],
                **({REWARD: 0.5} if number == 6 else {}),
            },
            "events": [],
            "links": [],
            "start_time": 1.0 * number,
            "end_time": None,
            "context": None,
            "parent": None,
            "resource": {"attributes": {}, "schema_url": ""},
        }

    # Rules

    @rule(ticks=st.sampled_from([1, 16, 40, 140, 300, 4000]))
    def time_passes(self, ticks: int) -> None:
        CLOCK.now += ticks * TICK

    @rule(request=requests, worker_id=worker)
    def start_rollout(self, request: Record, worker_id: str | None) -> None:
        self.call("start_rollout", **request, worker_id=worker_id)

    @rule(request=requests)
    def enqueue_rollout(self, request: Record) -> None:
        self.call("enqueue_rollout", **request)

    @rule(wanted=st.lists(requests, max_size=3))
    def enqueue_many(self, wanted: list[Record]) -> None:
        self.call("enqueue_many_rollouts", wanted)

    @rule(worker_id=worker)
    def dequeue(self, worker_id: str | None) -> None:
        self.call("dequeue_rollout", worker_id=worker_id)

    @rule(limit=st.sampled_from([-1, 0, 1, 2, 3]), worker_id=worker)
    def dequeue_many(self, limit: int, worker_id: str | None) -> None:
        limit = max(limit, 1) if self.remote else limit
        self.call("dequeue_many_rollouts", limit=limit, worker_id=worker_id)

    @rule(which=index, worker_id=worker)
    def start_attempt(self, which: int, worker_id: str | None) -> None:
        self.call("start_attempt", self.rollout(which), worker_id=worker_id)

    @rule(
        which=index,
        changes=subset(
            status=st.sampled_from(STATUSES),
            mode=modes,
            config=configs.filter(bool),
            metadata=metadata,
        ),
    )
    def update_rollout(self, which: int, changes: Record) -> None:
        self.call("update_rollout", self.rollout(which), **changes)

    @rule(
        which=index,
        attempt=index,
        changes=subset(
            status=st.sampled_from(ATTEMPT_STATUSES),
            worker_id=st.sampled_from(["w-1", "w-2"]),
            metadata=metadata.filter(lambda value: value is not None),
        ),
        silence=st.sampled_from([None, None, 0, 1, 100]),
    )
    def update_attempt(
        self, which: int, attempt: int, changes: Record, silence: float | None
    ) -> None:
        if silence is not None:
            changes = {**changes, "last_heartbeat_time": CLOCK.now - silence}
        rollout_id = self.rollout(which)
        self.call("update_attempt", rollout_id, self.attempt(rollout_id, attempt), **changes)

    @rule(end=st.sampled_from(FINISHED), late=st.sampled_from(ATTEMPT_STATUSES))
    def report_after_the_end(self, end: str, late: str) -> None:
        rollout_id = self.rollout(0)
        self.call("update_rollout", rollout_id, status=end)
        self.call("update_attempt", rollout_id, "latest", status=late)
        self.call("update_rollout", rollout_id, status="running")

    @rule(which=index, attempt=index, number=st.integers(1, 6))
    def add_span(self, which: int, attempt: int, number: int) -> None:
        self.call("add_span", self.span(which, attempt, number))

    @rule(parts=st.lists(st.tuples(index, index, st.integers(1, 6)), max_size=4))
    def add_many_spans(self, parts: list[tuple[int, int, int]]) -> None:
        self.call("add_many_spans", [self.span(*part) for part in parts])

    @rule(which=index)
    def next_number(self, which: int) -> None:
        self.call("get_next_span_sequence_id", self.rollout(which), "at-any")

    @rule(several=st.lists(index, max_size=4))
    def next_numbers(self, several: list[int]) -> None:
        pairs = [(self.rollout(which), "at-any") for which in several]
        self.call("get_many_span_sequence_ids", pairs)

    @rule(several=st.lists(index, max_size=4))
    def wait(self, several: list[int]) -> None:
        ids = [self.rollout(which) for which in several]
        self.call("wait_for_rollouts", rollout_ids=ids, timeout=0)

    @rule(which=index, attempt=index)
    def read(self, which: int, attempt: int) -> None:
        rollout_id = self.rollout(which)
        self.call("get_rollout_by_id", rollout_id)
        self.call("query_attempts", rollout_id)
        self.call("get_latest_attempt", rollout_id)
        self.call("query_spans", rollout_id, self.attempt(rollout_id, attempt))

    @rule()
    def read_all(self) -> None:
        self.call("query_rollouts")
        self.call("query_workers")
        self.call("query_resources")
        self.call("get_latest_resources")
        self.call("statistics")

    @rule(named=st.sampled_from([None, "mine"]), content=resources)
    def put_resources(self, named: str | None, content: Record) -> None:
        if named is None:
            self.call("add_resources", content)
        else:
            self.call("update_resources", named, content)
            self.call("get_resources_by_id", named)

    @rule(worker_id=worker.filter(bool), changes=subset(heartbeat_stats=metadata.filter(bool)))
    def update_worker(self, worker_id: str, changes: Record) -> None:
        self.call("update_worker", worker_id, **changes)
        self.call("get_worker_by_id", worker_id)


def _comparable(result: Any, expected: Any) -> Any:
    """The result without what the model does not know."""
    if isinstance(result, dict) and isinstance(expected, list):
        assert result["total"] == len(result["items"])
        return result["items"]
    if isinstance(result, dict) and isinstance(expected, dict):
        return {key: value for key, value in result.items() if key in expected or key == "attempt"}
    return result


def _differences(found: Any, expected: Any, where: str = "") -> list[str]:
    if found == expected:
        return []
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [*expected, *(key for key in found if key not in expected)]
        pairs = [(f"{where}.{key}", found.get(key, "-"), expected.get(key, "-")) for key in keys]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [
            (f"{where}[{i}]", *pair) for i, pair in enumerate(zip(found, expected, strict=True))
        ]
    else:
        return [f"{where}: {found!r}, {expected!r}"]
    return [line for place, one, other in pairs for line in _differences(one, other, place)]


def _by_key(content: Record) -> Record:
    def key_of(item: Record) -> Any:
        if "span_id" in item:
            return (item["rollout_id"], item["attempt_id"], item["span_id"])
        names = ("attempt_id", "rollout_id", "worker_id", "resources_id")
        return next(item[name] for name in names if name in item)

    keyed = {
        name: {key_of(item): item for item in items}
        for name, items in content.items()
        if name != "queue"
    }
    for name, items in keyed.items():
        assert len(items) == len(content[name]), f"{name}: one key, two items"
    return {**keyed, "queue": content["queue"]}


def _check_sense(content: Record) -> None:
    """Rules that hold at any time, whatever happened before."""
    waiting = [r["rollout_id"] for r in content["rollouts"] if r["status"] in WAITING]
    assert sorted(waiting) == content["queue"], "queue and statuses differ"
    numbers: dict[str, list[int]] = {}
    for attempt in content["attempts"]:
        numbers.setdefault(attempt["rollout_id"], []).append(attempt["sequence_id"])
    for several in numbers.values():
        assert sorted(several) == list(range(1, len(several) + 1))
    for rollout in content["rollouts"]:
        assert (rollout["end_time"] is not None) == (rollout["status"] in FINISHED)
    for one in content["workers"]:
        busy = one["status"] == "busy"
        assert (one["current_rollout_id"] is not None) == busy
