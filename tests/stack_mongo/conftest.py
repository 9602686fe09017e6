"""One bundle on MongoDB for all tests here: a clone of the tree, by ``scripts/up mongo --lab``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from bundle import ROOT, SLOT, Stack, clone_to, leftovers, lend_environment

VARIABLES = {
    "COMPOSE_PROJECT_NAME": f"agl-mongo-test-{SLOT}",
    "AGL_PORT": str(25747 + 20 * SLOT),
    "AGL_GRAFANA_PORT": str(26091 + 20 * SLOT),
    "AGL_PROMETHEUS_PORT": str(26090 + 20 * SLOT),
    "AGL_ALERTMANAGER_PORT": str(26093 + 20 * SLOT),
    "AGL_RUNBOOKS_PORT": str(26096 + 20 * SLOT),
    "AGL_NODE_EXPORTER_PORT": str(26100 + 20 * SLOT),
    "AGL_SUBNET": f"172.31.{236 + SLOT}.0/24",
    "AGL_GATEWAY": f"172.31.{236 + SLOT}.1",
}
UP = ("up", "mongo", "--lab", "--yes")


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    root = clone_to(tmp_path_factory.mktemp("stack") / "a clone with spaces")
    lend_environment(root)
    shutil.copyfile(ROOT / "compose" / ".env.images", root / "compose" / ".env.images")
    running = Stack(root, {**os.environ, **VARIABLES})
    try:
        yield running, running.script(*UP)
    finally:
        running.script("down", "--volumes")
    assert leftovers(running.project) == {"containers": [], "volumes": [], "networks": []}


@pytest.fixture(scope="session")
def stack(started: tuple[Stack, str]) -> Stack:
    """The running bundle."""
    return started[0]


@pytest.fixture(scope="session")
def said_by_up(started: tuple[Stack, str]) -> str:
    """What ``up`` printed."""
    return started[1]
