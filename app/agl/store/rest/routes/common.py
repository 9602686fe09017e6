"""Rules every list and update route shares."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from agl.store.rest.errors import HttpError, RequestInvalidError
from agl.store.rest.wire import PageQuery
from agl.types import PaginatedResult
from agl.types.bounds import MAX_ID_CHARACTERS

logger = logging.getLogger("agl.store.server")

T = TypeVar("T")


def check_page(query: PageQuery, model: type[BaseModel]) -> None:
    """Check paging and sorting against the fields of ``model``.

    Raises:
        HttpError: 400 with the reason.
    """
    if query.limit == 0 or query.limit < -1:
        raise HttpError(400, "Limit must be greater than 0 or -1 for no limit")
    if query.offset < 0:
        raise HttpError(400, "Offset must be greater than or equal to 0")
    if query.sort_by is not None and query.sort_by not in model.model_fields:
        allowed = ", ".join(model.model_fields)
        raise HttpError(400, f"Invalid sort_by: {query.sort_by}, allowed fields are: {allowed}")


def check_new_id(**ids: str) -> None:
    """Refuse ids from a path that are too long for something new to be called so.

    Raises:
        RequestInvalidError: 422, the parameter named.
    """
    for name, value in ids.items():
        if len(value) > MAX_ID_CHARACTERS:
            problem = {
                "type": "string_too_long",
                "loc": ("path", name),
                "msg": f"String should have at most {MAX_ID_CHARACTERS} characters",
                "input": value,
                "ctx": {"max_length": MAX_ID_CHARACTERS},
            }
            raise RequestInvalidError([problem])


def given(request: BaseModel, *, never_null: Collection[str]) -> dict[str, Any]:
    """The fields present in the body, by name; a missing one is left alone by the store.

    Raises:
        HttpError: 400, a field of ``never_null`` is null.
    """
    present = {name: getattr(request, name) for name in request.model_fields_set}
    for name in type(request).model_fields:
        if name in never_null and name in present and present[name] is None:
            raise HttpError(400, f"{name} is invalid; it cannot be a null value.")
    return present


def page_of(result: PaginatedResult[T] | Sequence[T]) -> PaginatedResult[T]:
    """The page as the store returned it; a plain list of another store is wrapped."""
    if isinstance(result, PaginatedResult):
        return result
    logger.warning("The store returned a plain %s instead of a page", type(result).__name__)
    return PaginatedResult[Any](items=list(result), limit=-1, offset=0, total=len(result))
