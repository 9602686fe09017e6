"""The routes, one module for each noun."""

from agl.store.base import LightningStore
from agl.store.rest.route import WireRoute
from agl.store.rest.routes.admin import AdminRoutes, prometheus_routes
from agl.store.rest.routes.attempts import AttemptRoutes
from agl.store.rest.routes.otlp import OtlpRoutes
from agl.store.rest.routes.resources import ResourceRoutes
from agl.store.rest.routes.rollouts import RolloutRoutes
from agl.store.rest.routes.spans import SpanRoutes
from agl.store.rest.routes.stuck import StuckRoutes
from agl.store.rest.routes.workers import WorkerRoutes
from agl.store.rest.service import Service

_GROUPS = (
    AdminRoutes,
    StuckRoutes,
    RolloutRoutes,
    AttemptRoutes,
    SpanRoutes,
    ResourceRoutes,
    WorkerRoutes,
    OtlpRoutes,
)


def store_routes(store: LightningStore, service: Service) -> list[WireRoute]:
    """Every route that serves ``store``."""
    return [route for group in _GROUPS for route in group(store, service).routes()]


__all__ = ["prometheus_routes", "store_routes"]
