"""Variables as Compose sees them: ``.env`` files read in order, the environment winning.

Uses the standard library alone and runs on Python 3.9, since the preflight needs it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_LINE = re.compile(r"^\s*(?:export\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(?P<value>.*)$")
_REFERENCE = re.compile(
    r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}]*))?\}|(?P<plain>[A-Za-z_]\w*))"
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def parse_env_text(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The assignments of one env file.

    Single quotes keep a value as it is; double quotes and bare values replace ``$NAME``,
    ``${NAME}`` and ``${NAME:-default}`` from ``known`` and from lines above.
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            scope = {**values, **(known or {})}
            values[match["key"]] = _value(match["value"].strip(), scope)
    return values


def effective(files: Iterable[Path], environ: Mapping[str, str]) -> dict[str, str]:
    """Every variable Compose would see: later files over earlier ones, ``environ`` over all.

    A file that does not exist is skipped. Raises EnvironmentFault when one cannot be read.
    """
    values: dict[str, str] = {}
    for path in files:
        if path.is_file():
            values.update(parse_env_text(read_env_text(path), {**values, **environ}))
    return {**values, **environ}


def read_env_text(path: Path) -> str:
    """The text of an env file. Raises EnvironmentFault when it cannot be read or is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise EnvironmentFault(
            f"{path} is no UTF-8 text", remedy="git checkout it, or delete it if git ignores it"
        ) from None
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read: {error.strerror}") from error


def _value(raw: str, scope: Mapping[str, str]) -> str:
    if raw.startswith("'"):
        end = raw.find("'", 1)
        return raw[1:end] if end > 0 else raw[1:]
    if raw.startswith('"'):
        return _expand(_unescape(raw), scope)
    return _expand(re.split(r"\s#", raw, maxsplit=1)[0].rstrip() if raw[:1] != "#" else "", scope)


def _unescape(raw: str) -> str:
    out: list[str] = []
    characters = iter(raw[1:])
    for character in characters:
        if character == '"':
            break
        if character == "\\":
            following = next(characters, "")
            out.append(_ESCAPES.get(following, "\\" + following))
        else:
            out.append(character)
    return "".join(out)


def _expand(value: str, scope: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        return scope.get(name) or match["default"] or ""

    return _REFERENCE.sub(replace, value)
