"""Compose files on top of the bundle's own, named by AGL_OVERLAYS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agl.errors import UsageError
from agl.ops.compose import Compose
from agl.ops.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"


def with_overlays(names: str) -> Layout:
    return Layout(ROOT, {"AGL_OVERLAYS": names})


def test_there_are_none_unless_asked_for() -> None:
    assert Layout(ROOT, {}).overlays == []


def test_every_command_of_compose_is_given_them_after_the_modes_own_file() -> None:
    command = Compose(with_overlays(" alertmanagers ,"), "mongo").command("up")
    files = [Path(command[at + 1]).name for at, word in enumerate(command) if word == "--file"]
    assert files == ["compose.prometheus-mongo-store.yml", "compose.alertmanagers.yml"]


@pytest.mark.parametrize("name", ["alertmanager", "../x", "ALERTMANAGERS"])
def test_a_name_without_a_file_is_told(name: str) -> None:
    with pytest.raises(UsageError, match="AGL_OVERLAYS: there is no overlay"):
        _ = with_overlays(name).overlays


def flags(file: str) -> set[str]:
    service: dict[str, Any] = yaml.safe_load((COMPOSE / file).read_text())["services"]
    command = service["alertmanager"]["command"]
    words = command.split() if isinstance(command, str) else command
    return {word for word in words if not word.startswith(("--cluster", "${"))}


def test_a_member_of_a_cluster_differs_from_one_that_is_alone_by_the_cluster_only() -> None:
    assert flags("compose.alertmanagers.yml") == flags("compose.prometheus-memory-store.yml")


def test_a_member_is_published_on_no_address_but_the_one_that_is_given() -> None:
    overlay = yaml.safe_load((COMPOSE / "compose.alertmanagers.yml").read_text())
    ports = overlay["services"]["alertmanager"]["ports"]
    assert [(port["target"], port.get("protocol", "tcp")) for port in ports] == [
        (9093, "tcp"),
        (9094, "tcp"),
        (9094, "udp"),
    ]
    assert all(port["host_ip"].startswith("${AGL_ALERTMANAGER_BIND") for port in ports)
    assert ":?" in ports[0]["host_ip"]
