"""Requests made from the OpenAPI document, good and bad, and mutated OTLP: never a 500.

The same requests every time; ``AGL_EXPLORE=N`` sends N times as many random ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_strategies import exports, mutated
from schemathesis import GenerationMode
from store_machine import profile

from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import create_app

SCHEMA: Any = schemathesis.openapi.from_dict(create_app(InMemoryLightningStore()).openapi())
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for result in SCHEMA.get_all_operations()
    for operation in [result.ok()]
}
PROTOBUF = {"content-type": "application/x-protobuf"}


@schemathesis.serializer("application/x-protobuf")
def as_it_is(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class Server:
    """An app and a client of it, with a rollout to aim at."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = InMemoryLightningStore(scan_debounce_seconds=0)
        self.app = create_app(self.store)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://store", timeout=20)
        self.rollout = self.run(self.store.start_rollout("a", worker_id="w"))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def bounded() -> httpx.Response:
            return await asyncio.wait_for(self._http.request(method, path, **request), 20)

        answer: httpx.Response = self.run(bounded())
        assert answer.status_code < 500 or answer.status_code == 501, (path, request, answer.text)
        return answer

    def check_usable(self) -> None:
        """Everything can still be read, and work still gets done."""
        root = "/v1/agl"
        ids = f"{root}/rollouts/{self.rollout.rollout_id}"
        for path in (f"{root}/rollouts", f"{root}/workers", f"{root}/resources", ids):
            assert self.send("GET", path).status_code == 200
        assert self.send("GET", f"{ids}/attempts").status_code == 200
        spans = {"rollout_id": self.rollout.rollout_id}
        assert self.send("GET", f"{root}/spans", params=spans).status_code == 200
        assert self.send("POST", f"{root}/rollouts", json={"input": 1}).status_code == 201

    def close(self) -> None:
        self.run(self._http.aclose())
        self.loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def aimed(server: Server, value: Any) -> Any:
    """Ids in it replaced by those of what exists."""
    ids = {
        "rollout_id": server.rollout.rollout_id,
        "attempt_id": server.rollout.attempt.attempt_id,
        "worker_id": "w",
    }
    if isinstance(value, dict):
        return {k: ids[k] if k in ids else aimed(server, v) for k, v in value.items()}
    return [aimed(server, item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_from_the_document_never_break_the_server(server: Server, name: str) -> None:
    operation = OPERATIONS[name]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @profile(8, 1)
    @given(case=cases, aim=st.booleans())
    def run(case: Any, aim: bool) -> None:
        if aim:
            case.path_parameters = aimed(server, case.path_parameters or {})
            case.query = aimed(server, case.query or {})
            case.body = aimed(server, case.body)
        if case.path.endswith("/waits/rollouts") and isinstance(case.body, dict):
            case.body["timeout"] = 0
        asked = requests.Request(**case.as_transport_kwargs(base_url="http://store")).prepare()
        headers = {name: value for name, value in asked.headers.items() if name != "User-Agent"}
        server.send(asked.method, asked.url, content=asked.body, headers=headers)

    run()
    server.check_usable()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_damaged_exports_never_break_the_server(server: Server, encoding: str) -> None:
    home = (server.rollout.rollout_id, server.rollout.attempt.attempt_id)

    @profile(40, 1)
    @given(body=mutated(exports(*home), packed=encoding == "gzip"))
    def run(body: bytes) -> None:
        headers = {**PROTOBUF, "content-encoding": encoding}
        answer = server.send("POST", "/v1/traces", content=body, headers=headers)
        assert answer.status_code in (200, 400)
        if encoding == "identity":
            assert (answer.status_code == 200) == _readable(body)

    run()
    server.check_usable()


def test_valid_exports_store_what_was_not_rejected(server: Server) -> None:
    home = (server.rollout.rollout_id, server.rollout.attempt.attempt_id)

    @profile(40, 1)
    @given(export=exports(*home))
    def run(export: ExportTraceServiceRequest) -> None:
        answer = server.send(
            "POST", "/v1/traces", content=export.SerializeToString(), headers=PROTOBUF
        )
        assert answer.status_code == 200

    run()
    server.check_usable()


def _readable(body: bytes) -> bool:
    try:
        ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return False
    return True
