"""The OpenAPI document: what FastAPI derives from the routes, completed by hand."""

from __future__ import annotations

import http
from typing import Any

from agl.store.rest.examples import EXAMPLES
from agl.store.rest.wire import HEALTH_PATH, IDEMPOTENCY_HEADER, INSTANCE_HEADER, RETRY_HEADER

JSON = "application/json"

_REFUSALS = (400, 401, 408, 409, 413, 429, 503)
"""What every route may answer, whoever asks for what."""

_REFUSAL_SCHEMA = {
    "type": "object",
    "title": "Refusal",
    "required": ["detail"],
    "properties": {"detail": {"type": "string", "description": "Why, and what to do about it"}},
    "example": {"detail": "Limit must be greater than 0 or -1 for no limit"},
}
_SECURITY_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "The API token"},
    "url": {
        "type": "http",
        "scheme": "basic",
        "description": "The API token as password, as in http://agl:TOKEN@host:4747",
    },
}
_HEADERS: tuple[tuple[str, str], ...] = (
    (INSTANCE_HEADER, "Answer only if the server's health names this instance; 409 otherwise"),
    (IDEMPOTENCY_HEADER, "Carry the request out once, however often it is sent with this key"),
    (RETRY_HEADER, "Say so when the key was sent before: another process may have seen it"),
)


def complete(document: dict[str, Any], keyed: frozenset[tuple[str, str]]) -> dict[str, Any]:
    """Add examples, refusals, headers and security to a document, in place.

    Args:
        document: As FastAPI made it.
        keyed: Method and path of the routes that take an idempotency key.
    """
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Refusal"] = _REFUSAL_SCHEMA
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = (method.upper(), path)
            _add_example(operation, *EXAMPLES.get(place, (None, None)))
            if path == HEALTH_PATH:
                operation["security"] = []
                continue
            operation["security"] = [{}, *({name: []} for name in _SECURITY_SCHEMES)]
            _add_headers(operation, _HEADERS if place in keyed else _HEADERS[:1])
            _add_refusals(operation)
    return document


def _add_example(operation: dict[str, Any], request: Any, answer: Any) -> None:
    if request is not None:
        operation["requestBody"]["content"][JSON]["example"] = request
    if answer is not None:
        success = next(code for code in operation["responses"] if code.startswith("2"))
        operation["responses"][success]["content"][JSON]["example"] = answer


def _add_headers(operation: dict[str, Any], headers: tuple[tuple[str, str], ...]) -> None:
    operation.setdefault("parameters", []).extend(
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": description,
            "schema": {"type": "string"},
        }
        for name, description in headers
    )


def _add_refusals(operation: dict[str, Any]) -> None:
    for code in _REFUSALS:
        operation["responses"].setdefault(
            str(code),
            {
                "description": http.HTTPStatus(code).phrase,
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}},
            },
        )
