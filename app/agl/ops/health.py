"""Is everything up? Container states, probes from outside, and Prometheus' own view."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from agl.ops.compose import Service
from agl.ops.engine import Container
from agl.ops.shapes import items, mapping

READY, STARTING, FAILED = "ready", "starting", "failed"
PROBE_SECONDS = 3
RESTARTS_ALLOWED = 2
UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Endpoint:
    """Where a service answers when it is ready, asked from the host."""

    service: str
    url: str
    probe: str


@dataclass(frozen=True)
class ServiceHealth:
    """One service: ready, starting or failed, with the reason in a few words."""

    service: str
    state: str
    detail: str


@dataclass(frozen=True)
class Target:
    """One scrape target as Prometheus sees it; ``health`` is up, down or unknown.

    ``elsewhere``: it comes from a file of targets and is none of the bundle's own services.
    """

    job: str
    instance: str
    health: str
    error: str
    elsewhere: bool = False


def endpoints(variables: Mapping[str, str], services: Iterable[str]) -> dict[str, Endpoint]:
    """The addresses of those services that can be asked from the host, by service."""

    def at(bind: str | None, port: str, default: int, scheme: str = "http") -> str:
        return _address(bind, variables.get(port) or str(default), scheme)

    store = at(variables.get("AGL_BIND"), "AGL_PORT", 4747, store_scheme(variables))
    grafana = at(variables.get("AGL_GRAFANA_BIND"), "AGL_GRAFANA_PORT", 9091)
    runbooks = at(variables.get("AGL_GRAFANA_BIND"), "AGL_RUNBOOKS_PORT", 9096)
    prometheus = at("127.0.0.1", "AGL_PROMETHEUS_PORT", 9090)
    alertmanager = at("127.0.0.1", "AGL_ALERTMANAGER_PORT", 9093)
    node = at(variables.get("AGL_GATEWAY"), "AGL_NODE_EXPORTER_PORT", 9100)
    known = (
        Endpoint("app", store, f"{store}/v1/agl/health"),
        Endpoint("grafana", grafana, f"{grafana}/api/health"),
        Endpoint("panels", grafana, f"{grafana}/api/health"),
        Endpoint("runbooks", runbooks, f"{runbooks}/api/health"),
        Endpoint("prometheus", prometheus, f"{prometheus}/-/ready"),
        Endpoint("alertmanager", alertmanager, f"{alertmanager}/-/ready"),
        Endpoint("node-exporter", node, f"{node}/metrics"),
    )
    wanted = set(services)
    return {endpoint.service: endpoint for endpoint in known if endpoint.service in wanted}


def store_scheme(variables: Mapping[str, str]) -> str:
    """``https`` when the store has a certificate."""
    return "https" if variables.get("AGL_TLS_CERT") else "http"


def _address(bind: str | None, port: str, scheme: str) -> str:
    host = UNSPECIFIED.get(bind or "127.0.0.1", bind or "127.0.0.1")
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _unchecked() -> ssl.SSLContext:
    """For services of our own: their certificate names the host of clients, not of the probe."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_direct = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_unchecked())
)


def fetch(url: str) -> bytes | None:
    """The body of a 200 answer, straight and not through a proxy; None for anything else."""
    try:
        with _direct.open(url, timeout=PROBE_SECONDS) as response:
            return cast("bytes", response.read())
    except (OSError, ValueError):
        return None


def refuses(store: str, token: str) -> bool:
    """Whether the store at that address demands another token than this one."""
    request = urllib.request.Request(  # noqa: S310  # an address of our own
        f"{store}/v1/agl/statistics", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with _direct.open(request, timeout=PROBE_SECONDS):
            return False
    except urllib.error.HTTPError as error:
        return error.code == HTTPStatus.UNAUTHORIZED
    except (OSError, ValueError):
        return False


def read_targets(prometheus: str) -> list[Target] | None:
    """Every active scrape target; None when Prometheus does not answer at that address."""
    body = fetch(f"{prometheus}/api/v1/targets?state=active")
    if body is None:
        return None
    try:
        data = mapping(cast("dict[str, Any]", json.loads(body)).get("data"))
    except ValueError:
        return None
    return sorted(
        (_target(item) for item in items(data.get("activeTargets"))),
        key=lambda target: (target.job, target.instance),
    )


def read_receivers(alertmanager: str) -> list[str] | None:
    """Names of Alertmanager's receivers; None when it does not answer at that address."""
    body = fetch(f"{alertmanager}/api/v2/receivers")
    if body is None:
        return None
    try:
        found = cast("list[dict[str, Any]]", json.loads(body))
        return [str(item["name"]) for item in found]
    except (ValueError, TypeError, KeyError):
        return None


def _target(item: dict[str, Any]) -> Target:
    labels = mapping(item.get("labels"))
    return Target(
        job=labels.get("job", ""),
        instance=labels.get("instance", ""),
        health=item.get("health", "unknown"),
        error=item.get("lastError", ""),
        elsewhere="__meta_filepath" in mapping(item.get("discoveredLabels")),
    )


def judge(
    services: Mapping[str, Service],
    containers: Iterable[Container],
    reached: Mapping[str, bool],
    restarts_before: Mapping[str, int] | None = None,
) -> list[ServiceHealth]:
    """The health of every service. Pure: everything that was seen comes in as arguments.

    Attributes:
        reached: For services that can be asked from the host, whether they answered.
        restarts_before: Restart counts by container id that do not count as failures.
    """
    by_service = {container.service: container for container in containers}
    before = restarts_before or {}
    return [
        _judge_one(service, by_service.get(name), reached.get(name), before)
        for name, service in services.items()
    ]


def _judge_one(
    service: Service,
    container: Container | None,
    reached: bool | None,
    restarts_before: Mapping[str, int],
) -> ServiceHealth:
    if container is None or container.state == "created":
        error = container.error if container else ""
        return ServiceHealth(service.name, FAILED if error else STARTING, error or "waiting")
    if service.one_shot:
        return _judge_one_shot(service.name, container)
    new_restarts = container.restarts - restarts_before.get(container.id, 0)
    if container.state in {"exited", "dead"} or new_restarts > RESTARTS_ALLOWED:
        detail = _restarted(container, new_restarts) if new_restarts > 0 else _ended(container)
        return ServiceHealth(service.name, FAILED, detail)
    if container.health == "unhealthy":
        detail = _restarted(container, new_restarts) if new_restarts else "its healthcheck fails"
        return ServiceHealth(service.name, FAILED, detail)
    if not container.running:
        return ServiceHealth(service.name, STARTING, container.state)
    if service.healthcheck and container.health != "healthy":
        return ServiceHealth(service.name, STARTING, "not ready yet")
    if reached is False:
        return ServiceHealth(service.name, STARTING, "does not answer yet")
    detail = "healthy" if service.healthcheck else "answers" if reached else "running"
    return ServiceHealth(service.name, READY, detail)


def _judge_one_shot(name: str, container: Container) -> ServiceHealth:
    if container.state != "exited":
        return ServiceHealth(name, STARTING, "at work")
    if container.exit_code == 0:
        return ServiceHealth(name, READY, "done")
    return ServiceHealth(name, FAILED, _ended(container))


def _restarted(container: Container, times: int) -> str:
    return f"restarted {times} times{_memory(container)}"


def _ended(container: Container) -> str:
    return container.error or f"ended with code {container.exit_code}{_memory(container)}"


def _memory(container: Container) -> str:
    if not container.out_of_memory:
        return ""
    return f", killed since its memory limit of {container.memory_limit >> 20} MiB is too small"
