"""The arithmetic agent against tasks whose answers are known, and what its spans look like."""

from __future__ import annotations

import gzip
import itertools
import threading
from base64 import b64encode
from collections import Counter
from email.message import Message
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExportResult

from agl.bench.agent import (
    REWARD_SPAN,
    REWARD_VALUE,
    AgentError,
    AgentSettings,
    ArithmeticAgent,
    TaskSyntaxError,
    ToolBudgetExceededError,
    ToolError,
    plan,
)
from agl.bench.tasks import TOOL_BUDGET, draw_task
from agl.bench.tracing import ATTEMPT_ID, ROLLOUT_ID, SEQUENCE_ID, AttemptRecording, otlp_exporter
from agl.bench.verify import Evidence, expected_attempts, problems
from agl.types import Attempt, Rollout, Span


def play(task: str, answer: str, attempt: int = 1) -> tuple[AttemptRecording, float]:
    recording = AttemptRecording("ro-1", f"at-{attempt}", itertools.count(1).__next__)
    settings = AgentSettings("m", "Work out {task}", TOOL_BUDGET * attempt, "rs-1", attempt)
    return recording, ArithmeticAgent(recording.tracer, settings).run(task, answer)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("(17 + 5) * 3 - 8", "58"),
        ("2 + 3 * 4", "14"),
        ("10 - 4 - 3", "3"),
        ("10 - (4 - 3)", "9"),
        ("8 / 4 / 2", "1"),
        ("1/3 + 1/3", "2/3"),
        ("((7))  *(2)", "14"),
    ],
)
def test_right_answers_earn_the_reward(task: str, answer: str) -> None:
    recording, reward = play(task, answer)
    calls = sum(span.name.startswith("execute_tool") for span in recording.spans)
    assert reward == 1 + 1 / calls
    emitted = [span for span in recording.spans if span.name == REWARD_SPAN]
    assert [dict(span.attributes or {})[REWARD_VALUE] for span in emitted] == [reward]


def test_a_wrong_expectation_earns_nothing() -> None:
    assert play("1 + 1", "3")[1] == 0


@pytest.mark.parametrize(
    "task", ["", "1 +", "1 2 +", "+ 1", "(1", "1)", "()", "(1) 2", "1 + a", "1 ** 2", "1.5 + 1"]
)
def test_what_is_no_expression_is_refused(task: str) -> None:
    with pytest.raises(TaskSyntaxError):
        plan(task)


def test_the_plan_puts_operands_first() -> None:
    assert plan("1 + 2 * 3") == [Fraction(1), Fraction(2), Fraction(3), "*", "+"]


def test_every_kind_of_task_ends_as_its_name_says() -> None:
    seen: Counter[str] = Counter()
    for index in range(60):
        task = draw_task(7, index)
        seen[task.kind] += 1
        if task.kind == "plain":
            assert play(task.text, task.answer)[1] > 1, task
        elif task.kind == "long":
            with pytest.raises(ToolBudgetExceededError):
                play(task.text, task.answer)
            assert play(task.text, task.answer, attempt=2)[1] > 1, task
        else:
            for attempt in (1, 2):
                with pytest.raises(ToolError):
                    play(task.text, task.answer, attempt)
    assert seen == {"plain": 51, "long": 6, "undefined": 3}


def test_tasks_depend_on_the_seed_alone() -> None:
    assert [draw_task(3, i) for i in range(20)] == [draw_task(3, i) for i in range(20)]
    assert [draw_task(3, i) for i in range(20)] != [draw_task(4, i) for i in range(20)]


def test_spans_carry_the_ids_the_store_needs() -> None:
    recording, _ = play("1 + 2 * 3", "7")
    numbers = [dict(span.attributes or {})[SEQUENCE_ID] for span in recording.spans]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for span in recording.spans:
        assert span.resource.attributes[ROLLOUT_ID] == "ro-1"
        assert span.resource.attributes[ATTEMPT_ID] == "at-1"


