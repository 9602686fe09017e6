"""Items that are kept as JSON and decoded when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from pydantic_core import to_json

T = TypeVar("T")


class EncodedItems(Sequence[T], Generic[T]):
    """Items of which some or all are JSON bytes; each look at one decodes it anew.

    Whoever only passes them on as JSON takes :meth:`json` and decodes none.

    Args:
        parts: JSON bytes, or items that could not be kept as JSON.
        decode: Makes an item of JSON bytes.
        copy: Makes a copy of an item, so that nobody gets hold of the one that is kept.
    """

    __slots__ = ("_copy", "_decode", "_parts")

    def __init__(
        self,
        parts: Sequence[bytes | T],
        decode: Callable[[bytes], T],
        copy: Callable[[T], T],
    ) -> None:
        self._parts = parts
        self._decode = decode
        self._copy = copy

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._item(part) for part in self._parts[index]]
        return self._item(self._parts[index])

    def json(self) -> bytes:
        """A JSON array of all items."""
        return b"[" + self.json_between(0, len(self._parts)) + b"]"

    def json_between(self, start: int, stop: int) -> bytes:
        """The JSON of some items, with commas between them."""
        return b",".join([self._json(part) for part in self._parts[start:stop]])

    def _item(self, part: bytes | T) -> T:
        return self._decode(part) if isinstance(part, bytes) else self._copy(part)

    def _json(self, part: bytes | T) -> bytes:
        return part if isinstance(part, bytes) else to_json(part, inf_nan_mode="null")


_latest: tuple[object, bytes] | None = None


def remember_json(item: object, data: bytes) -> None:
    """Keep the JSON of the item encoded last, for whoever sends that very object on right away.

    The item must not change until then.
    """
    global _latest
    _latest = item, data


def recall_json(item: object) -> bytes | None:
    """The JSON of an item, if it is the one encoded last."""
    latest = _latest
    return latest[1] if latest is not None and latest[0] is item else None
