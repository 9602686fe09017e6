"""Collections: the seam between the store and its backends, and the backend in memory."""

from agl.store.collection.base import (
    AtomicLabels,
    AtomicMode,
    Collection,
    DuplicatedPrimaryKeyError,
    FilterOptions,
    KeyValue,
    LightningCollections,
    PaginatedResult,
    Queue,
    SortOptions,
)
from agl.store.collection.memory import (
    DequeBasedQueue,
    DictBasedKeyValue,
    InMemoryLightningCollections,
    ListBasedCollection,
)

__all__ = [
    "AtomicLabels",
    "AtomicMode",
    "Collection",
    "DequeBasedQueue",
    "DictBasedKeyValue",
    "DuplicatedPrimaryKeyError",
    "FilterOptions",
    "InMemoryLightningCollections",
    "KeyValue",
    "LightningCollections",
    "ListBasedCollection",
    "PaginatedResult",
    "Queue",
    "SortOptions",
]
