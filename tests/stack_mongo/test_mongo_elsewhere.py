"""The bundle on a MongoDB outside of it, by ``AGL_MONGO_URI`` and plain Compose; a new token."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from bundle import SLOT, Stack, clone_to, docker, leftovers, lend_environment, local_images
from mongo_bundle import play, wait_until_answers

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

COMPOSE_FILE = "compose.prometheus-mongo-store.yml"
UP = ("up", "--detach", "--no-build", "--pull", "never")
PASSWORD = "of-the-store-and-nobody-else-7"
TOKEN, NEXT_TOKEN = "the-token-of-before-4711", "the-token-of-afterwards-4712"
PLACE = f"172.31.{228 + SLOT}"
"""Where MongoDB is: a network that the bundle is not on, reached through its gateway."""

BIND = f"172.31.{232 + SLOT}.1"
VARIABLES = {
    "COMPOSE_PROJECT_NAME": f"agl-mongo-elsewhere-{SLOT}",
    "COMPOSE_PROFILES": "mongodb-exporter",
    "AGL_BIND": BIND,  # beyond loopback, so that the token is demanded
    "AGL_PORT": str(29747 + 20 * SLOT),
    "AGL_GRAFANA_PORT": str(30091 + 20 * SLOT),
    "AGL_PROMETHEUS_PORT": str(30090 + 20 * SLOT),
    "AGL_ALERTMANAGER_PORT": str(30093 + 20 * SLOT),
    "AGL_RUNBOOKS_PORT": str(30096 + 20 * SLOT),
    "AGL_NODE_EXPORTER_PORT": str(30100 + 20 * SLOT),
    "AGL_SUBNET": f"172.31.{232 + SLOT}.0/24",
    "AGL_GATEWAY": BIND,
}
USER = f"""
import pymongo
rights = [("readWrite", "agentlightning"), ("clusterMonitor", "admin"), ("read", "local")]
roles = [{{"role": role, "db": database}} for role, database in rights]
with pymongo.MongoClient("127.0.0.1", directConnection=True) as client:
    client.admin.command("createUser", "trainer", pwd="{PASSWORD}", roles=roles)
"""
URL = f"http://{BIND}:{VARIABLES['AGL_PORT']}"


def with_token(token: str) -> str:
    return URL.replace("://", f"://agl:{token}@")


@pytest.fixture(scope="module")
def mongo_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A MongoDB (its stand-in) in a container of its own, with users; the store's address of it."""
    name = f"{VARIABLES['COMPOSE_PROJECT_NAME']}-mongodb"
    key = tmp_path_factory.mktemp("secrets") / "keyfile"
    key.write_text("a2V5" * 8)
    key.chmod(0o400)
    os.chown(key, 999, 999)
    docker("network", "create", "--subnet", f"{PLACE}.0/24", "--gateway", f"{PLACE}.1", name)
    try:
        docker(
            *("run", "--detach", "--name", name, "--network", name, "--user", "999:999"),
            # The host name is what the replica set tells clients to connect to.
            *("--hostname", f"{PLACE}.1", "--publish", f"{PLACE}.1:27017:27017"),
            *("--volume", f"{key}:/keyfile:ro", local_images()["MONGO_IMAGE"], "mongod"),
            *("--replSet=secantus", "--bind_ip_all", "--keyFile=/keyfile"),
        )
        docker("exec", name, "/opt/lab/bin/python", "-c", USER)
        yield f"mongodb://trainer:{PASSWORD}@{PLACE}.1:27017/?replicaSet=secantus"
    finally:
        docker("rm", "--force", "--volumes", name)
        docker("network", "rm", name)


