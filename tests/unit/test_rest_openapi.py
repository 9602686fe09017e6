"""The OpenAPI document: complete, and its examples true."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from rest_support import http_for

from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import StoreApp, create_app
from agl.store.rest.examples import EXAMPLES
from agl.store.rest.route import WireRoute
from agl.store.rest.wire import dump
from agl.utils.otlp import parse_export
from agl.utils.otlp_json import parse_json_export

NO_EXAMPLE = ("/v1/metrics", "/v1/logs", "/v1/development/profiles", "/v1/agl/openapi.json")


@pytest.fixture(scope="module", name="app")
def application() -> StoreApp:
    return create_app(InMemoryLightningStore())


def routes_of(app: StoreApp) -> dict[tuple[str, str], WireRoute]:
    return {(r.method, r.path): r for r in app.routes if isinstance(r, WireRoute)}


async def test_it_is_served_at_both_places() -> None:
    async with http_for() as http:
        document = (await http.get("/v1/agl/openapi.json")).json()
        assert document == (await http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")


def test_every_operation_says_everything(app: StoreApp) -> None:
    document = app.openapi()
    assert app.openapi() is document
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = (method.upper(), path)
            assert operation.get("description"), place
            if path in NO_EXAMPLE:
                continue
            body = operation.get("requestBody")
            if body:
                assert "example" in body["content"]["application/json"], place
            success = next(c for c in operation["responses"] if c.startswith("2"))
            if path != "/v1/traces":
                assert "example" in operation["responses"][success]["content"]["application/json"]
            if path != "/v1/agl/health":
                assert {"400", "401", "413", "429", "503"} <= operation["responses"].keys()
                assert {"token", "url"} <= {name for way in operation["security"] for name in way}


def test_keys_are_named_where_they_are_taken(app: StoreApp) -> None:
    def headers(path: str) -> set[str]:
        parameters = app.openapi()["paths"][path]["post"]["parameters"]
        return {item["name"] for item in parameters if item["in"] == "header"}

    assert headers("/v1/agl/queues/rollouts/enqueue") == {
        "Idempotency-Key",
        "AGL-Retry",
        "AGL-Instance-Id",
    }
    assert headers("/v1/agl/spans") == {"AGL-Instance-Id"}


@pytest.mark.parametrize("place", EXAMPLES, ids=" ".join)
def test_examples_fit_their_routes(app: StoreApp, place: tuple[str, str]) -> None:
    route = routes_of(app)[place]
    request, answer = EXAMPLES[place]
    if place[1] == "/v1/traces":
        parsed = parse_export(parse_json_export(dump(request)))
        assert (len(parsed.spans), parsed.rejected) == (1, [])
        return
    if request is not None:
        body: Any = route._body
        assert body.parse(dump(request), "application/json") is not None
    assert isinstance(route, APIRoute)
    adapter: TypeAdapter[Any] = TypeAdapter(route.response_model)
    shown = adapter.dump_python(adapter.validate_python(answer), mode="json")
    assert shown == answer
