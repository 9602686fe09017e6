"""Garbage collection for a process that does nothing but serve.

A store in memory grows by objects that stay. Python's collector looks at all of them again
whenever their number has grown by a quarter, which stops the process for about half a second per
few hundred thousand of them. Nearly everything a server drops is freed at once by its reference
count; what needs the collector are young cycles.
"""

from __future__ import annotations

import gc
from typing import Any

_YOUNG = 10_000
"""New objects after which the youngest are looked at; such a look takes a millisecond or two."""

_LOOKS = 10
"""Looks an object has to outlive, at most, to count as one that stays."""

_NEVER = 1_000_000_000


def spare_old_objects(*, forked: bool = False) -> None:
    """Look only at young objects from now on.

    Whatever is there now, and later whatever has outlived a few looks, is set aside for good; it is
    still freed when its last reference goes. Only for processes of our own: in a caller's process
    cycles of old objects may matter. Calling it again sets aside what is there then.

    Args:
        forked: The process was forked a moment ago: looking at everything would only make copies
            of memory that it shares with its parent.
    """
    if not forked:
        gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _LOOKS, _NEVER)
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)


def _set_aside(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] >= 1:
        gc.freeze()  # a moment, however many there are
