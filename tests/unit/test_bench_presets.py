"""Scenario presets, the random agent, what must come of it, and the guard against stalls."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import pytest

from agl.bench.neighbours import (
    AGENT_KEY,
    RUN_KEY,
    agent_of,
    first_free_number,
    others_since,
)
from agl.bench.presets import PRESETS, Preset
from agl.bench.prometheus import judge
from agl.bench.random_agent import TraceSettings, draw_plan, write_trace
from agl.bench.stall import StallGuard, describe_workers, names_of
from agl.bench.tracing import AttemptRecording
from agl.bench.verify import Evidence
from agl.bench.workloads import RandomWorkload
from agl.cli import bench_scenario
from agl.errors import UsageError
from agl.types import Rollout, Span, Worker

SEED = 7
PRESET = Preset("", max_rounds=4, sleep_seconds=0.0)


def preset_of(*arguments: str) -> Preset:
    parser = argparse.ArgumentParser()
    bench_scenario.add_options(parser)
    return bench_scenario.preset_of(parser.parse_args(list(arguments)))


def test_the_defaults_are_those_of_0_3() -> None:
    one = Preset("")
    assert (one.mode, one.rollouts, one.batch_size, one.remaining) == ("batch", 16384, 128, 512)
    assert (one.concurrency, one.runners, one.max_rounds) == (32, 32, 10)
    assert (one.sleep_seconds, one.poll_seconds) == (1.0, 5.0)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_made_small(name: str) -> None:
    small = preset_of(name, "--scale", "0.001")
    for count in ("rollouts", "batch_size", "remaining", "concurrency", "runners"):
        full: int = getattr(PRESETS[name], count)
        assert getattr(small, count) == max(-(-full // 1000), 1)
    assert small.poll_seconds == min(PRESETS[name].poll_seconds, 0.2)
    assert (small.mode, small.max_rounds) == (PRESETS[name].mode, PRESETS[name].max_rounds)
    assert preset_of(name, "--scale", "1") == PRESETS[name]


def test_what_is_asked_for_is_not_scaled() -> None:
    one = preset_of("medium", "--scale", "0.1", "--runners", "7", "--mode", "single")
    assert (one.runners, one.mode, one.rollouts) == (7, "single", 1000)
    assert preset_of("medium", "--sleep-seconds", "0").sleep_seconds == 0


@pytest.mark.parametrize("scale", ["0", "-1", "1.5", "nan", "much"])
def test_a_scale_that_makes_no_sense(scale: str) -> None:
    from agl.cli.bench import main

    with pytest.raises(UsageError, match=r"--scale.*above 0 and up to 1"):
        main(["scenario", "medium", "--scale", scale], "agl bench")


def played(index: int) -> list[Span]:
    """The spans of one trace as the store would return them."""
    recording = AttemptRecording("ro-1", "at-1", itertools.count(1).__next__)
    slept: list[float] = []
    settings = TraceSettings(SEED, index, PRESET.max_rounds, PRESET.sleep_seconds)
    write_trace(recording.tracer, settings, slept.append)
    assert len(slept) == 2 * len(draw_plan(settings).rewards) + 1
    spans = [
        Span.from_opentelemetry(
            span, "ro-1", "at-1", (span.attributes or {})["agentlightning.span_sequence_id"]
        )
        for span in recording.spans
    ]
    return sorted(spans, key=lambda span: span.sequence_id)


def problems(spans: list[Span], index: int, status: str = "succeeded") -> list[str]:
    rollout = Rollout(
        rollout_id="ro-1", input={}, start_time=1.0, status=status, resources_id="rs-1"
    )
    workload = RandomWorkload(SEED, PRESET)
    return workload.problems(index, "rs-1", Evidence(rollout, (), spans))


def test_what_the_random_agent_writes_is_what_is_expected() -> None:
    names: set[str] = set()
    for index in range(8):
        spans = played(index)
        assert problems(spans, index) == []
        names.update(span.name for span in spans)
        parents = {span.span_id: span.name for span in spans}
        for span in spans:
            if span.name.startswith("round"):
                agent = parents[span.parent_id or ""]
                assert agent == f"agent{span.name.removeprefix('round').partition('_')[0]}"
    assert {"agent0", "round0_1", "round0_2", "final", "agentlightning.annotation"} <= names


def test_traces_are_reproducible_and_differ() -> None:
    first, again, other = played(1), played(1), played(2)
    assert [span.attributes for span in first] == [span.attributes for span in again]
    assert [span.attributes for span in first] != [span.attributes for span in other]


def test_a_span_of_many_attributes_keeps_them_and_its_number() -> None:
    recording = AttemptRecording("ro-1", "at-1", itertools.count(1).__next__)
    with recording.tracer.start_as_current_span(
        "wide", attributes={f"a{n}": n for n in range(300)}
    ):
        pass
    (span,) = recording.spans
    assert len(span.attributes or {}) == 301
    assert (span.attributes or {})["agentlightning.span_sequence_id"] == 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda spans: spans[:-1], "final reward"),
        (lambda spans: spans[1:], "spans: missing {'agent0': 1}"),
        (lambda spans: [*spans, spans[-1]], "too many {'agentlightning.annotation': 1}"),
        (lambda spans: [*spans[:-3], spans[-2], spans[-3], spans[-1]], "span numbers"),
        (lambda spans: [s.model_copy(update={"attributes": {}}) for s in spans], "the task"),
        (lambda spans: [], "the task in its spans is []"),
    ],
)
def test_what_is_missing_or_wrong_is_said(spoil: Any, complaint: str) -> None:
    assert any(complaint in line for line in problems(spoil(played(3)), 3))


def test_a_status_that_is_wrong_is_said() -> None:
    (line,) = problems(played(3), 3, status="failed")
    assert line == f"ro-1 (task 3 of seed {SEED}): status failed, expected succeeded"


def test_the_guard_warns_once_a_stall_and_then_gives_up() -> None:
    clock = iter([0, 10, 49, 51, 60, 70, 119, 121, 130, 171]).__next__
    guard = StallGuard(100, clock)
    seen = [guard.look(n) for n in (0, 0, 0, 0, 5, 5, 5, 5, 5)]
    assert seen == ["on", "on", "warn", "on", "on", "on", "warn", "on", "over"]


def test_the_guard_gives_nobody_up_unwarned() -> None:
    guard = StallGuard(100, iter([0, 500, 501]).__next__)
    assert [guard.look(0), guard.look(0)] == ["warn", "over"]


def test_who_is_to_blame_is_named_in_a_few_words() -> None:
    assert names_of([]) == "none"
    assert names_of([f"ro-{n}" for n in range(12)]).endswith("ro-9 and 2 more")
    worker = Worker(
        worker_id="Worker-3", status="busy", last_heartbeat_time=90.0, current_rollout_id="ro-1"
    )
    assert describe_workers([worker], 100.0) == "Worker-3 busy with ro-1, heartbeat 10 s ago"
    assert describe_workers([worker] * 12, 100.0).endswith("; 2 more")


def test_only_marked_rollouts_belong_to_a_run() -> None:
    assert agent_of({RUN_KEY: "a", AGENT_KEY: "random"}) == "random"
    assert agent_of({AGENT_KEY: "random"}) is None
    assert agent_of(None) is None


def test_workers_are_numbered_after_those_that_others_have() -> None:
    beats = {"Worker-0": 99.0, "Worker-4": 95.0, "Worker-9": 50.0, "Worker-7b": 99.0}
    workers = [Worker(worker_id=key, last_heartbeat_time=beat) for key, beat in beats.items()]
    workers.append(Worker(worker_id="Worker-20"))
    assert first_free_number(workers, now=100.0) == 5
    assert first_free_number([], now=100.0) == 0
    assert others_since(workers, ["Worker-0"], since=90.0) == ["Worker-4", "Worker-7b"]


def test_beside_others_the_counter_may_rise_by_more_but_not_by_less() -> None:
    outcome = ("succeeded", "train")
    for after, good in ((15.0, False), (14.0, True), (13.0, False)):
        assert (judge({outcome: 4.0}, {outcome: after}, {outcome: 10}).problems == ()) is good
    assert not judge({outcome: 4.0}, {outcome: 15.0}, {outcome: 10}, alone=False).problems
    assert judge({outcome: 4.0}, {outcome: 13.0}, {outcome: 10}, alone=False).problems
