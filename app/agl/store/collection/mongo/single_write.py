"""One insert, update or guard, and what becomes of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from agl.store.collection.mongo.errors import DUPLICATE_KEY

_SMALL = 512


class Write:
    """One insert or update, safe to send twice; or a guard, which changes nothing.

    Args:
        collection: Its name.
        body: The document to insert, or the update.
        match: What the update is for; ``None`` for an insert.
        upsert: Insert if nothing matches.
        merge: Updates with the same key may be joined into one, the later ones winning; of
            inserts with the same key the first one stands for all.
        again: What to send instead of ``body`` when it is sent again.
        size: About how many bytes it takes.
        guards: Its ``body`` only sets what ``match`` demands, beside one ``_id``: whether it
            matches can be read as well.
    """

    __slots__ = ("again", "body", "collection", "guards", "match", "merge", "size", "upsert")

    def __init__(
        self,
        collection: str,
        body: Mapping[str, Any],
        match: Mapping[str, Any] | None = None,
        *,
        upsert: bool = False,
        merge: Hashable | None = None,
        again: Mapping[str, Any] | None = None,
        size: int = _SMALL,
        guards: bool = False,
    ) -> None:
        self.collection = collection
        self.guards = guards
        self.body = body
        self.match = match
        self.upsert = upsert
        self.merge = merge
        self.again = again
        self.size = size

    def to_send(self, *, again: bool) -> Mapping[str, Any]:
        """The document or the update."""
        return self.again if again and self.again is not None else self.body

    def update(self, *, again: bool) -> dict[str, Any]:
        """An update as the command ``update`` takes it."""
        body = self.to_send(again=again)
        return {"q": self.match, "u": body, "upsert": self.upsert, "multi": False}

    def operation(self, namespace: int, *, again: bool) -> dict[str, Any]:
        """The operation as the command ``bulkWrite`` takes it.

        Args:
            namespace: Place of the collection among those of the command.
            again: It has been sent before.
        """
        body = self.to_send(again=again)
        if self.match is None:
            return {"insert": namespace, "document": body}
        return {
            "update": namespace,
            "filter": self.match,
            "updateMods": body,
            "upsert": self.upsert,
            "multi": False,
        }

    def joined(self, later: Write) -> Write:
        """This update and a later one for the same document as one."""
        return Write(
            self.collection,
            _joined(self.body, later.body),
            later.match,
            upsert=self.upsert,
            merge=self.merge,
            again=later.again,
            size=self.size,
            guards=self.guards,
        )


def _joined(first: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    joined = {operator: dict(first.get(operator, {})) for operator in (*first, *later)}
    for operator, fields in later.items():
        for field, value in fields.items():
            known = joined[operator].get(field)
            higher = operator == "$max" and known is not None and known > value
            joined[operator][field] = known if higher else value
    for field in joined.get("$set", ()):
        joined.get("$setOnInsert", {}).pop(field, None)
    return {operator: fields for operator, fields in joined.items() if fields}


class Outcome(NamedTuple):
    """What became of a write."""

    matched: bool = False
    """It found a stored document."""

    inserted: bool = False
    """It stored a new document."""

    code: int | None = None
    """Why it failed; 11000 for a key that is taken."""

    message: str = ""
    resent: bool = False
    """It was sent more than once, so it may have met its own work."""

    @property
    def duplicate(self) -> bool:
        return self.code == DUPLICATE_KEY
