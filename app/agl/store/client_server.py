"""Public path of the store's server and client.

Names are loaded on first use: a client has no need of the web framework, nor a server of the HTTP
client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl.store.rest.client import LightningStoreClient
    from agl.store.rest.limits import ServerLimits
    from agl.store.rest.server import LightningStoreServer
    from agl.store.rest.wire import (
        API_AGL_PREFIX,
        API_V1_AGL_PREFIX,
        API_V1_PREFIX,
        DequeueManyRolloutsRequest,
        DequeueRolloutRequest,
        EnqueueManyRolloutsRequest,
        NextSequenceIdRequest,
        NextSequenceIdResponse,
        QueryAttemptsRequest,
        QueryResourcesRequest,
        QueryRolloutsRequest,
        QuerySpansRequest,
        QueryWorkersRequest,
        RolloutRequest,
        StartAttemptRequest,
        UpdateAttemptRequest,
        UpdateRolloutRequest,
        UpdateWorkerRequest,
        WaitForRolloutsRequest,
    )

__all__ = [
    "API_AGL_PREFIX",
    "API_V1_AGL_PREFIX",
    "API_V1_PREFIX",
    "DequeueManyRolloutsRequest",
    "DequeueRolloutRequest",
    "EnqueueManyRolloutsRequest",
    "LightningStoreClient",
    "LightningStoreServer",
    "NextSequenceIdRequest",
    "NextSequenceIdResponse",
    "QueryAttemptsRequest",
    "QueryResourcesRequest",
    "QueryRolloutsRequest",
    "QuerySpansRequest",
    "QueryWorkersRequest",
    "RolloutRequest",
    "ServerLimits",
    "StartAttemptRequest",
    "UpdateAttemptRequest",
    "UpdateRolloutRequest",
    "UpdateWorkerRequest",
    "WaitForRolloutsRequest",
]

_MODULES = {
    "LightningStoreClient": "agl.store.rest.client",
    "LightningStoreServer": "agl.store.rest.server",
    "ServerLimits": "agl.store.rest.limits",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "agl.store.rest.wire")), name)
