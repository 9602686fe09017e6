"""JSON from Docker, whose fields may be missing or null, read as what it should be.

Uses the standard library alone and runs on Python 3.9, since the preflight needs it.
"""

from __future__ import annotations

import json
from typing import Any, cast


def parsed(text: str) -> dict[str, Any]:
    """The JSON object in ``text``; an empty one when there is none."""
    try:
        return mapping(json.loads(text))
    except ValueError:
        return {}


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """``value`` if it is a list (of objects), else an empty one."""
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """``value`` if it is a list (of texts), else an empty one."""
    return cast("list[str]", value) if isinstance(value, list) else []
