"""The store: contract, rules, backends, server and client.

Classes are loaded on first use, so that importing one backend does not pull in the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl.store.base import (
        UNSET,
        LightningStore,
        LightningStoreCapabilities,
        LightningStoreStatistics,
        Unset,
    )
    from agl.store.client_server import LightningStoreClient, LightningStoreServer
    from agl.store.collection_based import CollectionBasedLightningStore
    from agl.store.memory import InMemoryLightningStore
    from agl.store.threading import LightningStoreThreaded

__all__ = [
    "UNSET",
    "CollectionBasedLightningStore",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Unset",
]

_HOMES = {
    "CollectionBasedLightningStore": "agl.store.collection_based",
    "InMemoryLightningStore": "agl.store.memory",
    "LightningStoreClient": "agl.store.client_server",
    "LightningStoreServer": "agl.store.client_server",
    "LightningStoreThreaded": "agl.store.threading",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'agl.store' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "agl.store.base")), name)
    globals()[name] = value
    return value
