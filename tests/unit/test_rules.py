"""Tables of the state machine."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from agl.store import rules
from agl.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)

NOW = 1000.0
ROLLOUT_STATUSES: tuple[Any, ...] = get_args(RolloutStatus)
ATTEMPT_STATUSES: tuple[Any, ...] = get_args(AttemptStatus)
QUEUED = ("queuing", "requeuing")
FINISHED = ("succeeded", "failed", "cancelled")


def rollout(status: Any = "running", **values: Any) -> Rollout:
    end = 500.0 if status in FINISHED else None
    return Rollout(
        rollout_id="ro", input=None, start_time=0.0, end_time=end, status=status, **values
    )


def attempt(status: Any = "running", **values: Any) -> Attempt:
    return Attempt(
        **{
            "rollout_id": "ro",
            "attempt_id": "at",
            "sequence_id": 1,
            "start_time": 0.0,
            "status": status,
            **values,
        }
    )


@pytest.mark.parametrize("before", ROLLOUT_STATUSES)
@pytest.mark.parametrize("after", ROLLOUT_STATUSES)
def test_an_explicit_status_may_follow_any_other(before: Any, after: Any) -> None:
    move = rules.move_rollout(rollout(before), after, NOW)

    if before == after and before not in QUEUED:
        assert move is None
        return
    assert move is not None
    assert move.status == after
    assert move.end_time == (NOW if after in FINISHED else None)
    assert move.finishes == (after in FINISHED and before not in FINISHED)
    if after in QUEUED:
        assert move.queue == "enter"
    else:
        assert move.queue == ("leave" if before in QUEUED else "stay")


RETRY = ["failed", "timeout", "unresponsive"]


@pytest.mark.parametrize(
    ("status", "sequence", "attempts", "condition", "expected"),
    [
        ("preparing", 1, 1, [], "preparing"),
        ("running", 1, 1, [], "running"),
        ("succeeded", 1, 1, [], "succeeded"),
        ("succeeded", 1, 3, RETRY, "succeeded"),
        ("failed", 1, 1, [], "failed"),
        ("failed", 1, 1, RETRY, "failed"),
        ("failed", 1, 2, RETRY, "requeuing"),
        ("failed", 2, 2, RETRY, "failed"),
        ("failed", 3, 2, RETRY, "failed"),
        ("failed", 1, 2, ["timeout"], "failed"),
        ("timeout", 1, 2, ["timeout"], "requeuing"),
        ("timeout", 1, 2, ["failed"], "failed"),
        ("unresponsive", 1, 2, ["unresponsive"], "requeuing"),
        ("unresponsive", 2, 2, ["unresponsive"], "failed"),
        ("succeeded", 1, 2, ["succeeded"], "succeeded"),
        ("running", 1, 2, ["running"], "running"),
    ],
)
def test_where_an_attempt_takes_its_rollout(
    status: Any, sequence: int, attempts: int, condition: Any, expected: str
) -> None:
    config = RolloutConfig(max_attempts=attempts, retry_condition=condition)
    assert rules.rollout_status_after(status, sequence, config) == expected


@pytest.mark.parametrize("before", ROLLOUT_STATUSES)
@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_follow_attempt(before: Any, status: Any) -> None:
    move = rules.follow_attempt(rollout(before), attempt(status), NOW)

    if before in FINISHED:
        assert move is None
        return
    expected = "failed" if status in RETRY else status
    if expected == before:
        assert move is None
        return
    assert move is not None
    assert move.status == expected
    assert move.queue == ("leave" if before in QUEUED else "stay")
    assert move.finishes == (expected in FINISHED)


@pytest.mark.parametrize("before", ["queuing", "requeuing", "preparing", "running"])
def test_a_retry_enters_the_queue(before: Any) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    move = rules.follow_attempt(rollout(before, config=config), attempt("failed"), NOW)
    assert move == rules.RolloutMove("requeuing", None, "enter", False)


@pytest.mark.parametrize(
    ("before", "end", "status", "expected_end"),
    [
        ("preparing", None, "running", None),
        ("running", None, "succeeded", NOW),
        ("running", None, "failed", NOW),
        ("running", None, "timeout", None),
        ("running", None, "unresponsive", None),
        ("succeeded", 5.0, "succeeded", 5.0),
        ("failed", 5.0, "succeeded", NOW),
        ("failed", 5.0, "timeout", 5.0),
        ("failed", 5.0, "running", None),
        ("succeeded", 5.0, "preparing", None),
        ("unresponsive", None, "succeeded", NOW),
    ],
)
def test_end_time_of_an_attempt(
    before: Any, end: float | None, status: Any, expected_end: float | None
) -> None:
    move = rules.move_attempt(attempt(before, end_time=end), status, NOW)
    assert move == rules.AttemptMove(status, expected_end)


@pytest.mark.parametrize(
    ("before", "after_span", "after_heartbeat"),
    [
        ("preparing", "running", "preparing"),
        ("running", "running", "running"),
        ("unresponsive", "running", "running"),
        ("timeout", "timeout", "timeout"),
        ("failed", "failed", "failed"),
        ("succeeded", "succeeded", "succeeded"),
    ],
)
def test_signs_of_life(before: Any, after_span: str, after_heartbeat: str) -> None:
    assert rules.attempt_after_sign_of_life(before, span=True) == after_span
    assert rules.attempt_after_sign_of_life(before, span=False) == after_heartbeat


@pytest.mark.parametrize("before", ROLLOUT_STATUSES)
@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_a_rollout_after_a_sign_of_life(before: Any, status: Any) -> None:
    move = rules.rollout_after_sign_of_life(rollout(before), attempt(status), NOW)

    if status != "running" or before in (*FINISHED, "running"):
        assert move is None
    else:
        queue = "leave" if before in QUEUED else "stay"
        assert move == rules.RolloutMove("running", None, queue, False)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("preparing", ("busy", True)),
        ("running", ("busy", True)),
        ("succeeded", ("idle", False)),
        ("failed", ("idle", False)),
        ("timeout", ("unknown", False)),
        ("unresponsive", ("unknown", False)),
    ],
)
def test_workers(status: Any, expected: tuple[str, bool]) -> None:
    assert rules.worker_after(status) == expected


@pytest.mark.parametrize("status", ROLLOUT_STATUSES)
def test_claimable(status: Any) -> None:
    assert rules.claimable(rollout(status)) == (status in QUEUED)


@pytest.mark.parametrize(
    ("timeout", "silence", "start", "heartbeat", "deadline", "expected"),
    [
        (None, None, 0.0, None, None, None),
        (10.0, None, 990.0, None, 1000.0, None),
        (10.0, None, 989.0, None, 999.0, "timeout"),
        (10.0, None, 989.0, 999.0, 999.0, "timeout"),
        (None, 10.0, 990.0, None, 1000.0, None),
        (None, 10.0, 989.0, None, 999.0, "unresponsive"),
        (None, 10.0, 0.0, 995.0, 1005.0, None),
        (None, 10.0, 0.0, 980.0, 990.0, "unresponsive"),
        (10.0, 10.0, 980.0, 980.0, 990.0, "timeout"),
        (100.0, 10.0, 980.0, 980.0, 990.0, "unresponsive"),
    ],
)
def test_overdue(
    timeout: float | None,
    silence: float | None,
    start: float,
    heartbeat: float | None,
    deadline: float | None,
    expected: str | None,
) -> None:
    config = RolloutConfig(timeout_seconds=timeout, unresponsive_seconds=silence)
    tried = attempt(start_time=start, last_heartbeat_time=heartbeat)

    for status in ("preparing", "running"):
        assert rules.overdue(rollout(status, config=config), tried, NOW) == expected
    for status in (*QUEUED, *FINISHED):
        assert rules.overdue(rollout(status, config=config), tried, NOW) is None
    assert rules.deadline(rollout(config=config), tried) == deadline


def test_scan_names_the_attempts_to_give_up() -> None:
    config = RolloutConfig(timeout_seconds=1)
    late = AttemptedRollout(**rollout(config=config).__dict__, attempt=attempt())
    fine = AttemptedRollout(**rollout().__dict__, attempt=attempt())
    assert rules.scan_unhealthy_rollouts([late, fine], NOW) == {("ro", "at"): "timeout"}
