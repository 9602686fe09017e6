"""Tokens that are kept in files."""

from __future__ import annotations

from pathlib import Path

from agl.errors import EnvironmentFault


def read_token(file: Path, option: str) -> str:
    """The token in a file that was named by an option.

    Raises:
        EnvironmentFault: The file is missing, unreadable, empty or no single line of text.
    """
    what = f"argument {option}: {file}"
    remedy = "write the token into it (openssl rand -hex 32), readable for this user"
    try:
        token = file.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as exc:
        raise EnvironmentFault(f"{what} holds other characters than ASCII", remedy=remedy) from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise EnvironmentFault(f"{what} cannot be read ({reason})", remedy=remedy) from exc
    if not token:
        raise EnvironmentFault(f"{what} is empty", remedy=remedy)
    if not token.isprintable() or " " in token:
        raise EnvironmentFault(f"{what} does not hold one token on one line", remedy=remedy)
    return token
