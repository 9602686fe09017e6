"""Is this machine ready for the bundle? Looks at everything, changes nothing.

``python3 -m agl.ops.preflight`` works with nothing installed: the standard library alone, from
Python 3.9 on. Each check says what it found and, where that is not enough, one command to fix it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import platform
import re
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import AglError, UsageError
from agl.ops import dockercli, machine, preflight_mongo, preflight_tls
from agl.ops.layout import DEFAULT_MODE, Layout, check_mode, find_layout
from agl.ops.options import check_lab, up_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TextIO

OK, WARN, FAIL = "ok", "warn", "fail"
INSTALL, JOIN_GROUP = "install", "join group"
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
TRIED = {("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}
COMPOSE_MINIMUM = (2, 24)
DISK_NEEDED, DISK_WISHED = 3 << 30, 12 << 30
MEMORY_NEEDED, MEMORY_WISHED = 1 << 30, 2 << 30
DEFAULT_NOFILE, MINIMUM_NOFILE = 65535, 1024
NODE_EXPORTER_PORT = 9100

STORE_PORT = ("AGL_PORT", "AGL_BIND", 4747)
MONITORING_PORTS = (
    ("AGL_GRAFANA_PORT", "AGL_GRAFANA_BIND", 9091),
    ("AGL_RUNBOOKS_PORT", "AGL_GRAFANA_BIND", 9096),
    ("AGL_PROMETHEUS_PORT", "", 9090),
    ("AGL_ALERTMANAGER_PORT", "", 9093),
)
STORE_MEMORY = (("AGL_INIT_MEMORY", "256m"), ("AGL_APP_MEMORY", "4g"))
MONITORING_MEMORY = (
    ("AGL_EXPORTER_MEMORY", "512m"),
    ("AGL_NODE_EXPORTER_MEMORY", "128m"),
    ("PROMETHEUS_MEMORY", "2g"),
    ("ALERTMANAGER_MEMORY", "128m"),
    ("AGL_CONTAINER_EXPORTER_MEMORY", "128m"),
    ("GRAFANA_MEMORY", "512m"),
    ("AGL_PANELS_MEMORY", "256m"),
)
METRICS_FOLDER = ("AGL_MULTIPROC_SIZE", "256m")
STORE_ALONE = 128 << 20
_SIZE = re.compile(r"([0-9]{1,15})(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
INSTALLED_BY_UP = "./scripts/up   (installs it from Docker's repository after asking)"


@dataclass(frozen=True)
class Check:
    """One thing looked at; ``by_up`` says how ``up`` can put it right by itself, if it can."""

    name: str
    status: str
    found: str
    fix: str = ""
    by_up: str = ""


@dataclass(frozen=True)
class Situation:
    """Everything the checks look at, gathered once."""

    layout: Layout
    mode: str
    variables: Mapping[str, str]
    docker: dockercli.DockerFacts
    lab: bool = False

    def get(self, name: str, default: str) -> str:
        return self.variables.get(name) or default


def run_checks(layout: Layout, mode: str = DEFAULT_MODE, *, lab: bool = False) -> list[Check]:
    """Every check for ``mode``, in the order in which a person would put things right."""
    docker = dockercli.read_docker(layout.environ)
    situation = Situation(layout, mode, layout.variables(), docker, lab)
    checks: list[Callable[[Situation], Iterable[Check]]] = [
        check_architecture,
        check_system,
        check_docker,
        check_compose,
        check_buildx,
        check_binds,
        check_links,
        check_tls,
        check_ports,
        check_node_exporter_port,
        check_subnet,
        check_disk,
        check_memory,
        check_nofile,
        check_sizes,
        check_mongo,
    ]
    return [result for check in checks for result in check(situation)]


def check_architecture(_: Situation) -> Iterable[Check]:
    found = platform.machine()
    if found in ARCHITECTURES:
        yield Check("architecture", OK, ARCHITECTURES[found])
    else:
        yield Check("architecture", FAIL, found, "use a machine with amd64 or arm64")


def check_system(_: Situation) -> Iterable[Check]:
    system = machine.read_system()
    if (system.id, system.version) in TRIED:
        yield Check("system", OK, system.pretty)
    else:
        yield Check(
            "system",
            WARN,
            f"{system.pretty}: not tried; Debian 12/13 and Ubuntu 22.04/24.04 are",
            "install Docker with Compose 2.24 or newer yourself, then go on",
        )


def check_docker(situation: Situation) -> Iterable[Check]:
    docker = situation.docker
    if not docker.cli:
        yield Check("docker", FAIL, "not installed", INSTALLED_BY_UP, by_up=INSTALL)
    elif docker.reachable:
        yield Check("docker", OK, f"{docker.server} at {docker.host}")
    elif docker.denied:
        yield Check(
            "docker",
            FAIL,
            f"no permission to use {docker.host.replace('unix://', '')}",
            "sudo usermod -aG docker $USER && newgrp docker   (or run this with sudo)",
            by_up=JOIN_GROUP,
        )
    elif docker.silent:
        found = f"the docker command fails: {docker.error.splitlines()[-1]}"
        yield Check("docker", FAIL, found, "check DOCKER_CONTEXT, DOCKER_HOST and DOCKER_CONFIG")
    else:
        yield Check(
            "docker",
            FAIL,
            f"the daemon does not answer at {docker.host}",
            "sudo systemctl start docker" if docker.local else "check DOCKER_HOST and the context",
        )


def check_compose(situation: Situation) -> Iterable[Check]:
    docker = situation.docker
    wanted = ".".join(map(str, COMPOSE_MINIMUM))
    if not docker.cli or docker.silent:
        return
    if not docker.compose:
        found = f"not installed; {wanted} or newer is needed"
        yield Check("compose", FAIL, found, INSTALLED_BY_UP, by_up=INSTALL)
    elif dockercli.version_tuple(docker.compose) < COMPOSE_MINIMUM:
        found = f"{docker.compose} is too old; {wanted} or newer is needed"
        yield Check("compose", FAIL, found, INSTALLED_BY_UP, by_up=INSTALL)
    else:
        yield Check("compose", OK, docker.compose)


def check_buildx(situation: Situation) -> Iterable[Check]:
    docker = situation.docker
    if not docker.cli or docker.silent:
        return
    if docker.buildx:
        yield Check("buildx", OK, docker.buildx)
    else:
        yield Check("buildx", FAIL, "not installed", INSTALLED_BY_UP, by_up=INSTALL)


def check_binds(situation: Situation) -> Iterable[Check]:
    names = ["AGL_BIND"] if situation.mode == "store" else ["AGL_BIND", "AGL_GRAFANA_BIND"]
    for name in names:
        yield _check_bind(name, situation.get(name, "127.0.0.1"), situation.docker.local)


def _check_bind(name: str, value: str, local: bool) -> Check:
    label = f"address {name}"
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return Check(label, FAIL, f"{value!r} is not an IP address", f"export {name}=127.0.0.1")
    if local and _bind_error(value, 0):
        fix = f"export {name}=0.0.0.0   (every address), or one that `ip address` lists"
        return Check(label, FAIL, f"this machine has no address {value}", fix)
    if address.is_loopback:
        return Check(label, OK, f"{value} (this machine only)")
    note = "the store asks for its token" if name == "AGL_BIND" else "Grafana asks for its password"
    return Check(label, OK, f"{value} (open to the network; {note})")


def check_links(situation: Situation) -> Iterable[Check]:
    """Alerts link to the boards and to the runbooks: whoever is paged elsewhere needs both."""
    names = ("AGL_GRAFANA_EXTERNAL_URL", "AGL_RUNBOOKS_EXTERNAL_URL")
    missing = [name for name in names if not situation.get(name, "")]
    if len(missing) == 1:
        found = f"{missing[0]} is not set: that half of the links in alerts leads to localhost"
        yield Check("links", WARN, found, f"export {missing[0]}=http://THIS-HOST:PORT")


def check_tls(situation: Situation) -> Iterable[Check]:
    """Compose would make a folder in place of a file that is missing."""
    if situation.docker.local:
        folder = situation.layout.compose_dir
        for name, status, what, fix in preflight_tls.check_pair(situation.get, folder):
            yield Check(name, status, what, fix)


def check_ports(situation: Situation) -> Iterable[Check]:
    environ = situation.layout.environ
    ours = dockercli.published_ports(situation.layout.project, environ)
    seen: dict[int, str] = {}
    for name, bind_name, default in _ports_of(situation.mode):
        bind = situation.get(bind_name, "127.0.0.1") if bind_name else "127.0.0.1"
        raw = situation.get(name, str(default))
        label = f"port {name}"
        port = _port(raw)
        if not port:
            yield Check(label, FAIL, f"{raw!r} is not a port", f"export {name}={default}")
            continue
        if port in seen:
            fix = f"export {name}={_free_port(port, set(seen))}"
            yield Check(label, FAIL, f"{port} is {seen[port]} too", fix)
            continue
        seen[port] = name
        if port in ours or not situation.docker.local:
            yield Check(label, OK, f"{port} (held by this bundle)" if port in ours else str(port))
        else:
            yield _check_port(label, name, bind, port, environ)


def _check_port(label: str, name: str, bind: str, port: int, environ: Mapping[str, str]) -> Check:
    if _bind_error(bind, port) != errno.EADDRINUSE:
        return Check(label, OK, f"{port} is free")
    container = dockercli.publisher(port, environ)
    by = f"the container {container}" if container else _holder(port) or "another program"
    fix = f"stop {by}, or: export {name}={_free_port(port, set())}"
    return Check(label, FAIL, f"{port} is taken by {by}", fix)


def check_node_exporter_port(situation: Situation) -> Iterable[Check]:
    """node-exporter listens on the bridge's gateway; a wildcard listener would be in its way."""
    if situation.mode == "store" or not situation.docker.local:
        return
    gateway = situation.get("AGL_GATEWAY", "")
    raw = situation.get("AGL_NODE_EXPORTER_PORT", str(NODE_EXPORTER_PORT))
    label = "port AGL_NODE_EXPORTER_PORT"
    port = _port(raw)
    if not port:
        yield Check(label, FAIL, f"{raw!r} is not a port", "export AGL_NODE_EXPORTER_PORT=9100")
        return
    wildcards = {"0.0.0.0", "::"}
    for listener in machine.listeners():
        if listener.port == port and listener.address in wildcards:
            by = machine.holder(listener.inode) or "another program"
            fix = f"stop {by}, or: export AGL_NODE_EXPORTER_PORT={_free_port(port, set())}"
            yield Check(label, FAIL, f"{raw} is taken on every address by {by}", fix)
            return
    yield Check(label, OK, f"{raw} is free on the bridge {gateway}".rstrip())


