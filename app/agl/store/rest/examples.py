"""Examples for the OpenAPI document: what is sent, and what comes back."""

from __future__ import annotations

from typing import Any

from agl.store.rest.wire import API_V1_AGL_PREFIX, FEATURES, HEALTH_PATH, TRACES_PATH

Example = tuple[Any, Any]
"""Request body and answer; ``None`` where there is none."""

_ROLLOUT_ID = "ro-5720adb24a60"
_ATTEMPT_ID = "at-14e6a0af"
_RESOURCES_ID = "rs-1a25dcfafeaa"
_TRACE_ID, _SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_IDS = {"rollout_id": _ROLLOUT_ID, "attempt_id": _ATTEMPT_ID}

_ATTEMPT: dict[str, Any] = {
    **_IDS,
    "sequence_id": 1,
    "start_time": 1795970356.19,
    "end_time": None,
    "status": "preparing",
    "worker_id": "Worker-0",
    "last_heartbeat_time": None,
    "metadata": None,
}
_CONFIG = {
    "timeout_seconds": 600.0,
    "unresponsive_seconds": 60.0,
    "max_attempts": 2,
    "retry_condition": ["failed", "timeout"],
}
_ROLLOUT: dict[str, Any] = {
    "rollout_id": _ROLLOUT_ID,
    "input": {"question": "6 * 7"},
    "start_time": 1795970356.15,
    "end_time": None,
    "mode": "train",
    "resources_id": _RESOURCES_ID,
    "status": "queuing",
    "config": _CONFIG,
    "metadata": {},
}
_ATTEMPTED = {**_ROLLOUT, "status": "preparing", "attempt": _ATTEMPT}
_FINISHED = {**_ROLLOUT, "status": "succeeded", "end_time": 1795970400.5}
_WANTED = {"input": {"question": "6 * 7"}, "mode": "train", "config": _CONFIG}
_LLM = {
    "resource_type": "llm",
    "endpoint": "http://127.0.0.1:9000/v1",
    "model": "m-1",
    "api_key": None,
    "sampling_parameters": {"temperature": 0.2},
}
_RESOURCES = {
    "resources_id": _RESOURCES_ID,
    "create_time": 1795970355.35,
    "update_time": 1795970355.35,
    "version": 1,
    "resources": {"main_llm": _LLM},
}
_WORKER = {
    "worker_id": "Worker-0",
    "status": "busy",
    "heartbeat_stats": {"cpu": 0.5},
    "last_heartbeat_time": 1795970357.01,
    "last_dequeue_time": 1795970356.19,
    "last_busy_time": 1795970356.19,
    "last_idle_time": None,
    "current_rollout_id": _ROLLOUT_ID,
    "current_attempt_id": _ATTEMPT_ID,
}
_SPAN: dict[str, Any] = {
    **_IDS,
    "sequence_id": 1,
    "trace_id": _TRACE_ID,
    "span_id": _SPAN_ID,
    "parent_id": None,
    "name": "chat",
    "status": {"status_code": "OK", "description": None},
    "attributes": {"gen_ai.request.model": "m-1"},
    "events": [],
    "links": [],
    "start_time": 1795970356.3,
    "end_time": 1795970357.1,
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}
_STUCK = {
    "kind": "silent",
    **_IDS,
    "status": "running",
    "attempt": 1,
    "worker_id": "Worker-0",
    "age_seconds": 75.0,
    "limit_seconds": 60.0,
    "share": 1.25,
    "command": f'curl "$AGL_STORE"{API_V1_AGL_PREFIX}/rollouts/{_ROLLOUT_ID}/attempts/{_ATTEMPT_ID}'
    " -H 'Content-Type: application/json' -d '{\"status\": \"failed\"}'",
}
_STATISTICS = {
    "name": "InMemoryLightningStore",
    "total_rollouts": 6,
    "total_attempts": 8,
    "total_spans": 31,
    "total_resources": 3,
    "total_workers": 5,
    "uptime": 61.41,
    "total_span_bytes": 61994,
}
_STATE = {
    "name": "InMemoryLightningStore",
    "rollouts": {
        "queuing": {"train": 2, "val": 0, "test": 0, "unknown": 0},
        "preparing": {"train": 0, "val": 0, "test": 0, "unknown": 0},
        "running": {"train": 1, "val": 0, "test": 0, "unknown": 0},
        "failed": {"train": 1, "val": 0, "test": 0, "unknown": 0},
        "succeeded": {"train": 1, "val": 1, "test": 0, "unknown": 0},
        "cancelled": {"train": 0, "val": 0, "test": 0, "unknown": 0},
        "requeuing": {"train": 0, "val": 0, "test": 0, "unknown": 0},
    },
    "queue_depth": 2,
    "oldest_queued_age_seconds": 12.5,
    "running_attempts": 1,
    "oldest_running_age_seconds": 45.0,
    "oldest_running_timeout_ratio": 0.75,
    "attempts": {
        "preparing": 0,
        "running": 1,
        "failed": 0,
        "succeeded": 2,
        "unresponsive": 0,
        "timeout": 2,
    },
    "retries": 1,
    "workers": {"idle": 1, "busy": 1, "unknown": 0},
    "silent_workers": 0,
    "worker_oldest_heartbeat_age_seconds": {"idle": 4.0, "busy": 9.5, "unknown": 0.0},
    "spans_stored": 31,
    "spans_evicted": 0,
    "finished_without_spans": {"train": 1, "val": 0, "test": 0, "unknown": 0},
    "finished_without_reward": {"train": 1, "val": 0, "test": 0, "unknown": 0},
    "span_bytes": 61994,
    "eviction_threshold_bytes": 6012954214,
    "safe_threshold_bytes": 4810363371,
    "memory_capacity_bytes": 8589934592,
}
_FAILURE = {
    "status": 404,
    "detail": "Rollout ro-x not found",
    "error_type": "RolloutNotFoundError",
}
_EXPORT = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [
                    {"key": f"agentlightning.{name}", "value": {"stringValue": value}}
                    for name, value in _IDS.items()
                ]
            },
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": _TRACE_ID,
                            "spanId": _SPAN_ID,
                            "name": "chat",
                            "startTimeUnixNano": "1795970356300000000",
                            "endTimeUnixNano": "1795970357100000000",
                        }
                    ]
                }
            ],
        }
    ]
}


