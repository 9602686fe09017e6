"""The one implementation of the store: rules over collections, whatever the backend."""

from __future__ import annotations

import time

from agl.store._core import CollectionsT
from agl.store._lifecycle import LifecycleOperations
from agl.store._queries import QueryOperations, RecordOperations
from agl.store._spans import SpanOperations
from agl.store._stuck import StuckOperations
from agl.store.rules import scan_unhealthy_rollouts

__all__ = ["CollectionBasedLightningStore", "scan_unhealthy_rollouts"]


class CollectionBasedLightningStore(
    LifecycleOperations[CollectionsT],
    SpanOperations[CollectionsT],
    StuckOperations[CollectionsT],
    QueryOperations[CollectionsT],
    RecordOperations[CollectionsT],
):
    """A store over :class:`~agl.store.collection.base.LightningCollections`.

    Args:
        collections: Where everything is kept.
        read_snapshot: Give reading operations a consistent view, at the price of locking.
        tracker: Where operations are counted and timed.
        scan_debounce_seconds: Shortest time between two looks of the watchdog inside calls; 0
            looks in every call. ``watchdog.run(interval)`` looks without calls.
    """

    def _now(self) -> float:
        return time.time()
