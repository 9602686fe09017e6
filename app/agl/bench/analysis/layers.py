"""Where the time of a request goes: each layer's own time, without that of the layers below."""

from __future__ import annotations

from agl.bench.analysis.groups import COLLECTIONS, COMMANDS, HTTP, STORE
from agl.bench.analysis.model import Layer
from agl.bench.analysis.source import Window

FRAMING, METHODS, LOCKS = "HTTP framing", "store", "locks"
OPERATIONS, DATABASE = "collections", "MongoDB"
_NO_SECTIONS = 'operation!~"atomic|lock"'
"""An atomic section's time is that of the operations in it, and waits for locks are a layer."""


async def layers(window: Window) -> tuple[list[Layer], list[str]]:
    """The layers from the outermost to the innermost, and what limits the figures.

    Empty when requests or store methods were not measured in the window.
    """
    http = await _time(window, HTTP)
    store = await _store_time(window)
    if not http or store is None:
        return [], []
    notes: list[str] = []
    inside = {
        METHODS: store,
        OPERATIONS: await _time(window, COLLECTIONS, _NO_SECTIONS) or 0.0,
        DATABASE: await _time(window, COMMANDS) or 0.0,
    }
    locks = await _time(window, COLLECTIONS, 'operation="lock"') or 0.0
    if inside[DATABASE] > inside[OPERATIONS]:
        notes.append(
            "MongoDB's commands took longer in all than the operations on collections, as some are"
            " sent for the store as a whole (watchdog, totals); their share is an upper bound"
        )
    if inside[METHODS] > http:
        notes.append(
            "store methods took longer in all than requests: some run without a request"
            " (watchdog); the share of HTTP framing is a lower bound"
        )
    own = {
        FRAMING: http - inside[METHODS],
        METHODS: inside[METHODS] - inside[OPERATIONS] - locks,
        LOCKS: locks,
        OPERATIONS: inside[OPERATIONS] - inside[DATABASE],
        DATABASE: inside[DATABASE],
    }
    own = {name: max(time, 0.0) for name, time in own.items()}
    if not inside[DATABASE]:
        del own[DATABASE]
    if not locks:
        del own[LOCKS]
    total = sum(own.values()) or 1.0
    found = [Layer(name=name, time=time, share=time / total) for name, time in own.items()]
    return found, notes


async def _time(window: Window, metric: str, matcher: str = "") -> float | None:
    if f"{metric}_count" not in window.present:
        return None
    seconds = window.seconds
    return await window.number(f"sum(increase({metric}_sum{{{matcher}}}[{seconds}s])) / {seconds}")


async def _store_time(window: Window) -> float | None:
    """Time of public methods; that of their steps is within it."""
    if f"{STORE}_count" not in window.present:
        return None
    by = ("method", "store_pubmeth")
    query = f"sum by ({', '.join(by)}) (increase({STORE}_sum[{window.seconds}s]))"
    times = await window.values(f"{query} / {window.seconds}", by)
    return sum(time for (method, public), time in times.items() if method == public)
