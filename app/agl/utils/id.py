"""Random ids."""

from __future__ import annotations

import os


def generate_id(length: int) -> str:
    """``length`` random lower-case hex digits."""
    return os.urandom((length + 1) // 2).hex()[:length]
