"""The bundle's own Prometheus: its container, and its admin API for as long as it is needed."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress

from agl.bench.archive.snapshot import OVERLAY, build_info
from agl.bench.interrupts import sigterm_as_ctrl_c
from agl.errors import EnvironmentFault
from agl.ops.choices import remember
from agl.ops.compose import Compose, last_line
from agl.ops.engine import Container, Engine
from agl.ops.layout import Layout
from agl.ops.view import as_running, running_mode

SERVICE = "prometheus"
_READY_SECONDS = 120.0
_POLL_SECONDS = 0.1
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
    """With the overlay on the bundle, from which it is taken off whatever happens.

    Raises:
        EnvironmentFault: no Prometheus of the bundle runs, or none answers at ``url``: then nothing
            was touched. Or Docker refuses.
    """
    prometheus_of(layout)
    build_info(url)
    containers = Engine.connect(layout).containers()
    with_it, without = (_compose(layout, containers, files) for files in ((OVERLAY,), ()))
    with sigterm_as_ctrl_c():
        try:
            _run(with_it, *_START, "--no-deps", SERVICE)
            _wait_ready(url)
            yield
        finally:
            with _undisturbed():
                _take_off(without)


def _take_off(without: Compose) -> None:
    try:
        # Without --no-deps, which Compose would take for a change of the service at the next up.
        _run(without, *_START, SERVICE)
    except EnvironmentFault as fault:
        raise EnvironmentFault(
            f"the admin API of Prometheus may still be on: {fault}",
            remedy="scripts/up takes it off",
        ) from fault


def _run(compose: Compose, *arguments: str) -> None:
    """Out of reach of the terminal's Ctrl-C. Raises EnvironmentFault with its last line."""
    with compose.start(*arguments) as running:
        while (code := running.code()) is None:
            time.sleep(_POLL_SECONDS)
        if code:
            raise EnvironmentFault(f"docker compose {arguments[0]}: {last_line(running.output())}")


@contextmanager
def _undisturbed() -> Generator[None]:
    """Whoever presses Ctrl-C again is not heard while the overlay is taken off."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
