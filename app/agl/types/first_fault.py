"""Validation of a list or dictionary that ends at its first wrong item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import DictSchema

_KINDS = ("list", "dict") if "fail_fast" in DictSchema.__annotations__ else ("list",)


@dataclass(frozen=True, slots=True)
class FirstFault:
    """Annotation: report the first wrong item, here and in what the items hold.

    By default pydantic describes every wrong item, for every member of a union, at a thousand times
    the memory of the item: 2 MB of them would take 2 GB.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        _stop_early(cast("dict[str, Any]", schema))
        return schema


def _stop_early(schema: dict[str, Any]) -> None:
    """Go through a schema, but not into its models, which speak for themselves."""
    if schema["type"] in _KINDS:
        schema["fail_fast"] = True
    for value in schema.values():
        for inner in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and "type" in inner and inner["type"] != "model":
                _stop_early(cast("dict[str, Any]", inner))
