"""The yardstick: the smallest FastAPI application with a store's three busiest routes.

Pydantic models in and out, uvloop and httptools underneath, one dictionary insert a route; no
rules, no locks, no metrics. What a store is compared with by ``scripts/bench store``.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class StartRollout(BaseModel):
    input: Any
    mode: str | None = None
    resources_id: str | None = None
    metadata: dict[str, Any] | None = None


class Attempt(BaseModel):
    rollout_id: str
    attempt_id: str
    sequence_id: int = 1
    start_time: float
    end_time: float | None = None
    status: str = "preparing"


class Rollout(BaseModel):
    rollout_id: str
    input: Any
    start_time: float
    end_time: float | None = None
    mode: str | None = None
    resources_id: str | None = None
    status: str = "preparing"
    metadata: dict[str, Any] | None = None
    attempt: Attempt


class Status(BaseModel):
    status_code: str
    description: str | None = None


class Resource(BaseModel):
    attributes: dict[str, Any]
    schema_url: str


class Span(BaseModel):
    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    status: Status
    attributes: dict[str, str | bool | int | float]
    events: list[dict[str, Any]]
    links: list[dict[str, Any]]
    start_time: float | None
    end_time: float | None
    context: dict[str, Any] | None
    parent: dict[str, Any] | None
    resource: Resource


class Finish(BaseModel):
    status: str


app = FastAPI()
rollouts: dict[str, Rollout] = {}
spans: dict[tuple[str, str, str], Span] = {}
finished: dict[str, Attempt] = {}


@app.get("/v1/agl/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/agl/rollouts", status_code=201)
async def start_rollout(request: StartRollout) -> Rollout:
    rollout_id, now = f"ro-{uuid.uuid4().hex[:12]}", time.time()
    attempt = Attempt(
        rollout_id=rollout_id, attempt_id=f"at-{uuid.uuid4().hex[:8]}", start_time=now
    )
    rollout = Rollout(
        rollout_id=rollout_id,
        input=request.input,
        start_time=now,
        mode=request.mode,
        resources_id=request.resources_id,
        metadata=request.metadata,
        attempt=attempt,
    )
    rollouts[rollout_id] = rollout
    return rollout


@app.post("/v1/agl/spans", status_code=201)
async def add_span(span: Span) -> Span:
    spans[span.rollout_id, span.attempt_id, span.span_id] = span
    return span


@app.post("/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}")
async def finish(rollout_id: str, attempt_id: str, request: Finish) -> Attempt:
    attempt = rollouts[rollout_id].attempt.model_copy(
        update={"status": request.status, "end_time": time.time()}
    )
    finished[rollout_id] = attempt
    return attempt


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )
