"""One bundle on MongoDB for all tests here: a clone of the tree, by ``scripts/up mongo --lab``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from bundle import ROOT, Stack, clone_to, leftovers, lend_environment

VARIABLES = {
    "COMPOSE_PROJECT_NAME": "agl-mongo-test",
    "AGL_PORT": "25747",
    "AGL_GRAFANA_PORT": "26091",
    "AGL_PROMETHEUS_PORT": "26090",
    "AGL_ALERTMANAGER_PORT": "26093",
    "AGL_RUNBOOKS_PORT": "26096",
    "AGL_NODE_EXPORTER_PORT": "26100",
    "AGL_SUBNET": "172.31.238.0/24",
    "AGL_GATEWAY": "172.31.238.1",
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
