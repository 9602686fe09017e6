"""How the counts of Prometheus are compared with what was played."""

from __future__ import annotations

from agl.bench.prometheus import judge

IDLE = {("succeeded", "train"): 0.0, ("failed", "train"): 0.0, ("cancelled", "val"): 0.0}


def test_agreement() -> None:
    before = {**IDLE, ("succeeded", "train"): 5.0}
    after = {**IDLE, ("succeeded", "train"): 12.0, ("failed", "train"): 1.0}
    verdict = judge(before, after, {("succeeded", "train"): 7, ("failed", "train"): 1})
    assert verdict.problems == ()
    assert (verdict.before, verdict.after, verdict.difference, verdict.played) == (5, 13, 8, 8)


def test_a_missing_event_is_named_by_its_labels() -> None:
    verdict = judge(IDLE, {**IDLE, ("succeeded", "train"): 6.0}, {("succeeded", "train"): 7})
    assert len(verdict.problems) == 1
    assert 'status="succeeded", mode="train"} rose by 6, played 7' in verdict.problems[0]


def test_events_of_others_are_named() -> None:
    verdict = judge(IDLE, {**IDLE, ("cancelled", "val"): 2.0}, {})
    assert 'status="cancelled", mode="val"} rose by 2, played 0' in verdict.problems[0]


def test_a_series_born_with_its_first_event_is_a_problem() -> None:
    verdict = judge(IDLE, {**IDLE, ("succeeded", "val"): 1.0}, {("succeeded", "val"): 1})
    assert len(verdict.problems) == 1
    assert "did not exist before its first event" in verdict.problems[0]


def test_a_series_that_never_came_is_a_problem() -> None:
    verdict = judge({}, {}, {("succeeded", "val"): 1})
    assert any("rose by 0, played 1" in problem for problem in verdict.problems)
