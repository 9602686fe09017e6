"""Everything there is to see about a running bundle, gathered once and shown in several ways."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agl.errors import EnvironmentFault
from agl.ops import alertmanager
from agl.ops.choices import is_lab, remember, used_slots
from agl.ops.compose import Compose, Service
from agl.ops.engine import Container, Engine
from agl.ops.health import (
    READY,
    STARTING,
    Endpoint,
    ServiceHealth,
    Target,
    endpoints,
    fetch,
    judge,
    read_receivers,
    read_targets,
    refuses,
    store_scheme,
)
from agl.ops.layout import DEFAULT_MODE, MODES, Layout
from agl.ops.secrets import API_TOKEN, read_secret

_PUBLISHED = (
    ("app", "4747/tcp", "AGL_BIND", "AGL_PORT"),
    ("grafana", "3000/tcp", "AGL_GRAFANA_BIND", "AGL_GRAFANA_PORT"),
    ("panels", "3000/tcp", "AGL_GRAFANA_BIND", "AGL_GRAFANA_PORT"),
    ("runbooks", "3000/tcp", "AGL_GRAFANA_BIND", "AGL_RUNBOOKS_PORT"),
    ("prometheus", "9090/tcp", "", "AGL_PROMETHEUS_PORT"),  # always on loopback
    ("alertmanager", "9093/tcp", "", "AGL_ALERTMANAGER_PORT"),  # likewise
)
NOT_YET_TAKEN = (
    "this token is newer than the store's start: it is taken after scripts/down and scripts/up"
    " (what the store holds in memory is lost)"
)
_LISTEN = "--web.listen-address="


@dataclass(frozen=True)
class View:
    """One look at the bundle."""

    containers: tuple[Container, ...]
    health: tuple[ServiceHealth, ...]
    targets: tuple[Target, ...] | None
    endpoints: Mapping[str, Endpoint]
    receivers: tuple[str, ...] | None = None
    """Names of Alertmanager's receivers; ``None`` where it does not answer or is not used."""

    @property
    def targets_up(self) -> int:
        return sum(target.health == "up" for target in self.targets or ())

    @property
    def ready(self) -> bool:
        """Every service is ready and, where there is a Prometheus, every own target is up."""
        return all(item.state == READY for item in self.health) and self.scraped

    @property
    def scraped(self) -> bool:
        """Whether the bundle's own targets are up: a host elsewhere holds up no start."""
        if "prometheus" not in self.endpoints:
            return True
        own = [target for target in self.targets or () if not target.elsewhere]
        return bool(own) and all(target.health == "up" for target in own)

    def of(self, state: str) -> list[ServiceHealth]:
        return [item for item in self.health if item.state == state]


@dataclass
class Watcher:
    """Looks at a bundle again and again."""

    layout: Layout
    engine: Engine
    services: Mapping[str, Service]
    variables: Mapping[str, str]
    restarts_before: Mapping[str, int] = field(default_factory=dict[str, int])

    def look(self) -> View:
        """One look: the daemon is asked once, the endpoints at the same time."""
        containers = self.engine.containers()
        known = endpoints(self.variables, self.services)
        running = {container.service for container in containers if container.running}
        asked = [endpoint for endpoint in known.values() if endpoint.service in running]
        with ThreadPoolExecutor(max_workers=8) as pool:
            answers = list(pool.map(_answers, asked))
        reached = {
            endpoint.service: answer for endpoint, answer in zip(asked, answers, strict=True)
        }
        targets = read_targets(known["prometheus"].url) if reached.get("prometheus") else None
        receivers = (
            read_receivers(known["alertmanager"].url) if reached.get("alertmanager") else None
        )
        return View(
            containers=tuple(containers),
            health=tuple(judge(self.services, containers, reached, self.restarts_before)),
            targets=None if targets is None else tuple(targets),
            endpoints=known,
            receivers=None if receivers is None else tuple(receivers),
        )


def _answers(endpoint: Endpoint) -> bool:
    return fetch(endpoint.probe) is not None


def watcher(layout: Layout, engine: Engine, compose: Compose) -> Watcher:
    """A watcher for the services that ``compose`` starts."""
    return Watcher(
        layout=layout,
        engine=engine,
        services=compose.services(),
        variables={**layout.variables(), **compose.overrides},
    )


def as_running(containers: Iterable[Container]) -> dict[str, str]:
    """The variables of addresses and ports that the containers were started with.

    They may differ from what is set now: somebody else, or another shell, has started the bundle.
    """
    found: dict[str, str] = {}
    for container in containers:
        for service, port, bind_name, port_name in _PUBLISHED:
            if container.service == service and port in container.published:
                bind, found[port_name] = container.published[port]
                if bind_name:
                    found[bind_name] = bind
        for argument in container.command:
            if container.service == "node-exporter" and argument.startswith(_LISTEN):
                address, _, port = argument.removeprefix(_LISTEN).rpartition(":")
                found["AGL_GATEWAY"], found["AGL_NODE_EXPORTER_PORT"] = address, port
    return found


def progress_lines(view: View) -> list[str]:
    """One line a service, for a display that is drawn anew."""
    width = max((len(item.service) for item in view.health), default=0)
    marks = {READY: "✓", STARTING: "·"}
    lines = [
        f"{marks.get(item.state, '✗')} {item.service:<{width}}  {item.detail}"
        for item in view.health
    ]
    if view.targets is not None:
        lines.append(f"{'✓' if view.scraped else '·'} scrape targets  {_share(view)}")
    return lines


