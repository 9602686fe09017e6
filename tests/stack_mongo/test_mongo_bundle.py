"""The bundle on MongoDB, on its lab stand-in: access, work, deaths, backups, two stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pymongo
import pytest
from bundle import Stack, clone_to, docker, leftovers, local_images
from legacy_mongo import write_legacy
from mongo_bundle import Ledger, documents_of, inside_app, play, wait_until_answers
from turns_proxy import turns_proxy

from agl.ops.mongo_data import OLD_IMAGE

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

COMPOSE_FILE = "compose.prometheus-mongo-store.yml"
SERVICES = (
    "app",
    "app-exporter",
    "container-exporter",
    "mongo",
    "mongodb-exporter",
    "node-exporter",
    "prometheus",
    "alertmanager",
    "runbooks",
)
JOBS = {"app", "mongodb", "node", "prometheus", "alertmanager", "containers"}
SECRETS = {
    "api-token": "10001",
    "grafana-admin-password": "472",
    "mongo-keyfile": "999",
    "mongo-root-password": "999",
    "mongo-store-password": "10001",
    "mongo-exporter-password": "10001",
}
PLAIN = {
    "COMPOSE_PROJECT_NAME": "agl-mongo-plain",
    "AGL_PORT": "27747",
    "AGL_GRAFANA_PORT": "28091",
    "AGL_PROMETHEUS_PORT": "28090",
    "AGL_ALERTMANAGER_PORT": "28093",
    "AGL_RUNBOOKS_PORT": "28096",
    "AGL_NODE_EXPORTER_PORT": "28100",
    "AGL_SUBNET": "172.31.239.0/24",
    "AGL_GATEWAY": "172.31.239.1",
}
# Written by what runs, not by what trainers send.
BOOKKEEPING = {"counters", "partitions", "servers"}
CLIENT = """
import os, pymongo
from pymongo.errors import OperationFailure
password = open(os.environ["AGL_MONGO_PASSWORD_FILE"]).read()
anybody = pymongo.MongoClient(os.environ["AGL_MONGO_URI"])
store = pymongo.MongoClient(
    os.environ["AGL_MONGO_URI"], username=os.environ["AGL_MONGO_USER"], password=password
)
def refused(client, database):
    try:
        client[database].probe.insert_one({})
    except OperationFailure as error:
        return error.code == 13