def check_subnet(situation: Situation) -> Iterable[Check]:
    raw = situation.get("AGL_SUBNET", "")
    if not raw:
        return
    try:
        subnet = ipaddress.ip_network(raw)
    except ValueError as error:
        yield Check("AGL_SUBNET", FAIL, str(error), "export AGL_SUBNET=172.16.247.0/24")
        return
    gateway = situation.get("AGL_GATEWAY", str(next(iter(subnet.hosts()))))
    if not _within(gateway, subnet):
        fix = f"export AGL_GATEWAY={next(iter(subnet.hosts()))}"
        yield Check("AGL_SUBNET", FAIL, f"AGL_GATEWAY {gateway} is not in {raw}", fix)
        return
    taken = _taken_networks(situation)
    clash = next((who for network, who in taken if _overlaps(subnet, network)), "")
    if clash:
        yield Check("AGL_SUBNET", FAIL, f"{raw} overlaps {clash}", _free_subnet(taken))
    else:
        yield Check("AGL_SUBNET", OK, f"{raw} is free")


def _within(address: str, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(address) in subnet
    except ValueError:
        return False


def _taken_networks(situation: Situation) -> list[tuple[str, str]]:
    """(network, who has it) of everything but this bundle's own."""
    known = dockercli.networks(situation.layout.environ)
    project = situation.layout.project
    own_bridges = {network.bridge for network in known if network.project == project}
    taken = [
        (subnet, f"{subnet} of the Docker network {network.name}")
        for network in known
        if network.project != project
        for subnet in network.subnets
    ]
    routes = machine.routes() if situation.docker.local else []
    return taken + [
        (str(route), f"the route to {route} through {interface}")
        for interface, route in routes
        if interface not in own_bridges
    ]


def _free_subnet(taken: list[tuple[str, str]]) -> str:
    """The command that sets the first private /24 nobody has."""
    candidates = (
        ipaddress.ip_network(f"{base}.{third}.0/24")
        for base in ("172.31", "10.213", "192.168")
        for third in range(240, 0, -1)
    )
    for subnet in candidates:
        if not any(_overlaps(subnet, network) for network, _ in taken):
            return f"export AGL_SUBNET={subnet} AGL_GATEWAY={next(iter(subnet.hosts()))}"
    return "choose AGL_SUBNET and AGL_GATEWAY in compose/.env"


def _overlaps(subnet: ipaddress.IPv4Network | ipaddress.IPv6Network, text: str) -> bool:
    other = ipaddress.ip_network(text, strict=False)
    if isinstance(subnet, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
        return subnet.overlaps(other)
    if isinstance(subnet, ipaddress.IPv6Network) and isinstance(other, ipaddress.IPv6Network):
        return subnet.overlaps(other)
    return False


def check_disk(situation: Situation) -> Iterable[Check]:
    if not situation.docker.local:
        return
    root = Path(situation.docker.root_dir or "/var/lib/docker")
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{_gib(free)} free for {root}"
    if free < DISK_NEEDED:
        fix = "docker system prune   (or give that folder more room)"
        yield Check("disk", FAIL, f"{found}; {_gib(DISK_NEEDED)} needed", fix)
    elif free < DISK_WISHED:
        fix = "lower PROMETHEUS_RETENTION_SIZE in compose/.env, or make room"
        yield Check("disk", WARN, f"{found}; metrics may grow to 10 GB", fix)
    else:
        yield Check("disk", OK, found)


def check_memory(situation: Situation) -> Iterable[Check]:
    if not situation.docker.local:
        return
    total = machine.memory_bytes()
    if total < MEMORY_NEEDED:
        yield Check("memory", FAIL, f"{_gib(total)}; {_gib(MEMORY_NEEDED)} needed", "add memory")
    elif total < MEMORY_WISHED:
        yield Check("memory", WARN, f"{_gib(total)}; {_gib(MEMORY_WISHED)} is better", "add memory")
    else:
        yield Check("memory", OK, _gib(total))


def check_nofile(situation: Situation) -> Iterable[Check]:
    raw = situation.get("AGL_NOFILE", str(DEFAULT_NOFILE))
    if number(raw) < MINIMUM_NOFILE:
        found = f"{raw!r} is not a number of at least {MINIMUM_NOFILE}"
        yield Check("AGL_NOFILE", FAIL, found, f"export AGL_NOFILE={DEFAULT_NOFILE}")
    elif situation.docker.local and machine.nofile_limit() < number(raw):
        limit = machine.nofile_limit()
        found = f"{raw} is above this machine's hard limit; up lowers it to {limit}"
        yield Check("AGL_NOFILE", WARN, found, f"export AGL_NOFILE={limit}")
    else:
        yield Check("AGL_NOFILE", OK, raw)


def check_sizes(situation: Situation) -> Iterable[Check]:
    """Limits that are no sizes, and a metrics folder that the store's limit does not allow for."""
    monitored = situation.mode != "store"
    known = (*STORE_MEMORY, *((*MONITORING_MEMORY, METRICS_FOLDER) if monitored else ()))
    if situation.mode == "mongo":
        known = (*known, *preflight_mongo.MONGO_MEMORY)
    sizes: dict[str, int] = {}
    for name, default in known:
        raw = situation.get(name, default)
        sizes[name] = _bytes(raw)
        if not sizes[name]:
            yield Check(name, FAIL, f"{raw!r} is not a size", f"export {name}={default}")
    limit, folder = sizes["AGL_APP_MEMORY"], sizes.get(METRICS_FOLDER[0], 0)
    if limit and folder and limit < folder + STORE_ALONE:
        found = (
            f"{_mib(limit)}; the metrics folder in it may take {_mib(folder)} (AGL_MULTIPROC_SIZE)"
        )
        yield Check(
            "AGL_APP_MEMORY", FAIL, found, "export AGL_APP_MEMORY=4g AGL_MULTIPROC_SIZE=256m"
        )


def check_mongo(situation: Situation) -> Iterable[Check]:
    """What only the bundle on MongoDB needs."""
    if situation.mode != "mongo":
        return
    found = [*preflight_mongo.check_external(situation.get)]
    found += preflight_mongo.check_database(situation.get)
    found += preflight_mongo.check_workers(situation.get)
    if not situation.get("AGL_MONGO_URI", ""):
        found += preflight_mongo.check_container(
            situation.get,
            limit=_bytes(situation.get("AGL_MONGO_MEMORY", "4g")),
            local=situation.docker.local,
            lab=situation.lab,
        )
    for name, status, what, fix in found:
        yield Check(name, status, what, fix)


def number(raw: str) -> int:
    """``raw`` as a whole number; 0 when it is none."""
    return int(raw) if re.fullmatch("[0-9]{1,18}", raw) else 0


def _port(raw: str) -> int:
    """``raw`` as the number of a port; 0 when it is none."""
    return number(raw) if number(raw) < 65536 else 0


def _bytes(raw: str) -> int:
    """A size as Compose writes it (``512m``, ``4GiB``), in bytes; 0 when it is none."""
    match = _SIZE.fullmatch(raw.strip())
    return int(match[1]) << 10 * " kmgt".index((match[2] or " ").lower()) if match else 0


def failures(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.status == FAIL]


def render(checks: list[Check], *, color: bool = False) -> str:
    """The checks as a table for people; every fix stands below its check."""
    marks = {OK: ("ok  ", "32"), WARN: ("warn", "33"), FAIL: ("FAIL", "31;1")}
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for check in checks:
        text, code = marks[check.status]
        mark = f"\x1b[{code}m{text}\x1b[0m" if color else text
        lines.append(f"  {mark}  {check.name.ljust(width)}  {check.found}")
        if check.fix:
            lines.append(f"        {' ' * width}  fix: {check.fix}")
    return "\n".join(lines)


def use_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return stream.isatty() and "NO_COLOR" not in environ and environ.get("TERM") != "dumb"


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """The arguments of ``up``: print every check; 0 when nothing failed, 1 otherwise, 2 for usage.

    ``--brief`` prints failures only, and passes over what ``up`` can install.
    """
    try:
        options = up_parser("agl stack up").parse_args(argv)
        check_mode(options.mode)
        check_lab(options)
        checks = run_checks(find_layout(environ), options.mode, lab=options.lab)
    except AglError as error:
        print(f"agl stack up: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    wrong = [check for check in failures(checks) if not (options.brief and check.by_up)]
    if not options.brief:
        print(render(checks, color=use_color(sys.stdout, environ)))
        print(verdict(checks))
    elif wrong:
        print(render(wrong, color=use_color(sys.stderr, environ)), file=sys.stderr)
        print(verdict(wrong), file=sys.stderr)
    return 1 if wrong else 0


def verdict(checks: list[Check]) -> str:
    """One closing line: ready, or what is in the way."""
    wrong = failures(checks)
    if not wrong:
        return "ready: nothing is in the way"
    names = ", ".join(check.name for check in wrong)
    return f"not ready: {names} (nothing was changed)"


def _ports_of(mode: str) -> list[tuple[str, str, int]]:
    return [STORE_PORT] if mode == "store" else [STORE_PORT, *MONITORING_PORTS]


def _bind_error(address: str, port: int) -> int:
    """The errno of binding there, 0 when it works or is not ours to try (privileged ports)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return 0 if error.errno == errno.EACCES else error.errno or errno.EINVAL
    return 0


def _holder(port: int) -> str:
    names = (machine.holder(item.inode) for item in machine.listeners() if item.port == port)
    return next((name for name in names if name), "")


def _free_port(near: int, avoid: set[int]) -> int:
    candidates = (port for port in range(near + 1, 65536) if port not in avoid)
    return next((port for port in candidates if not _bind_error("127.0.0.1", port)), near)


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
