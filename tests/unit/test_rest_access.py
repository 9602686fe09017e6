"""Who is let in: API token and CORS."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from rest_support import http_for, serving
from test_rest_errors import FaultyStore

from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import create_app, normalize_origins
from agl.store.rest.client import LightningStoreClient
from agl.utils.metrics import PrometheusMetricsBackend

API = "/v1/agl"
TOKEN = "s3cr:et/ü"
ORIGINS = ["http://a.example", "http://b.example"]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


PRESENTED = [
    (f"Bearer {TOKEN}", 200),
    (f"bearer  {TOKEN}", 200),
    (basic("agl", TOKEN), 200),
    (basic("", TOKEN), 200),
    (basic("any:one", TOKEN), 401),
    (None, 401),
    ("", 401),
    ("Bearer", 401),
    ("Bearer wrong", 401),
    (f"Token {TOKEN}", 401),
    (basic(TOKEN, ""), 401),
    ("Basic %%%", 401),
    ("Basic " + base64.b64encode(b"nocolon").decode(), 401),
]


async def test_the_token_opens_every_path() -> None:
    async with http_for(api_token=TOKEN, tracker=PrometheusMetricsBackend()) as http:
        for authorization, status in PRESENTED:
            await check_access(http, authorization, status)


async def check_access(http: httpx.AsyncClient, authorization: str | None, status: int) -> None:
    headers = {} if authorization is None else {b"authorization": authorization.encode()}
    for path in (f"{API}/statistics", "/v1/prometheus/", "/openapi.json"):
        answer = await http.get(path, headers=headers)
        assert answer.status_code == status, path
    assert (await http.get(f"{API}/health")).status_code == 200
    traces = {**headers, b"content-type": b"application/x-protobuf"}
    assert (await http.post("/v1/traces", headers=traces)).status_code == status
    assert (await http.get("/nothing", headers=headers)).status_code == (
        404 if status == 200 else 401
    )


async def test_a_refusal_says_what_to_do() -> None:
    async with http_for(api_token=TOKEN) as http:
        answer = await http.post(f"{API}/rollouts", json={"input": 1})
    assert answer.status_code == 401
    assert answer.headers.get_list("www-authenticate") == ["Bearer", 'Basic realm="agl"']
    assert "Authorization: Bearer TOKEN" in answer.json()["detail"]
    assert "http://agl:TOKEN@host:port" in answer.json()["detail"]


async def test_clients_take_the_token_from_their_url() -> None:
    async with serving(api_token=TOKEN) as server:
        with_token = server.otlp_traces_endpoint().removesuffix("/v1/traces")
        client = LightningStoreClient(with_token)
        assert (await client.statistics())["name"] == "InMemoryLightningStore"
        assert client.otlp_traces_endpoint() == server.otlp_traces_endpoint()
        await client.close()
        for shown in (repr(server), repr(client), str(vars(client)), client.server_address):
            assert "s3cr" not in shown


def cors_headers(answer: httpx.Response) -> dict[str, Any]:
    return {
        key.removeprefix("access-control-"): value
        for key, value in answer.headers.items()
        if key.startswith("access-control-")
    }


async def test_cors_answers() -> None:
    async with http_for(FaultyStore(), cors_allow_origins=ORIGINS, api_token=TOKEN) as http:
        allowed = await http.get(f"{API}/health", headers={"origin": ORIGINS[0]})
        assert cors_headers(allowed) == {
            "allow-origin": ORIGINS[0],
            "allow-credentials": "true",
            "expose-headers": "*",
        }
        assert allowed.headers["vary"] == "Origin"
        other = await http.get(f"{API}/health", headers={"origin": "http://c.example"})
        assert other.status_code == 200
        assert "allow-origin" not in cors_headers(other)
        assert cors_headers(await http.get(f"{API}/health")) == {}

        preflight = {
            "origin": ORIGINS[1],
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-one",
        }
        answer = await http.options(f"{API}/rollouts", headers=preflight)
        assert answer.status_code == 200
        assert cors_headers(answer)["max-age"] == "600"
        assert "POST" in cors_headers(answer)["allow-methods"]
        assert cors_headers(answer)["allow-headers"] == "x-one"
        refused = await http.options(
            f"{API}/rollouts", headers=preflight | {"origin": "http://c.example"}
        )
        assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin")


async def test_errors_carry_cors_headers() -> None:
    async with http_for(FaultyStore(), cors_allow_origins=ORIGINS, api_token=TOKEN) as http:
        origin = {"origin": ORIGINS[0]}
        token = {b"authorization": f"Bearer {TOKEN}".encode(), b"origin": ORIGINS[0].encode()}
        answers = [
            (401, await http.get(f"{API}/statistics", headers=origin)),
            (500, await http.get(f"{API}/resources/latest", headers=token)),
            (404, await http.get(f"{API}/rollouts/ro-x", headers=token)),
            (404, await http.get("/nothing", headers=token)),
            (405, await http.delete(f"{API}/rollouts", headers=token)),
            (422, await http.get(f"{API}/spans", headers=token)),
        ]
    for status, answer in answers:
        assert answer.status_code == status
        assert cors_headers(answer)["allow-origin"] == ORIGINS[0]


async def test_any_origin_is_echoed_since_credentials_are_allowed() -> None:
    async with http_for(cors_allow_origins="*") as http:
        answer = await http.get(f"{API}/health", headers={"origin": "http://x.example"})
        preflight = await http.options(
            f"{API}/health",
            headers={"origin": "http://x.example", "access-control-request-method": "GET"},
        )
    assert cors_headers(answer)["allow-origin"] == "http://x.example"
    assert cors_headers(preflight)["allow-origin"] == "http://x.example"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("", []),
        ("http://a", ["http://a"]),
        ([" http://a ", "", "http://b"], ["http://a", "http://b"]),
        (["http://a", "*"], ["*"]),
    ],
)
def test_origins_are_cleaned(given: Any, expected: list[str]) -> None:
    assert normalize_origins(given) == expected


def application(**options: Any) -> httpx.AsyncClient:
    app = create_app(InMemoryLightningStore(), **options)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store")


@pytest.mark.parametrize(("processes", "tries"), [(1, 100), (4, 25), (500, 1)])
async def test_each_process_counts_its_share_of_wrong_tokens(processes: int, tries: int) -> None:
    async with application(api_token=TOKEN, processes=processes) as http:
        wrong = {"authorization": "Bearer wrong"}
        answers = [
            (await http.get(f"{API}/statistics", headers=wrong)).status_code
            for _ in range(tries + 2)
        ]
        assert answers[:tries] == [401] * tries
        assert 429 in answers[tries:]


async def test_an_instance_that_is_shared_has_the_id_it_is_given() -> None:
    async with application(instance_id="i1") as http:
        assert (await http.get(f"{API}/health")).json()["instance_id"] == "i1"
        right = await http.get(f"{API}/statistics", headers={"AGL-Instance-Id": "i1"})
        other = await http.get(f"{API}/statistics", headers={"AGL-Instance-Id": "i2"})
        assert (right.status_code, other.status_code) == (200, 409)