def _share(view: View) -> str:
    down = [target.job for target in view.targets or () if target.health != "up"]
    waiting = f", waiting for {', '.join(down)}" if down else ""
    return f"{view.targets_up} of {len(view.targets or ())} up{waiting}"


def summary(layout: Layout, engine: Engine, view: View) -> list[str]:
    """Where everything is: addresses, where passwords are, the client's URL, what is missing."""
    variables = layout.variables()
    rows = [("store", view.endpoints["app"].url)] if "app" in view.endpoints else []
    token = client_token(variables, engine) if rows else ""
    if token:
        rows.append(("client URL", client_url(variables, token)))
        if refuses(view.endpoints["app"].url, token):
            rows.append(("", NOT_YET_TAKEN))
    if "grafana" in view.endpoints:
        rows.append(("Grafana", f"{view.endpoints['grafana'].url}  (user admin)"))
        rows.append(("  password", f"{_command(layout)} secrets show grafana-admin-password"))
    if "panels" in view.endpoints:
        rows.append(("dashboards", f"{view.endpoints['panels'].url}  (agl panels, read-only)"))
        if not _on_loopback(variables, "AGL_GRAFANA_BIND"):
            rows.append(("  password", f"{_command(layout)} secrets show grafana-admin-password"))
    if "runbooks" in view.endpoints:
        rows.append(("runbooks", f"{view.endpoints['runbooks'].url}/runbooks"))
    if "prometheus" in view.endpoints:
        rows.append(("Prometheus", view.endpoints["prometheus"].url))
    if "alertmanager" in view.endpoints:
        rows.append(("Alertmanager", view.endpoints["alertmanager"].url))
        rows.extend(paging(view))
    rows.extend(("left out", title) for title in missing(layout, view))
    rows.extend(("LAB", text) for text in lab_stand_ins(view.containers))
    rows.append(("look", _script(layout, "status")))
    rows.append(("stop", _script(layout, "down")))
    return [f"  {name:<12} {text}" for name, text in rows]


def paging(view: View) -> list[tuple[str, str]]:
    """Who is paged, in words; nothing while Alertmanager does not answer."""
    if view.receivers is None:
        return []
    receivers = list(view.receivers)
    ways = alertmanager.ways(receivers)
    paged = [("pages go to", ways)] if ways else []
    return [*paged, *(("WARNING", text) for text in alertmanager.warnings(receivers))]


def missing(layout: Layout, view: View) -> list[str]:
    """Services that were left out since their image is not to be had, with the image."""
    left_out = remember(layout).left_out
    present = {container.service for container in view.containers}
    return [
        f"{slot.title} ({left_out[slot.variable]} cannot be pulled here)"
        for slot in used_slots(layout, running_mode(view.containers))
        if slot.variable in left_out and slot.title not in present
    ]


def running_mode(containers: Iterable[Container]) -> str:
    """The mode that the store was started in.

    A change of mode leaves containers as they are that both modes have in common, with the file
    they were made from: the store's counts, and any other only where there is no store.
    """
    made = list(containers)
    stores = [container for container in made if container.service == "app"]
    files = {container.compose_file for container in stores or made}
    return next((mode for mode, file in MODES.items() if file in files), DEFAULT_MODE)


def lab_stand_ins(containers: Iterable[Container]) -> list[str]:
    """What is not the real thing, and good for trials and tests only."""
    return [
        f"{container.service} is a LAB STAND-IN ({container.image}), for trials and tests only"
        for container in containers
        if is_lab(container.image)
    ]


def client_token(variables: Mapping[str, str], engine: Engine) -> str:
    """The token that clients need; an empty string when the store listens on loopback only."""
    return "" if _on_loopback(variables, "AGL_BIND") else read_secret(engine, API_TOKEN)


def _on_loopback(variables: Mapping[str, str], name: str) -> bool:
    return ipaddress.ip_address(variables.get(name) or "127.0.0.1").is_loopback


def client_url(variables: Mapping[str, str], token: str) -> str:
    """What a client on another machine is given."""
    bind = variables.get("AGL_BIND") or "127.0.0.1"
    address = ipaddress.ip_address(bind)
    host = "THIS-HOST" if address.is_unspecified else f"[{bind}]" if ":" in bind else bind
    if address.is_unspecified:
        host = outside_address() or host
    scheme, port = store_scheme(variables), variables.get("AGL_PORT") or "4747"
    return f"{scheme}://agl:{token}@{host}:{port}"


def outside_address() -> str:
    """The IPv4 address this machine uses towards its default route; empty without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket only looks up the route; nothing is sent.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def require_containers(containers: Iterable[Container], project: str) -> None:
    """Raises EnvironmentFault when the bundle is not there at all."""
    if not list(containers):
        raise EnvironmentFault(f"nothing of {project!r} is running", remedy="start it: scripts/up")


def _script(layout: Layout, name: str) -> str:
    return f'"{path}"' if " " in (path := str(layout.root / "scripts" / name)) else path


def _command(layout: Layout) -> str:
    path = str(layout.root / ".venv" / "bin" / "agl-stack")
    return f'"{path}" stack' if " " in path else f"{path} stack"
