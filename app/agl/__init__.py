"""LightningStore server, client and types.

The public names are loaded on first use, so that ``import agl`` costs next to nothing (the health
probe and the command line depend on that).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agl.logging import (
        configure_logger,
        setup_logging,
        setup_module_logging,
    )
    from agl.store.base import (
        UNSET,
        LightningStore,
        LightningStoreCapabilities,
        LightningStoreStatistics,
        Unset,
    )
    from agl.store.client_server import (
        LightningStoreClient,
        LightningStoreServer,
    )
    from agl.store.collection_based import (
        CollectionBasedLightningStore,
    )
    from agl.store.memory import (
        InMemoryLightningStore,
    )
    from agl.store.threading import (
        LightningStoreThreaded,
    )
    from agl.types import (
        FINISHED_STATUSES,
        LLM,
        QUEUING_STATUSES,
        RUNNING_STATUSES,
        Attempt,
        AttemptedRollout,
        AttemptStatus,
        Attributes,
        AttributeValue,
        EnqueueRolloutRequest,
        Event,
        FilterField,
        FilterOptions,
        Link,
        NamedResources,
        OtelResource,
        PaginatedResult,
        PromptTemplate,
        ProxyLLM,
        Resource,
        ResourcesUpdate,
        ResourceUnion,
        Rollout,
        RolloutConfig,
        RolloutMode,
        RolloutStatus,
        SortOptions,
        Span,
        SpanContext,
        SpanCoreFields,
        SpanLike,
        SpanRecordingContext,
        StatusCode,
        TaskInput,
        TraceState,
        TraceStatus,
        Worker,
        WorkerStatus,
        convert_timestamp,
        extract_extra_fields,
    )

__all__ = [
    "FINISHED_STATUSES",
    "LLM",
    "QUEUING_STATUSES",
    "RUNNING_STATUSES",
    "UNSET",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "CollectionBasedLightningStore",
    "EnqueueRolloutRequest",
    "Event",
    "FilterField",
    "FilterOptions",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Link",
    "NamedResources",
    "OtelResource",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutStatus",
    "SortOptions",
    "Span",
    "SpanContext",
    "SpanCoreFields",
    "SpanLike",
    "SpanRecordingContext",
    "StatusCode",
    "TaskInput",
    "TraceState",
    "TraceStatus",
    "Unset",
    "Worker",
    "WorkerStatus",
    "__version__",
    "configure_logger",
    "convert_timestamp",
    "extract_extra_fields",
    "setup_logging",
    "setup_module_logging",
]

_HOMES = {
    "agl.logging": ("configure_logger", "setup_logging", "setup_module_logging"),
    "agl.store.base": (
        "UNSET",
        "LightningStore",
        "LightningStoreCapabilities",
        "LightningStoreStatistics",
        "Unset",
    ),
    "agl.store.client_server": ("LightningStoreClient", "LightningStoreServer"),
    "agl.store.collection_based": ("CollectionBasedLightningStore",),
    "agl.store.memory": ("InMemoryLightningStore",),
    "agl.store.threading": ("LightningStoreThreaded",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    module = import_module(_HOME_OF.get(name, "agl.types"))
    try:
        value = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module 'agl' has no attribute {name!r}") from None
    globals()[name] = value
    return value
