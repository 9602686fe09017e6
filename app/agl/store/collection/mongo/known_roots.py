"""Rollouts under way as this event loop last saw them, so that a call need not read them first.

What is known may be out of date, as other processes decide too. So whatever was decided on it goes
to the server with a condition on the version of the document: a guard, which changes nothing, or
the decision's own compare-and-set. Where that finds another version, the call is made again with
what is stored. Heartbeats leave the version alone; those of other processes are not seen here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from agl.store.collection.mongo.roots import ROLLOUTS, Root
from agl.store.collection.mongo.single_write import Write
from agl.types import RUNNING_STATUSES

_MOST_KNOWN = 4096


class _Known(NamedTuple):
    root: Root
    when: float
    """Seconds of the monotonic clock at which it was read or written."""


class KnownRoots:
    """Rollouts under way by id, the latest ones, without their input."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def learn(self, root: Root) -> None:
        """A document as it was just read or written."""
        known = self._known
        if root.version is None or not root.embedded or not _under_way(root):
            known.pop(root.rollout_id, None)
            return
        known[root.rollout_id] = _Known(root.without_input(), time.monotonic())
        known.move_to_end(root.rollout_id)
        if len(known) > _MOST_KNOWN:
            known.popitem(last=False)

    def heard(self, rollout_id: str, attempt_id: str, when: float) -> None:
        """A heartbeat, in seconds since the epoch, that is stored now."""
        entry = self._known.get(rollout_id)
        if entry is not None:
            self._known[rollout_id] = entry._replace(root=entry.root.heard(attempt_id, when))

    def get(self, rollout_id: str, seconds: float) -> Root | None:
        """What is known of a rollout, unless it is older than so many seconds."""
        entry = self._known.get(rollout_id)
        if entry is None or time.monotonic() - entry.when > seconds:
            return None
        return entry.root

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """They have turned out to be different."""
        for rollout_id in rollout_ids:
            self._known.pop(rollout_id, None)


def guard(root: Root) -> Write:
    """Matches only while the document has the version of ``root``. Changes nothing."""
    same = {"version": root.version}
    return Write(
        ROLLOUTS,
        {"$set": same},
        {"_id": root.document_id, **same},
        merge=("guard", root.document_id, root.version),
        guards=True,
    )


def _under_way(root: Root) -> bool:
    return root.rollout.status in RUNNING_STATUSES and bool(root.attempts)
