"""``status``: containers, health, restarts, memory, scrape targets and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from agl.ops import alertmanager
from agl.ops.choices import STAND_IN_TAG, is_lab, remember
from agl.ops.compose import Compose
from agl.ops.engine import Container, Engine
from agl.ops.health import READY, ServiceHealth
from agl.ops.layout import Layout
from agl.ops.view import (
    View,
    as_running,
    lab_stand_ins,
    missing,
    paging,
    require_containers,
    running_mode,
    watcher,
)

_TABLE_WIDTH = 100


@dataclass(frozen=True)
class Row:
    """One service in the table."""

    service: str
    state: str
    detail: str
    restarts: int
    memory: int
    memory_limit: int
    image: str
    stand_in: bool
    lab: bool


@dataclass(frozen=True)
class Status:
    """One look at the bundle, ready to be shown."""

    rows: tuple[Row, ...]
    view: View
    missing: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return self.view.ready


def read_status(layout: Layout, engine: Engine) -> Status:
    """Look at the bundle. Raises EnvironmentFault when nothing of it is there."""
    containers = engine.containers()
    require_containers(containers, layout.project)
    mode = running_mode(containers)
    # What was chosen at the start wins over this shell's environment, as it did then.
    compose = Compose(layout, mode, {**remember(layout).names, **as_running(containers)})
    watch = watcher(layout, engine, compose)
    watch.restarts_before = {container.id: container.restarts for container in containers}
    view = watch.look()
    by_service = {container.service: container for container in view.containers}
    running = [container for container in view.containers if container.running]
    # The daemon takes about a second to measure one container.
    with ThreadPoolExecutor(max_workers=8) as pool:
        used = list(pool.map(engine.memory_used, [container.id for container in running]))
    memory = {container.service: size for container, size in zip(running, used, strict=True)}
    rows = [_row(item, by_service.get(item.service), memory) for item in view.health]
    return Status(tuple(rows), view, tuple(missing(layout, view)))


def _row(item: ServiceHealth, container: Container | None, memory: Mapping[str, int]) -> Row:
    return Row(
        service=item.service,
        state=item.state,
        detail=item.detail,
        restarts=container.restarts if container else 0,
        memory=memory.get(item.service, 0),
        memory_limit=container.memory_limit if container else 0,
        image=container.image if container else "",
        stand_in=bool(container and container.image.endswith(f":{STAND_IN_TAG}")),
        lab=bool(container and is_lab(container.image)),
    )


def as_json(status: Status) -> dict[str, Any]:
    """The status as an object of plain values; sizes in bytes."""
    return {
        "healthy": status.healthy,
        "services": [
            {
                "service": row.service,
                "state": row.state,
                "detail": row.detail,
                "restarts": row.restarts,
                "memory_bytes": row.memory,
                "memory_limit_bytes": row.memory_limit,
                "image": row.image,
                "stand_in": row.stand_in,
                "lab_stand_in": row.lab,
            }
            for row in status.rows
        ],
        "targets": [
            {"job": t.job, "instance": t.instance, "health": t.health, "error": t.error}
            for t in status.view.targets or ()
        ],
        "urls": {name: endpoint.url for name, endpoint in status.view.endpoints.items()},
        "pages_go_to": alertmanager.ways(list(status.view.receivers or ())),
        "left_out": list(status.missing),
    }


def show(status: Status, environ: Mapping[str, str]) -> None:
    """Print the status as tables."""
    console = RichConsole(highlight=False, no_color="NO_COLOR" in environ or None)
    if not console.is_terminal:
        # Lines of a log or a pipe are not cut at the width of a terminal that is not there.
        console.width = 200
    if console.width < _TABLE_WIDTH:
        _show_narrow(console, status)
    else:
        console.print(_services_table(status))
        if status.view.targets is not None:
            console.print(_targets_table(status))
    for name, endpoint in status.view.endpoints.items():
        if name != "node-exporter":
            console.print(f"  {name:<12} {endpoint.url}")
    for label, text in paging(status.view):
        console.print(f"  {label:<12} {text}")
    for title in status.missing:
        console.print(f"  left out     {title}")
    for text in lab_stand_ins(status.view.containers):
        console.print(f"  LAB          {text}")


def _show_narrow(console: RichConsole, status: Status) -> None:
    """A few short lines for each service, where a table would fold every word."""
    for row in status.rows:
        style = "green" if row.state == READY else "red"
        console.print(f"[{style}]{row.state}[/] {row.service}", overflow="fold")
        memory = f"{_mib(row.memory)} of {_mib(row.memory_limit)}"
        for line in (row.detail, f"{memory}, restarts {row.restarts}", _image(row)):
            if line:
                console.print(f"  {escape(line)}", overflow="fold")
    for target in status.view.targets or ():
        style = "green" if target.health == "up" else "red"
        console.print(f"[{style}]{target.health}[/] target {target.job}", overflow="fold")
        if target.error:
            console.print(f"  {escape(target.error)}", overflow="fold")


def _image(row: Row) -> str:
    note = " (LAB STAND-IN)" if row.lab else " (stand-in)" if row.stand_in else ""
    return row.image + note


def _services_table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("SERVICE", "STATE", "DETAIL"):
        table.add_column(column)
    for column in ("RESTARTS", "MEMORY", "LIMIT"):
        table.add_column(column, justify="right")
    table.add_column("IMAGE", overflow="fold")
    for row in status.rows:
        style = "green" if row.state == READY else "red"
        table.add_row(
            row.service,
            f"[{style}]{row.state}[/]",
            escape(row.detail),
            str(row.restarts),
            _mib(row.memory),
            _mib(row.memory_limit),
            escape(_image(row)),
        )
    return table


def _targets_table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("TARGET", "STATE", "INSTANCE", "LAST ERROR"):
        table.add_column(column, overflow="fold")
    for target in status.view.targets or ():
        style = "green" if target.health == "up" else "red"
        table.add_row(
            target.job, f"[{style}]{target.health}[/]", target.instance, escape(target.error)
        )
    return table


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB" if size else "-"
