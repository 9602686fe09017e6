"""Reading the secrets that the bundle made for itself."""

from __future__ import annotations

import re

from agl.errors import EnvironmentFault, UsageError
from agl.ops.engine import Engine

FOLDER = "/run/agl/secrets"
API_TOKEN, GRAFANA_PASSWORD = "api-token", "grafana-admin-password"
KNOWN = f"{API_TOKEN}, {GRAFANA_PASSWORD}; on MongoDB also mongo-root-password"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


def read_secret(engine: Engine, name: str) -> str:
    """The value of a secret, from the volume of the bundle's containers.

    Raises UsageError for a name that is none, EnvironmentFault when the bundle does not have it.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a secret (e.g. {API_TOKEN})")
    for container in engine.containers():
        content = engine.read_file(container.id, f"{FOLDER}/{name}")
        if content is not None:
            return content.decode().strip()
    raise EnvironmentFault(
        f"the bundle has no secret {name!r}",
        remedy=f"start it with scripts/up; known: {KNOWN}",
    )
