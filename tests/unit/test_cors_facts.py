"""What a browser of another origin is told, one recorded fact of 0.3 a row.

Errors carry the headers too, which 0.3 leaves out: see ``test_rest_access.py``.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from ports import free_port

from agl.cli.store import build_server, parse
from agl.store.memory import InMemoryLightningStore
from agl.store.rest.app import create_app

HEALTH = "/v1/agl/health"
KNOWN, OTHER = "http://a.example", "http://c.example"
ORIGINS = [KNOWN, "http://b.example"]
SENT_TO_ALL = {"allow-credentials": "true", "expose-headers": "*"}
VERBS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}


async def ask(app: Any, method: str, path: str, **headers: str) -> httpx.Response:
    """The answer to a request with these headers, whose ``_`` stands for ``-``."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://store"
    ) as http:
        return await http.request(method, path, headers=sent)


def cors(answer: httpx.Response) -> dict[str, str]:
    start = "access-control-"
    return {
        name.removeprefix(start): value
        for name, value in answer.headers.items()
        if name.startswith(start)
    }


def served(origins: Any) -> Any:
    return create_app(InMemoryLightningStore(), cors_allow_origins=origins)


@pytest.mark.parametrize(
    ("origins", "origin", "expected"),
    [
        (ORIGINS, KNOWN, {**SENT_TO_ALL, "allow-origin": KNOWN}),
        (ORIGINS, OTHER, SENT_TO_ALL),
        (f" {KNOWN} ", KNOWN, {**SENT_TO_ALL, "allow-origin": KNOWN}),
        ([OTHER, "*"], KNOWN, {**SENT_TO_ALL, "allow-origin": KNOWN}),
        ([], KNOWN, {}),
        ([" "], KNOWN, {}),
        (None, KNOWN, {}),
    ],
)
async def test_a_request(origins: Any, origin: str, expected: dict[str, str]) -> None:
    answer = await ask(served(origins), "GET", HEALTH, origin=origin)
    assert (answer.status_code, cors(answer)) == (200, expected)
    assert answer.headers.get("vary") == ("Origin" if expected else None)


@pytest.mark.parametrize("origins", [ORIGINS, "*"])
@pytest.mark.parametrize("verb", sorted(VERBS))
async def test_a_preflight(origins: Any, verb: str) -> None:
    answer = await ask(
        served(origins),
        "OPTIONS",
        "/v1/agl/rollouts",
        origin=KNOWN,
        access_control_request_method=verb,
        access_control_request_headers="x-one, content-type",
    )
    told = cors(answer)
    assert answer.status_code == 200
    assert set(told.pop("allow-methods").split(", ")) >= VERBS
    assert told == {
        "allow-origin": KNOWN,
        "allow-credentials": "true",
        "allow-headers": "x-one, content-type",
        "max-age": "600",
    }
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    ("origins", "status", "text"),
    [(ORIGINS, 400, "Disallowed CORS origin"), (None, 405, '{"detail":"Method Not Allowed"}')],
)
async def test_a_preflight_that_is_refused(origins: Any, status: int, text: str) -> None:
    answer = await ask(
        served(origins), "OPTIONS", HEALTH, origin=OTHER, access_control_request_method="GET"
    )
    assert (answer.status_code, answer.text) == (status, text)
    assert "allow-origin" not in cors(answer)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ([], set[str]()),
        (["--cors-origin", KNOWN], {KNOWN}),
        (["--cors-origin", KNOWN, "--cors-origin", OTHER], {KNOWN, OTHER}),
        (["--cors-origin", KNOWN, "--cors-origin", "*"], {KNOWN, OTHER, "http://x.example"}),
    ],
)
async def test_the_command_line_says_who(options: list[str], allowed: set[str]) -> None:
    address = ["--host", "127.0.0.1", "--port", str(free_port())]
    server = build_server(parse([*address, *options], "agl store"), None)
    for origin in (KNOWN, OTHER, "http://x.example"):
        answer = await ask(server.app, "GET", HEALTH, origin=origin)
        assert cors(answer).get("allow-origin") == (origin if origin in allowed else None)
