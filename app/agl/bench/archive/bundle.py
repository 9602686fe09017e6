"""The bundle's own Prometheus: its container, and its admin API for as long as it is needed."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress

from agl.bench.archive.snapshot import OVERLAY
from agl.errors import EnvironmentFault
from agl.ops.choices import remember
from agl.ops.compose import Compose
from agl.ops.engine import Container, Engine
from agl.ops.layout import Layout
from agl.ops.view import as_running, running_mode

SERVICE = "prometheus"
_READY_SECONDS = 120.0
_START = ("up", "--detach", "--no-build", "--pull", "never", "--wait")


def prometheus_of(layout: Layout) -> str:
    """Name of its container. Raises EnvironmentFault when it does not run."""
    for container in Engine.connect(layout).containers():
        if container.service == SERVICE and container.running:
            return container.name
    raise EnvironmentFault(
        f"no Prometheus runs in the bundle {layout.project!r}",
        remedy="start it (scripts/up), or say where its data is with --data or --container",
    )


@contextmanager
def admin_api(layout: Layout, url: str) -> Generator[None]:
    """With the overlay on the bundle; it is taken off whatever happens. Raises EnvironmentFault."""
    containers = Engine.connect(layout).containers()
    with_it, without = (_compose(layout, containers, files) for files in ((OVERLAY,), ()))
    try:
        with_it.run(*_START, "--no-deps", SERVICE)
        _wait_ready(url)
        yield
    finally:
        # Without --no-deps, which Compose would take for a change of the service at the next up.
        without.run(*_START, SERVICE)


def _compose(layout: Layout, containers: list[Container], on_top: tuple[str, ...]) -> Compose:
    overrides = {**remember(layout).names, **as_running(containers)}
    return Compose(layout, running_mode(containers), overrides, on_top)


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310
            return
        time.sleep(0.2)
    raise EnvironmentFault(f"Prometheus at {url} was not ready within {_READY_SECONDS:.0f} s")