def evidence_of(index: int) -> tuple[Evidence, int]:
    """Play every attempt of a task and return what a store that keeps everything would say."""
    task = draw_task(0, index)
    numbers = itertools.count(1)
    attempts: list[Attempt] = []
    spans: list[Span] = []
    for expected in expected_attempts(task, "rs-1"):
        number = len(attempts) + 1
        recording = AttemptRecording("ro-1", f"at-{number}", numbers.__next__)
        settings = AgentSettings("m", "Work out {task}", TOOL_BUDGET * number, "rs-1", number)
        try:
            ArithmeticAgent(recording.tracer, settings).run(task.text, task.answer)
            status = "succeeded"
        except AgentError:
            status = "failed"
        assert status == expected.status
        attempts.append(
            Attempt(
                rollout_id="ro-1",
                attempt_id=f"at-{number}",
                sequence_id=number,
                start_time=1.0,
                status=status,
            )
        )
        for span in recording.spans:
            sequence_id = dict(span.attributes or {})[SEQUENCE_ID]
            assert isinstance(sequence_id, int)
            spans.append(Span.from_opentelemetry(span, "ro-1", f"at-{number}", sequence_id))
    rollout = Rollout(
        rollout_id="ro-1",
        input=None,
        start_time=1.0,
        end_time=2.0,
        resources_id="rs-1",
        status="succeeded" if attempts[-1].status == "succeeded" else "failed",
    )
    return Evidence(rollout, attempts, sorted(spans, key=lambda span: span.sequence_id)), index


@pytest.mark.parametrize("index", [1, 2, 5, 10, 15, 30])
def test_verification_accepts_what_the_agent_does(index: int) -> None:
    evidence, _ = evidence_of(index)
    assert problems(draw_task(0, index), "rs-1", evidence) == []


def drop_span(evidence: Evidence) -> Evidence:
    return Evidence(evidence.rollout, evidence.attempts, evidence.spans[:-1])


def wrong_status(evidence: Evidence) -> Evidence:
    rollout = evidence.rollout.model_copy(update={"status": "cancelled"})
    return Evidence(rollout, evidence.attempts, evidence.spans)


def wrong_task(evidence: Evidence) -> Evidence:
    first = evidence.spans[0]
    other = first.model_copy(update={"attributes": {**first.attributes, "task": "1 + 1"}})
    return Evidence(evidence.rollout, evidence.attempts, [other, *evidence.spans[1:]])


def wrong_reward(evidence: Evidence) -> Evidence:
    last = evidence.spans[-1]
    other = last.model_copy(update={"attributes": {**last.attributes, REWARD_VALUE: 0.5}})
    return Evidence(evidence.rollout, evidence.attempts, [*evidence.spans[:-1], other])


def wrong_parent(evidence: Evidence) -> Evidence:
    other = evidence.spans[1].model_copy(update={"parent_id": None})
    return Evidence(
        evidence.rollout, evidence.attempts, [evidence.spans[0], other, *evidence.spans[2:]]
    )


def missing_attempt(evidence: Evidence) -> Evidence:
    return Evidence(evidence.rollout, evidence.attempts[1:], evidence.spans)


@pytest.mark.parametrize(
    ("spoil", "index", "complaint"),
    [
        (drop_span, 1, "spans ["),
        (wrong_status, 1, "status cancelled, expected succeeded"),
        (wrong_task, 1, "task is '1 + 1'"),
        (wrong_reward, 1, "final reward 0.5, expected 1.5"),
        (wrong_parent, 1, "plan: parent None"),
        (missing_attempt, 5, "1 attempts, expected 2"),
    ],
)
def test_verification_names_what_is_wrong(spoil, index: int, complaint: str) -> None:
    evidence, _ = evidence_of(index)
    lines = problems(draw_task(0, index), "rs-1", spoil(evidence))
    assert any(complaint in line for line in lines), lines


class Capture(BaseHTTPRequestHandler):
    """Keeps what is posted, to look at the wire."""

    posted: ClassVar[list[tuple[str, Message, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, self.headers, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Stay silent."""


def test_an_export_is_gzipped_protobuf_with_the_credentials_of_the_url() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Capture) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        exporter = otlp_exporter(f"http://agl:p%40ss@127.0.0.1:{server.server_port}/root/")
        recording, _ = play("1 + 2 * 3", "7")
        result = exporter.export(recording.spans)
        exporter.shutdown()
        server.shutdown()
        thread.join()
    assert result is SpanExportResult.SUCCESS
    path, headers, body = Capture.posted.pop()
    assert path == "/root/v1/traces"
    assert headers["Authorization"] == "Basic " + b64encode(b"agl:p@ss").decode()
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["Content-Encoding"] == "gzip"
    request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
    spans = request.resource_spans[0].scope_spans[0].spans
    assert sorted(span.name for span in spans) == sorted(span.name for span in recording.spans)