@pytest.fixture(scope="module")
def outside(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The bundle, brought up as `docs/operating.md` says for plain Compose."""
    clone = clone_to(tmp_path_factory.mktemp("elsewhere") / "clone")
    (clone / "compose" / "secrets" / "api-token").write_text(TOKEN)
    stack = Stack(clone, {**os.environ, **local_images(), **VARIABLES, "AGL_MONGO_URI": mongo_uri})
    try:
        compose(stack, *UP)
        wait_until_answers(f"{URL}/v1/agl/health")
        yield stack
    finally:
        compose(stack, "down", "--volumes", "--timeout", "3")
    assert leftovers(stack.project) == {"containers": [], "volumes": [], "networks": []}


def compose(stack: Stack, *arguments: str) -> str:
    done = subprocess.run(
        ["docker", "compose", "-f", COMPOSE_FILE, *arguments],
        cwd=stack.root / "compose",
        env=stack.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def containers(stack: Stack) -> dict[str, dict[str, Any]]:
    """What `docker inspect` says, by service."""
    ids = docker(
        *("ps", "--all", "--quiet", "--filter"),
        f"label=com.docker.compose.project={stack.project}",
    ).split()
    found = json.loads(docker("inspect", *ids))
    return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}


def test_it_works_without_a_mongodb_of_its_own(outside: Stack) -> None:
    play(with_token(TOKEN), 4)
    assert not {"mongo", "mongo-init"} & containers(outside).keys()
    exporter = containers(outside)["mongodb-exporter"]
    (network,) = exporter["NetworkSettings"]["Networks"].values()
    told = httpx.get(f"http://{network['IPAddress']}:9216/metrics", timeout=30).text
    assert "\nmongodb_up 1\n" in told


def test_the_password_is_in_no_command_line(outside: Stack) -> None:
    found = containers(outside)
    assert PASSWORD in str(found["app"]["Config"]["Env"])
    for service, container in found.items():
        shown = json.dumps([container[part] for part in ("Path", "Args")])
        config = container["Config"]
        shown += json.dumps([config["Cmd"], config["Entrypoint"], config["Labels"]])
        shown += docker("logs", container["Id"])
        if container["State"]["Running"]:
            shown += docker("top", container["Id"], "-eo", "pid,args")
        assert PASSWORD not in shown, service


def test_sighup_takes_the_new_token_and_everything_goes_on(outside: Stack) -> None:
    before = containers(outside)
    with Trainer() as trainer:
        trainer.wait_for(TOKEN)
        (outside.root / "compose" / "secrets" / "api-token").write_text(NEXT_TOKEN)
        compose(outside, *UP)
        docker("kill", "-s", "HUP", f"{outside.project}-app-1")
        trainer.wait_for(NEXT_TOKEN)
        deadline = time.monotonic() + 60
        while httpx.get(f"{URL}/v1/agl/statistics", auth=("agl", TOKEN)).status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(1)
        trainer.wait_for(NEXT_TOKEN)
    assert trainer.failures == []
    after = containers(outside)
    for service, container in before.items():
        if container["State"]["Running"]:
            assert started(after[service]) == started(container), service


def test_an_address_that_leads_nowhere_replaces_no_store(outside: Stack, mongo_uri: str) -> None:
    lend_environment(outside.root)
    before = containers(outside)
    refused = subprocess.run(
        [outside.root / "scripts" / "up", "mongo", "--lab", "--yes"],
        env={**outside.environ, "AGL_MONGO_URI": mongo_uri.replace(":27017", ":1")},
        capture_output=True,
        text=True,
        timeout=180,
    )
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1, said
    assert f"AGL_MONGO_URI: MongoDB at {PLACE}.1:1" in said
    assert "the store that runs stays" in said
    assert PASSWORD not in said
    assert started(containers(outside)["app"]) == started(before["app"])


def started(container: dict[str, Any]) -> tuple[str, int, str]:
    return container["Id"], container["RestartCount"], container["State"]["StartedAt"]


class Trainer:
    """Enqueues one rollout after the other in a thread, and repeats none; a context manager.

    When its token is refused, it takes the other one.
    """

    def __init__(self) -> None:
        self.stored = Counter[str]()
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, token: str) -> None:
        """Until several more were stored with this token."""
        wanted, deadline = self.stored[token] + 5, time.monotonic() + 60
        while self.stored[token] < wanted:
            assert time.monotonic() < deadline, (self.stored, self.failures)
            time.sleep(0.1)

    def _work(self) -> None:
        token, other = TOKEN, NEXT_TOKEN
        with httpx.Client(base_url=URL, timeout=60) as client:
            while not self._stop.wait(0.1):
                try:
                    answer = client.post(
                        "/v1/agl/queues/rollouts/enqueue",
                        json={"rollouts": [{"input": 1}]},
                        auth=("agl", token),
                    )
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code == 401:
                    token, other = other, token
                elif answer.status_code == 201:
                    self.stored[token] += 1
                else:
                    self.failures.append(answer.text)
