"""Stories that random calls seldom tell to the end, each as one step of a state machine.

A step makes the whole sequence of calls, with the details at random; every call in it is compared
with the model as any other. Between the steps of a story nothing else happens, so what a store
forgets half-way is found in a few examples instead of by luck.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from store_machine import ATTEMPT_STATUSES, CLOCK, STATUSES, TICK, StoreMachine, resources, worker
from store_model import FINISHED, Record
from store_subject import Faults

LIMIT = 1.0
"""Seconds of the limits in the stories; exact as a float."""

REOPENINGS = ["start_attempt", "preparing", "running", "queuing", "requeuing"]
RETRIES = [["failed"], ["timeout"], ["unresponsive"], ["failed", "timeout", "unresponsive"], []]
GIVEN_UP = ["failed", "timeout", "unresponsive"]

ends = st.sampled_from(FINISHED)
limits = st.sampled_from(["timeout_seconds", "unresponsive_seconds"])
retries = st.sampled_from(RETRIES)
tries = st.integers(1, 3)


def limited(limit: str, retry: list[str], most: int = 2) -> Record:
    """A configuration with one limit."""
    return {
        "timeout_seconds": None,
        "unresponsive_seconds": None,
        "max_attempts": most,
        "retry_condition": retry,
        limit: LIMIT,
    }


class ScenarioMachine(StoreMachine):
    """Random calls with stories in between."""

    def started(self, config: Record | None = None, worker_id: str | None = None) -> str:
        """A new rollout under way; the backend is well."""
        self.armed = None
        self.call("start_rollout", input="story", config=config, worker_id=worker_id)
        return self.rollout(0)

    def nth_attempt(self, rollout_id: str, number: int) -> str:
        return self.model.attempts[rollout_id][number - 1]["attempt_id"]

    def until_due(self, share: float = 1.0) -> None:
        """Let the limit of the stories pass (or a share of it), and let the watchdog look."""
        CLOCK.now += LIMIT * share
        self.call("query_workers")

    @rule(end=ends, how=st.sampled_from(REOPENINGS), again=ends, worker_id=worker)
    def ends_and_opens_again(self, end: str, how: str, again: str, worker_id: str | None) -> None:
        rollout_id = self.started(worker_id=worker_id)
        self.call("update_rollout", rollout_id, status=end)
        if how == "start_attempt":
            self.call("start_attempt", rollout_id, worker_id=worker_id)
        else:
            self.call("update_rollout", rollout_id, status=how)
        self.call("wait_for_rollouts", rollout_ids=[rollout_id], timeout=0)
        self.call("get_rollout_by_id", rollout_id)
        self.call("update_rollout", rollout_id, status=again)
        self.call("wait_for_rollouts", rollout_ids=[rollout_id], timeout=0)

    @rule(
        first=st.sampled_from(ATTEMPT_STATUSES),
        then=st.sampled_from(ATTEMPT_STATUSES),
        retry=retries,
        worker_id=worker,
    )
    def attempt_changes_its_mind(
        self, first: str, then: str, retry: list[str], worker_id: str | None
    ) -> None:
        rollout_id = self.started(limited("timeout_seconds", retry), worker_id)
        self.call("update_attempt", rollout_id, "latest", status=first)
        self.call("update_attempt", rollout_id, "latest", status=then, metadata={"then": then})
        self.call("get_latest_attempt", rollout_id)

    @rule(
        status=st.sampled_from(ATTEMPT_STATUSES),
        number=st.integers(1, 2),
        worker_id=worker,
        span=st.booleans(),
    )
    def older_attempt_reports(
        self, status: str, number: int, worker_id: str | None, span: bool
    ) -> None:
        rollout_id = self.started(worker_id=worker_id)
        for _ in range(2):
            self.call("start_attempt", rollout_id, worker_id=worker_id)
        older = self.nth_attempt(rollout_id, number)
        if span:
            self.call("update_attempt", rollout_id, older, status="unresponsive")
            self.call("add_span", self.span(0, 3 - number, 1))
        self.call("update_attempt", rollout_id, older, status=status)
        self.call("get_rollout_by_id", rollout_id)

    @rule(
        field=st.sampled_from(["metadata", "worker_id", "last_heartbeat_time"]),
        status=st.sampled_from(STATUSES),
    )
    def report_without_status(self, field: str, status: str) -> None:
        """The attempt runs, its rollout has been put elsewhere by hand, and stays there."""
        rollout_id = self.started()
        self.call("update_attempt", rollout_id, "latest", status="running")
        self.call("update_rollout", rollout_id, status=status)
        values = {"metadata": {"late": True}, "worker_id": "w-2", "last_heartbeat_time": CLOCK.now}
        self.call("update_attempt", rollout_id, "latest", **{field: values[field]})
        self.call("get_rollout_by_id", rollout_id)

    # The watchdog

    @rule(limit=limits, retry=retries, most=tries, worker_id=worker)
    def falls_silent(self, limit: str, retry: list[str], most: int, worker_id: str | None) -> None:
        """As often as it may be tried, and once more."""
        rollout_id = self.started(limited(limit, retry, most), worker_id)
        for _ in range(3):
            self.until_due()
            if rollout_id in self.model.waiting():
                self.drain(worker_id)
        self.call("get_rollout_by_id", rollout_id)

    @rule(limit=limits, retry=retries)
    def limit_comes_later(self, limit: str, retry: list[str]) -> None:
        rollout_id = self.started()
        self.call("update_rollout", rollout_id, config=limited(limit, retry))
        self.until_due()
        self.call("get_rollout_by_id", rollout_id)

    @rule(limit=limits, reopening=st.sampled_from(["preparing", "running", "start_attempt"]))
    def limit_holds_after_reopening(self, limit: str, reopening: str) -> None:
        rollout_id = self.started(limited(limit, []))
        self.call("update_rollout", rollout_id, status="cancelled")
        self.until_due()
        if reopening == "start_attempt":
            self.call("start_attempt", rollout_id)
        else:
            self.call("update_rollout", rollout_id, status=reopening)
        self.until_due()
        self.call("get_rollout_by_id", rollout_id)

    @rule(by_span=st.booleans(), retry=retries)
    def signs_of_life_put_it_off(self, by_span: bool, retry: list[str]) -> None:
        rollout_id = self.started(limited("unresponsive_seconds", retry))
        for number in (1, 2):
            self.until_due(0.75)
            if by_span:
                self.call("add_span", self.span(0, 0, number))
            else:
                now = CLOCK.now
                self.call("update_attempt", rollout_id, "latest", last_heartbeat_time=now)
        self.call("get_rollout_by_id", rollout_id)
        self.until_due()
        self.call("get_rollout_by_id", rollout_id)

    @rule(silence=st.sampled_from([0.5, 0.75]))
    def old_heartbeat_brings_it_forward(self, silence: float) -> None:
        rollout_id = self.started(limited("unresponsive_seconds", []))
        self.until_due(0.25)
        heard = CLOCK.now - silence
        self.call("update_attempt", rollout_id, "latest", last_heartbeat_time=heard)
        self.until_due(0.5)
        self.call("get_rollout_by_id", rollout_id)

    @rule(heard=st.sampled_from([0.0, -1.0]))
    def heartbeat_of_nought(self, heard: float) -> None:
        rollout_id = self.started(limited("unresponsive_seconds", ["unresponsive"]))
        self.call("update_attempt", rollout_id, "latest", last_heartbeat_time=heard)
        self.call("get_rollout_by_id", rollout_id)

    @rule(limit=limits, ticks=st.integers(-1, 1))
    def exactly_on_time(self, limit: str, ticks: int) -> None:
        """A limit is exceeded after it, not at it."""
        rollout_id = self.started(limited(limit, []))
        CLOCK.now += LIMIT + (ticks - 1) * TICK
        self.call("get_rollout_by_id", rollout_id)

    @rule(
        given_up=st.sampled_from(GIVEN_UP),
        sign=st.sampled_from(["span", "heartbeat", "succeeded", "running", "failed"]),
        newer=st.booleans(),
        worker_id=worker,
    )
    def lives_after_all(self, given_up: str, sign: str, newer: bool, worker_id: str | None) -> None:
        """What an attempt that was given up says, its rollout waiting or tried again already."""
        rollout_id = self.started(limited("timeout_seconds", GIVEN_UP, 3), worker_id)
        self.call("update_attempt", rollout_id, "latest", status=given_up)
        if newer:
            self.drain(worker_id)
        first = self.nth_attempt(rollout_id, 1)
        if sign == "span":
            self.call("add_span", {**self.span(0, 0, 1), "attempt_id": first})
        elif sign == "heartbeat":
            self.call("update_attempt", rollout_id, first, last_heartbeat_time=CLOCK.now)
        else:
            self.call("update_attempt", rollout_id, first, status=sign)
        self.call("get_rollout_by_id", rollout_id)
        self.call("wait_for_rollouts", rollout_ids=[rollout_id], timeout=0)

    # Queue, workers, numbers, resources

    @rule(worker_id=worker, times=st.integers(1, 2))
    def asks_for_more_than_there_is(self, worker_id: str | None, times: int) -> None:
        self.armed = None
        self.call("enqueue_many_rollouts", [{"input": 1}, {"input": 2}])
        self.drain(worker_id)
        for _ in range(times):
            self.call("dequeue_rollout", worker_id=worker_id)
        self.call("query_workers")

    @rule(status=st.sampled_from(["queuing", "requeuing"]), order=st.booleans())
    def goes_back_to_the_end(self, status: str, order: bool) -> None:
        """Who waits keeps his place, whatever waiting is called; who comes back gets the last."""
        self.drain()
        self.call("enqueue_many_rollouts", [{"input": 1}, {"input": 2}])
        first = self.rollout(1)
        if order:
            self.call("update_rollout", first, status="running")
        self.call("update_rollout", first, status=status)
        self.call("dequeue_rollout")
        self.call("dequeue_rollout")

    @rule(number=st.integers(3, 9), refused=st.booleans())
    def numbers_go_on(self, number: int, refused: bool) -> None:
        rollout_id = self.started()
        span = self.span(0, 0, number)
        self.call("add_span", {**span, "attempt_id": "at-unknown"} if refused else span)
        self.call("add_many_spans", [self.span(0, 0, 2), span])
        self.call("get_next_span_sequence_id", rollout_id, "at-any")

    @rule(content=resources, named=st.booleans())
    def resources_are_inherited(self, content: Record, named: bool) -> None:
        self.call("add_resources", content)
        if named:
            self.call("update_resources", "mine", content)
        self.call("enqueue_rollout", input=1)
        self.call("start_rollout", input=1, resources_id="no-such-resources")
        self.call("get_latest_resources")


class FailingScenarioMachine(ScenarioMachine):
    """The backend of the one store fails now and then."""

    @rule(point=st.sampled_from(Faults.POINTS))
    def fail_next_time(self, point: str) -> None:
        self.armed = point

    @rule(point=st.sampled_from(["write", "rollouts.find", "attempts.find_newest"]), limit=limits)
    def watchdog_fails_once(self, point: str, limit: str) -> None:
        """What was due then is due the next time."""
        rollout_id = self.started(limited(limit, ["timeout", "unresponsive"], 3))
        self.armed = point
        self.until_due()
        self.armed = None
        self.call("get_rollout_by_id", rollout_id)