print(refused(anybody, "agentlightning"), refused(store, "elsewhere"), refused(store, "admin"))
print(refused(store, "agentlightning"))
store.agentlightning.probe.drop()
"""


def test_every_output_names_the_stand_ins(stack: Stack, said_by_up: str) -> None:
    assert "LAB STAND-IN: agl-stack/lab-mongod:lab runs instead of mongo:8.0" in said_by_up
    assert "The bundle is up on LAB STAND-INS" in said_by_up
    said = stack.script("status")
    assert said.count("(LAB STAND-IN)") == 2
    services = json.loads(stack.script("status", "--json"))["services"]
    lab = {row["service"] for row in services if row["lab_stand_in"]}
    assert lab == {"mongo", "mongodb-exporter"}
    assert {row["service"] for row in services} >= {*SERVICES, "init", "mongo-init"}


def test_every_target_is_up(stack: Stack) -> None:
    assert stack.up_targets() == JOBS
    assert stack.value("mongodb_up") == 1


@pytest.mark.parametrize("service", SERVICES)
def test_service_is_hardened_and_not_root(stack: Stack, service: str) -> None:
    container = stack.container(service)
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    status = Path(f"/proc/{container['State']['Pid']}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:"))
    assert "0" not in uids.split()[1:]


def test_mongodb_is_published_nowhere(stack: Stack) -> None:
    for service in ("mongo", "mongodb-exporter"):
        assert not stack.container(service)["HostConfig"]["PortBindings"]


def test_secrets_belong_to_their_consumers_and_show_nowhere(stack: Stack) -> None:
    image = stack.container("app")["Config"]["Image"]
    volume = f"{stack.project}_secrets:/s:ro"
    look = ("run", "--rm", "--user", "0", "--volume", volume, "--entrypoint")
    listing = docker(*look, "stat", image, "-c", "%n %a %u", *(f"/s/{name}" for name in SECRETS))
    assert listing.split("\n")[:-1] == [f"/s/{name} 400 {uid}" for name, uid in SECRETS.items()]
    texts = docker(*look, "cat", image, *(f"/s/{name}" for name in SECRETS if "mongo" in name))
    for service in (*SERVICES, "init", "mongo-init"):
        container = stack.container(service)
        shown = json.dumps(container) + docker("logs", container["Id"])
        if container["State"]["Pid"]:
            shown += Path(f"/proc/{container['State']['Pid']}/cmdline").read_text()
        passwords = [texts[start : start + 43] for start in range(0, len(texts), 43)]
        assert len(passwords) > 3
        assert not [password for password in passwords if password in shown], service


def test_it_asks_for_passwords_and_gives_each_user_no_more_than_it_needs(stack: Stack) -> None:
    assert inside_app(stack, CLIENT).split() == ["True", "True", "True", "None"]


def test_every_rollout_is_verified_and_prometheus_agrees(stack: Stack) -> None:
    summary = play(stack.store_url, 30, "--prometheus-url", stack.prometheus_url)
    assert summary["prometheus"]["agrees"] is True


def test_second_up_changes_nothing(stack: Stack) -> None:
    before = {name: stack.container(name) for name in SERVICES}
    stack.script("up", "mongo", "--lab", "--yes")
    for name in SERVICES:
        after = stack.container(name)
        assert after["Id"] == before[name]["Id"], name
        assert after["State"]["StartedAt"] == before[name]["State"]["StartedAt"], name
    log = docker("logs", f"{stack.project}-mongo-init-1")
    assert log.splitlines()[-1] == "mongo-init: ready, nothing to change"


def test_without_lab_it_stops_and_names_the_choices(stack: Stack) -> None:
    done = subprocess.run(
        [stack.root / "scripts" / "up", "mongo", "--yes"],
        env={**stack.environ, "MONGO_IMAGE": "127.0.0.1:1/mongo:8.0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    for choice in ("--offline", "MONGO_IMAGE=", "AGL_MONGO_URI=", "--lab"):
        assert choice in done.stderr
    assert stack.up_targets() == JOBS


def test_up_in_another_mode_asks_before_it_hides_the_rollouts(stack: Stack) -> None:
    before = stack.container("app")["Id"]
    done = subprocess.run(
        [stack.root / "scripts" / "up"],
        env=stack.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "keeps its rollouts in MongoDB" in done.stderr
    assert "type scripts/up mongo" in done.stderr
    assert stack.container("app")["Id"] == before


@pytest.mark.parametrize("service", ["app", "mongo"])
def test_kill_9_loses_nothing_acknowledged(stack: Stack, service: str) -> None:
    restarts = stack.container(service)["RestartCount"]
    with Ledger(stack.store_url) as ledger:
        ledger.wait_for_more(5)
        stack.kill(service)
        stack.wait_for_restart(service, restarts, timeout=120)
        ledger.wait_for_more(5, timeout=120)
    ledger.check()


def test_two_stores_behind_one_address_are_equal(stack: Stack) -> None:
    """Every connection goes to the next store; whoever asks sees what the other has written."""
    name = f"{stack.project}-second-store"
    network = f"{stack.project}_default"
    docker(
        *("run", "--detach", "--name", name, "--network", network, "--user", "10001:10001"),
        *("--volume", f"{stack.project}_secrets:/run/agl/secrets:ro"),
        *(
            part
            for line in stack.container("app")["Config"]["Env"]
            if line.startswith("AGL_MONGO")
            for part in ("--env", line)
        ),
        stack.container("app")["Config"]["Image"],
        *("agl-stack", "store", "--port=4747", "--backend=mongo", "--n-workers=1"),
    )
    try:
        servers = [(address(found, network), 4747) for found in (f"{stack.project}-app-1", name)]
        wait_until_answers(f"http://{servers[1][0]}:4747/v1/agl/health")
        with turns_proxy(servers) as (port, given):
            play(f"http://127.0.0.1:{port}", 12)
        assert min(given) > 0
    finally:
        docker("rm", "--force", name)


def address(container: str, network: str) -> str:
    found = json.loads(docker("inspect", container))[0]
    return str(found["NetworkSettings"]["Networks"][network]["IPAddress"])


def test_data_of_8_2_is_refused_and_the_commands_it_prints_bring_it_over(
    stack: Stack, tmp_path: Path
) -> None:
    """As they are printed, but for the image: the stand-in, without users, as 0.3 ran MongoDB."""
    data = tmp_path / "data of 0.3"
    data.mkdir()
    data.chmod(0o777)
    (data / "WiredTiger.turtle").write_text("WiredTiger version\nmajor=12,minor=0,patch=0\n")
    files = ("--env-file", ".env", "--env-file", ".env.images", "-f", COMPOSE_FILE)
    refused = subprocess.run(
        ["docker", "compose", *files, "run", "--rm", "--no-deps", "init"],
        cwd=stack.root / "compose",
        env={**stack.environ, "AGL_MONGO_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    line = next(line for line in refused.stderr.splitlines() if "newer than 8.0" in line)
    old = f"{stack.project}-old-mongo"
    image = stack.container("mongo")["Config"]["Image"]
    stand_in = f"--entrypoint /opt/lab/bin/secantusd-py {image} --host 0.0.0.0 --port 27017"
    commands = line.rpartition("(docs/operating.md): ")[2].replace("old-mongo", old)
    commands = commands.replace(
        f"{OLD_IMAGE} --replSet rs0", f"{stand_in} --storage-path /data/db/x"
    )
    up, run, migrate, stop = commands.split(" && ")
    assert up == "./scripts/up mongo"
    typed(run)
    try:
        uri = f"mongodb://{address(old, f'{stack.project}_default')}/?directConnection=true"
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            write_legacy(client["agentlightning"], "pt-of-0.3", 8)
        assert "rollouts: 8 in the source, 0 missing in the target\n" in typed(migrate)
    finally:
        typed(stop)
    inside = ("exec", f"{stack.project}-app-1", "agl", "store")
    (found,) = (
        one
        for one in json.loads(docker(*inside, "partitions", "--format", "json"))
        if one["partition_id"] == "pt-of-0.3"
    )
    assert (found["counts"]["rollouts"], found["counts"]["spans"]) == (8, 12)
    docker(*inside, "prune", "pt-of-0.3", "--yes")


def typed(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_backup_into_an_empty_stack_gives_every_document_back(stack: Stack, tmp_path: Path) -> None:
    with Ledger(stack.store_url) as ledger:
        ledger.wait_for_more(3)
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"
    assert "(driver)" in stack.script("backup", str(first))
    before = content(first)
    assert before["rollouts"]
    assert before["spans"]
    statistics = totals(stack)
    assert statistics["total_rollouts"] > 0
    refused = subprocess.run(
        [stack.root / "scripts" / "restore", str(first)],
        env=stack.environ,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "holds rollouts already - --replace deletes" in refused.stderr
    assert totals(stack) == statistics, "the store was not stopped for it"

    stack.script("down", "--volumes")
    stack.script("up", "mongo", "--lab", "--yes")
    assert httpx.get(f"{stack.store_url}/v1/agl/statistics").json()["total_rollouts"] == 0
    stack.script("restore", str(first))
    wait_until_answers(f"{stack.store_url}/v1/agl/health")
    stack.script("backup", str(second))
    after = content(second)
    assert after.keys() == before.keys()
    for name, documents in before.items():
        assert after[name] == documents, name
    ledger.check()
    assert totals(stack) == statistics
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(first.read_bytes()[:-200])
    with pytest.raises(AssertionError, match=r"damaged\.gz is damaged"):
        stack.script("restore", "--replace", "--yes", str(damaged))
    assert totals(stack) == statistics


def totals(stack: Stack) -> dict[str, int]:
    found = httpx.get(f"{stack.store_url}/v1/agl/statistics").json()
    return {name: number for name, number in found.items() if name.startswith("total")}


def content(backup: Path) -> dict[str, Any]:
    found = documents_of(backup)
    return {name: one for name, one in found.items() if name not in BOOKKEEPING and one}


def test_the_plain_compose_command_works_from_a_fresh_clone(tmp_path: Path) -> None:
    """The command of the README, without the scripts; local images through the variables."""
    clone = clone_to(tmp_path / "plain")
    environ = {**os.environ, **PLAIN, **local_images()}
    compose = ["docker", "compose", "-f", COMPOSE_FILE]
    folder = clone / "compose"
    log = tmp_path / "log"
    with log.open("w") as output:
        up = subprocess.Popen(
            [*compose, "up"], cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        bundle = Stack(clone, environ)
        deadline = time.monotonic() + 180
        while bundle.up_targets() != JOBS:
            assert up.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(1)
        assert httpx.get(f"{bundle.store_url}/v1/agl/statistics").json()["total_rollouts"] == 0
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(timeout=90)
        subprocess.run([*compose, "down", "-v"], cwd=folder, env=environ, check=True, timeout=120)
    assert leftovers(PLAIN["COMPOSE_PROJECT_NAME"]) == {
        "containers": [],
        "volumes": [],
        "networks": [],
    }
