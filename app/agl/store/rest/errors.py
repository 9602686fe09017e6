"""From an exception to an answer; the statuses of store errors are in the table of ``wire``."""

from __future__ import annotations

import logging
import re
import traceback
import uuid
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from agl.errors import BackendError, BackendUnavailableError, StoreError
from agl.store.rest.wire import dump, status_of

logger = logging.getLogger("agl.store.server")

MAX_REPEATED_BODY = 1024 * 1024

_MAX_REPORTED_ERRORS = 20
_MAX_ECHOED_BYTES = 16 * 1024
_MAX_COUNTED_LINES = 10_000

Headers = tuple[tuple[bytes, bytes], ...]


class HttpError(Exception):
    """An answer other than success, decided before the store was asked."""

    def __init__(self, status: int, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class RequestInvalidError(Exception):
    """The request has the wrong shape (422); ``details`` in FastAPI's form."""

    def __init__(self, details: Sequence[dict[str, Any]]) -> None:
        super().__init__(f"{len(details)} invalid values")
        self.details = details

    @classmethod
    def from_validation(
        cls, error: ValidationError, where: Literal["body", "query"], raw: bytes = b""
    ) -> RequestInvalidError:
        """Put ``where`` before the places that pydantic names."""
        small = len(raw) <= MAX_REPEATED_BODY  # every missing field repeats all that was sent
        found = error.errors(include_url=False, include_input=small)[:_MAX_REPORTED_ERRORS]
        if where == "body" and found and found[0]["type"] == "json_invalid":
            return cls([_malformed_json(found[0], raw)])
        repeated = {} if small else {"input": "(the body is too large to be repeated)"}
        return cls([{**item, "loc": (where, *item["loc"]), **repeated} for item in found])


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


class Reply(NamedTuple):
    """Status, headers beyond content type and length, and body of an answer.

    A long body goes on in ``rest``, whose parts are sent one by one.
    """

    status: int
    body: bytes = b""
    media_type: bytes = b"application/json"
    headers: Headers = ()
    rest: Sequence[bytes] = ()


def reply_to(error: Exception, *, debug_errors: bool) -> Reply:
    """The answer to a request that raised; unexpected errors are logged with their traceback."""
    if isinstance(error, HttpError):
        return Reply(error.status, dump({"detail": error.detail}), headers=error.headers)
    if isinstance(error, RequestInvalidError):
        return Reply(422, _validation_body(error.details))
    return _store_or_unexpected(error, debug_errors)


def _store_or_unexpected(error: Exception, debug_errors: bool) -> Reply:
    error_id = uuid.uuid4().hex[:12]
    name = type(error).__name__
    headers: Headers = ()
    if isinstance(error, StoreError):
        status, detail = status_of(error), str(error)
        level = logging.ERROR if isinstance(error, BackendError) else logging.INFO
        logger.log(level, "%s: %s (status %d, error_id %s)", name, detail, status, error_id)
        if isinstance(error, BackendUnavailableError):
            headers = ((b"retry-after", str(error.retry_after_seconds).encode()),)
    else:
        status, detail = 500, "Internal server error"
        logger.error("Unhandled %s (error_id %s)", name, error_id, exc_info=error)
    body = {"detail": detail, "error_type": name, "error_id": error_id}
    if debug_errors:
        body["traceback"] = "".join(traceback.format_exception(error))
    return Reply(status, dump(body), headers=headers)


def _malformed_json(item: ErrorDetails, raw: bytes) -> dict[str, Any]:
    reason = item.get("ctx", {}).get("error", item["msg"])
    return {
        "type": "json_invalid",
        "loc": ("body", _offset(str(reason), raw)),
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": reason},
    }


def _offset(reason: str, raw: bytes) -> int:
    found = re.search(r"line (\d+) column (\d+)", reason)
    if not found:
        return 0
    line, column = int(found[1]), int(found[2])
    if line > _MAX_COUNTED_LINES:
        return 0
    before = sum(len(part) + 1 for part in raw.split(b"\n", line - 1)[: line - 1])
    return min(before + max(column - 1, 0), len(raw))


def _validation_body(details: Sequence[dict[str, Any]]) -> bytes:
    body = to_json({"detail": details}, inf_nan_mode="null", fallback=str)
    if len(body) <= _MAX_ECHOED_BYTES:
        return body
    short = [{**item, "input": _shortened(item.get("input"))} for item in details]
    return to_json({"detail": short}, inf_nan_mode="null", fallback=str)


def _shortened(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= 200 else f"{text[:200]}..."