def _page(item: Any) -> dict[str, Any]:
    return {"items": [item], "limit": 10, "offset": 0, "total": 1}


def _examples() -> dict[tuple[str, str], Example]:
    root = API_V1_AGL_PREFIX
    rollout, attempts = (
        f"{root}/rollouts/{{rollout_id}}",
        f"{root}/rollouts/{{rollout_id}}/attempts",
    )
    searched = {"limit": 10, "sort_by": "sequence_id"}
    health = {
        "status": "ok",
        "instance_id": "5f0c7a8e4b1d4c0f9a3e2d1c0b9a8f7e",
        "version": "0.1.0",
        "features": list(FEATURES),
    }
    done = {"status": "succeeded"}
    updates = [{**_IDS, **done}, {"rollout_id": "ro-x", "attempt_id": "latest", **done}]
    results = [
        {"attempt": {**_ATTEMPT, **done}, "error": None},
        {"attempt": None, "error": _FAILURE},
    ]
    return {
        ("GET", HEALTH_PATH): (None, health),
        ("GET", f"{root}/statistics"): (None, _STATISTICS),
        ("GET", f"{root}/state"): (None, _STATE),
        ("GET", f"{root}/stuck"): (None, {"items": [_STUCK]}),
        ("POST", f"{root}/queues/rollouts/enqueue"): ({"rollouts": [_WANTED]}, [_ROLLOUT]),
        ("POST", f"{root}/queues/rollouts/dequeue"): (
            {"limit": 1, "worker_id": "Worker-0"},
            [_ATTEMPTED],
        ),
        ("POST", f"{root}/rollouts"): ({**_WANTED, "worker_id": "Worker-0"}, _ATTEMPTED),
        ("GET", f"{root}/rollouts"): (None, _page(_ATTEMPTED)),
        ("POST", f"{root}/rollouts/search"): (
            {"status_in": ["preparing"], "limit": 10},
            _page(_ATTEMPTED),
        ),
        ("GET", rollout): (None, _ATTEMPTED),
        ("POST", rollout): (
            {"status": "cancelled", "metadata": {"why": "by hand"}},
            {**_FINISHED, "status": "cancelled", "metadata": {"why": "by hand"}},
        ),
        ("POST", f"{root}/waits/rollouts"): (
            {"rollout_ids": [_ROLLOUT_ID], "timeout": 30},
            [_FINISHED],
        ),
        ("POST", attempts): ({"worker_id": "Worker-0"}, _ATTEMPTED),
        ("GET", attempts): (None, _page(_ATTEMPT)),
        ("POST", f"{attempts}/search"): (searched, _page(_ATTEMPT)),
        ("GET", f"{attempts}/latest"): (None, _ATTEMPT),
        ("POST", f"{attempts}/{{attempt_id}}"): (
            done,
            {**_ATTEMPT, **done, "end_time": 1795970400.5},
        ),
        ("POST", f"{root}/attempts/batch"): ({"updates": updates}, results),
        ("POST", f"{root}/spans"): (_SPAN, _SPAN),
        ("GET", f"{root}/spans"): (None, _page(_SPAN)),
        ("POST", f"{root}/spans/search"): (
            {"rollout_id": _ROLLOUT_ID, "name_contains": "ch"},
            _page(_SPAN),
        ),
        ("POST", f"{root}/spans/batch"): ({"spans": [_SPAN]}, [_SPAN]),
        ("POST", f"{root}/spans/next"): (_IDS, {"sequence_id": 2}),
        ("POST", f"{root}/spans/next/batch"): (
            {"requests": [_IDS, _IDS]},
            {"sequence_ids": [2, 3]},
        ),
        ("GET", f"{root}/resources"): (None, _page(_RESOURCES)),
        ("POST", f"{root}/resources"): ({"main_llm": _LLM}, _RESOURCES),
        ("GET", f"{root}/resources/latest"): (None, _RESOURCES),
        ("POST", f"{root}/resources/{{resources_id}}"): (
            {"main_llm": _LLM},
            {**_RESOURCES, "version": 2},
        ),
        ("GET", f"{root}/resources/{{resources_id}}"): (None, _RESOURCES),
        ("GET", f"{root}/workers"): (None, _page(_WORKER)),
        ("POST", f"{root}/workers/search"): ({"status_in": ["busy"]}, _page(_WORKER)),
        ("GET", f"{root}/workers/{{worker_id}}"): (None, _WORKER),
        ("POST", f"{root}/workers/{{worker_id}}"): ({"heartbeat_stats": {"cpu": 0.5}}, _WORKER),
        ("POST", TRACES_PATH): (_EXPORT, None),
    }


EXAMPLES = _examples()
