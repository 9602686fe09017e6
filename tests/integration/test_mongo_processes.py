"""Server processes on MongoDB: they die, are replaced and stop, and nobody's request fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mongo import MongoServer, mongo_database, mongo_server, running_stand_in, server_name
from mongo_store import Ledger, RunningStore, client_of, load, store_on_mongo, until
from mongo_store import verify as verify_ledger
from mongo_support import Sockets
from ports import free_port
from processes import make_certificate, run_agl
from raw_load import raw_load

from agl.store.mongo import MongoLightningStore
from agl.types import EnqueueRolloutRequest

__all__ = ["mongo_database", "mongo_server"]

OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
FORK = Path(__file__).parents[1] / "support" / "mongo_fork.py"
STAND_IN = server_name() if server_name() != "mongod" else "secantusd-py"


def health(store: RunningStore) -> dict[str, Any]:
    with urllib.request.urlopen(f"{store.url}/v1/agl/health", timeout=30) as answer:
        return json.load(answer)


async def verify(store: RunningStore, ledger: Ledger, token: str = "") -> None:
    """Nobody noticed anything, and everything is there."""
    assert ledger.failures == []
    await verify_ledger(store, ledger, token)


# Death


async def test_a_killed_process_is_replaced_under_load(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    """Our client repeats what broke; of those who repeat nothing only the dead one's notice."""
    with store_on_mongo(mongo_server, mongo_database) as store:
        lost: set[int] = set()
        async with load(store) as ledger, raw_load(store, players=3) as raw:
            for _ in range(3):
                target = len(ledger.finished) + 10
                await until("progress", lambda target=target: len(ledger.finished) >= target)
                victim = min(store.workers())
                lost |= await raw.kill(victim)
                await until(
                    "replacement",
                    lambda victim=victim: (
                        victim not in store.workers() and len(store.workers()) == 2
                    ),
                )
            target = len(ledger.finished) + 10
            await until("progress", lambda: len(ledger.finished) >= target)
        assert [failure for failure in raw.failures if failure[0] not in lost] == []
        await raw.verify()
        await verify(store, ledger)
        assert store.stop() == 0


async def test_all_processes_are_killed_at_once(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    with store_on_mongo(mongo_server, mongo_database) as store:
        async with load(store) as ledger:
            await until("progress", lambda: len(ledger.finished) >= 10)
            before = store.workers()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            await until(
                "replacement",
                lambda: not before & store.workers() and len(store.workers()) == 2,
            )
            target = len(ledger.finished) + 10
            await until("progress", lambda: len(ledger.finished) >= target)
        await verify(store, ledger)
        assert store.stop() == 0


async def test_processes_are_replaced_after_so_many_requests(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    options = ("--worker-max-requests", "60")
    with store_on_mongo(mongo_server, mongo_database, *options) as store:
        first = store.workers()
        async with load(store) as ledger, raw_load(store, players=3) as raw:
            await until("replacement", lambda: not first & store.workers())
        assert raw.failures == []
        await raw.verify()
        await verify(store, ledger)
        assert store.logged("which has served enough") >= 2
        assert store.stop() == 0


@OPENSSL
def test_a_process_that_cannot_start_takes_nothing_with_it(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path, "own")
    pem = cert.read_bytes()
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with store_on_mongo(mongo_server, mongo_database, *options) as store:
        first = store.workers()
        cert.write_bytes(b"nothing")
        os.kill(min(first), signal.SIGKILL)
        store.wait("failed start", lambda: store.logged("Exception in worker process") >= 2)
        assert tls_answers(store, pem)
        assert max(first) in store.workers()
        cert.write_bytes(pem)
        store.wait("start", lambda: store.logged("Application startup complete.") == 3)
        assert tls_answers(store, pem)
        assert store.stop() == 0


def tls_answers(store: RunningStore, pem: bytes) -> bool:
    context = ssl.create_default_context(cadata=pem.decode())
    url = f"https://127.0.0.1:{store.port}/v1/agl/health"
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:
        return answer.status == 200


# SIGHUP


def status_of(store: RunningStore, token: str) -> int:
    request = urllib.request.Request(
        f"{store.url}/v1/agl/statistics", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def rolled(store: RunningStore, first: set[int]) -> bool:
    return not first & store.workers() and len(store.workers()) == 2


async def test_sighup_takes_new_settings_one_process_after_the_other(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    token, options = tmp_path / "token", tmp_path / "options"
    token.write_text("old")
    options.write_text(f"--api-token-file {token}  # of this site\n--max-batch-items 10")
    with store_on_mongo(mongo_server, mongo_database, f"@{options}") as store:
        first = store.workers()
        async with load(store, "old") as ledger:
            await until("progress", lambda: len(ledger.finished) >= 5)
            options.write_text(f"--api-token-file {token}\n--max-batch-items 1\n--port 1")
            store.process.send_signal(signal.SIGHUP)
            await until("new processes", lambda: rolled(store, first))
        await verify(store, ledger, "old")
        assert store.logged("A change of --port needs a restart.") == 1
        async with client_of(store, "old") as client:
            two = [EnqueueRolloutRequest(input=n) for n in "ab"]
            with pytest.raises(Exception, match="the limit is 1"):
                await client.enqueue_many_rollouts(two)

        second = store.workers()
        token.write_text("new")
        store.process.send_signal(signal.SIGHUP)
        store.wait("new processes", lambda: rolled(store, second))
        assert (status_of(store, "old"), status_of(store, "new")) == (401, 200)
        assert store.stop() == 0


async def test_nobody_has_to_send_a_request_again_because_of_sighup(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    """What the client of 0.3 needs, which sends no keys: no connection breaks under a request."""
    with store_on_mongo(mongo_server, mongo_database) as store:
        async with raw_load(store) as raw:
            for _ in range(3):
                await raw.progress()
                before = store.workers()
                store.process.send_signal(signal.SIGHUP)
                await until("new processes", lambda before=before: rolled(store, before))
        assert raw.failures == []
        await raw.verify()
        assert store.stop() == 0


@OPENSSL
async def test_sighup_takes_a_new_certificate(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    """As whoever renews it does: both files change, then the signal; no request fails."""
    cert, key = make_certificate(tmp_path, "own")
    new_cert, new_key = make_certificate(tmp_path, "new")
    old, new = cert.read_text(), new_cert.read_text()
    trust = ssl.create_default_context(cadata=old + new)
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with store_on_mongo(mongo_server, mongo_database, *options) as store:
        async with raw_load(store, players=4, tls=trust) as raw:
            await raw.progress()
            assert shown_certificate(store) == old
            new_cert.replace(cert)
            new_key.replace(key)
            first = store.workers()
            await raw.progress()
            assert shown_certificate(store) == old
            store.process.send_signal(signal.SIGHUP)
            await until("new processes", lambda: rolled(store, first))
            await raw.progress()
            assert {shown_certificate(store) for _ in range(8)} == {new}
        assert raw.failures == []
        assert set(raw.answered) == {201}
        assert store.stop() == 0


def shown_certificate(store: RunningStore) -> str:
    """That of a new connection."""
    return ssl.get_server_certificate(("127.0.0.1", store.port), timeout=30)


def test_sighup_keeps_what_works(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    token, options = tmp_path / "token", tmp_path / "options"
    token.write_text("old")
    options.write_text(f"--api-token-file {token}")
    with (
        store_on_mongo(mongo_server, mongo_database, f"@{options}") as store,
        running_stand_in(STAND_IN) as other,
    ):
        first = store.workers()
        for uri, text in (
            (other.uri, "leads to other data than before"),
            (f"mongodb://u:s3cret@127.0.0.1:{free_port()}/?replicaSet=x", "cannot be reached"),
        ):
            options.write_text(f"--api-token-file {token} --mongo-uri {uri}")
            store.process.send_signal(signal.SIGHUP)
            store.wait("refusal", lambda text=text: store.logged(text) == 1)
        options.write_text(f"--api-token-file {token}")
        token.write_text("")
        store.process.send_signal(signal.SIGHUP)
        store.wait("refusal", lambda: store.logged("SIGHUP: nothing was changed") == 3)
        assert store.logged(f"{token} is empty") == 1
        assert store.workers() == first
        assert status_of(store, "old") == 200
        assert "s3cret" not in store.log.read_text()
        assert store.stop() == 0


# Forks


async def test_what_was_made_before_a_fork_is_not_used_in_the_child(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    """Parent and child use one store at the same time; another child only closes it."""
    place = (mongo_server.uri, mongo_database, "pt-fork")
    forks = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, FORK, *place],
        stdout=subprocess.PIPE,
        timeout=180,
        check=False,
    )
    assert forks.returncode == 0
    child, parent = map(json.loads, forks.stdout.splitlines())
    assert (child["borrowed"], parent["borrowed"]) == (0, 0)
    assert min(child["made"], parent["made"]) > 0
    async with MongoLightningStore(
        mongo_uri=place[0], database_name=place[1], partition_id=place[2]
    ) as store:
        ids = Counter(one.rollout_id for one in await store.query_rollouts())
    assert ids == Counter([*child["enqueued"], *parent["enqueued"]])


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_who_waits_is_answered_before_the_end(
    number: signal.Signals, mongo_server: MongoServer, mongo_database: str
) -> None:
    with store_on_mongo(mongo_server, mongo_database) as store:
        async with client_of(store) as client, aiohttp.ClientSession() as session:
            rollout = await client.enqueue_rollout(1)
            body = {"rollout_ids": [rollout.rollout_id], "timeout": 55}

            async def wait() -> tuple[int, str | None]:
                url = f"{store.url}/v1/agl/waits/rollouts"
                async with session.post(url, json=body) as answer:
                    return answer.status, answer.headers.get("retry-after")

            waits = [asyncio.create_task(wait()) for _ in range(10)]
            await asyncio.sleep(1)
            assert not any(task.done() for task in waits)
            code = await asyncio.to_thread(store.stop, number)
            assert await asyncio.gather(*waits) == [(503, "1")] * 10
        assert code == 0
        assert store.messages()[-1] == "The store has stopped."
        assert not any("exception" in line for line in store.lines())


async def test_an_open_request_is_finished_before_the_end(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    with store_on_mongo(mongo_server, mongo_database) as store:
        with socket.create_connection(("127.0.0.1", store.port)) as client:
            client.settimeout(30)
            body = b'{"rollouts": [{"input": 1}]}'
            head = (
                "POST /v1/agl/queues/rollouts/enqueue HTTP/1.1\r\nHost: x\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body[:4])
            await asyncio.sleep(0.5)
            store.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            client.sendall(body[4:])
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 201"), answer
        assert store.process.wait(60) == 0


def test_signals_reach_the_arbiter_as_process_one(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    unshare = ("unshare", "--pid", "--fork", "--kill-child")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False).returncode
    ):
        pytest.skip("unshare may not make a pid namespace here")
    with store_on_mongo(mongo_server, mongo_database, within=unshare) as store:
        (arbiter,) = store.workers()  # of unshare
        children = Path(f"/proc/{arbiter}/task/{arbiter}/children")
        first = set(children.read_text().split())
        os.kill(arbiter, signal.SIGHUP)
        store.wait(
            "new processes",
            lambda: (
                not first & set(children.read_text().split())
                and len(children.read_text().split()) == 2
            ),
        )
        os.kill(arbiter, signal.SIGTERM)
        assert store.process.wait(60) == 0
        assert store.messages()[-1] == "The store has stopped."


# Several servers


async def test_two_servers_on_one_partition_are_equal(
    mongo_server: MongoServer, mongo_database: str
) -> None:
    with (
        store_on_mongo(mongo_server, mongo_database) as one,
        store_on_mongo(mongo_server, mongo_database) as two,
    ):
        assert health(one) == health(two)
        assert two.logged(f"port {one.port}. That is right for several servers of one deployment")
        async with client_of(one) as here, client_of(two) as there:
            pinned = await here.pin()
            assert await there.pin() == pinned
            rollout = await here.enqueue_rollout({"a": 1})
            claimed = await there.dequeue_rollout(worker_id="w")
            assert claimed is not None
            assert claimed.rollout_id == rollout.rollout_id
            ids = [rollout.rollout_id]
            waiting = asyncio.create_task(here.wait_for_rollouts(rollout_ids=ids, timeout=60))
            await asyncio.sleep(0.5)
            attempt_id = claimed.attempt.attempt_id
            await there.update_attempt(rollout.rollout_id, attempt_id, status="succeeded")
            (finished,) = await waiting
            assert finished.status == "succeeded"
            assert await here.dequeue_rollout() is None
        options = ("--backend", "mongo", "--mongo-uri", mongo_server.uri)
        place = ("--database", mongo_database, "--port", str(free_port()))
        ended = run_agl("store", *options, *place, "--exclusive-partition")
        assert ended.returncode == 1
        assert "partition 'default' is in use by the store on" in ended.stderr
        assert one.stop() == two.stop() == 0


async def test_a_restart_finds_its_data(mongo_server: MongoServer, mongo_database: str) -> None:
    port = free_port()
    with store_on_mongo(mongo_server, mongo_database, port=port) as store:
        before = health(store)
        async with client_of(store) as client:
            rollout = await client.enqueue_rollout({"a": 1})
        workers = store.workers()
        store.process.kill()  # the processes notice, and go
        await until("end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    with store_on_mongo(mongo_server, mongo_database, port=port) as store:
        assert health(store) == before
        assert store.logged("holds 1 unfinished rollouts.") == 1
        assert store.logged("is also in use") == 0
        async with client_of(store) as client:
            claimed = await client.dequeue_rollout()
            assert claimed is not None
            assert claimed.rollout_id == rollout.rollout_id
        assert store.stop() == 0
    with store_on_mongo(mongo_server, mongo_database, "--partition-id", "new", port=port) as store:
        assert health(store)["instance_id"] != before["instance_id"]
        assert store.logged("Partition 'pt-") == 1
        async with client_of(store) as client:
            assert list(await client.query_rollouts()) == []
        assert store.stop() == 0


# Metrics


def scrape(store: RunningStore) -> list[str]:
    with urllib.request.urlopen(f"{store.url}/v1/prometheus/", timeout=30) as answer:
        return answer.read().decode().splitlines()


async def test_metrics_of_dead_processes_are_kept_and_files_do_not_pile_up(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    folder = tmp_path / "metrics"
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    options = ("--tracker", "prometheus")
    with store_on_mongo(mongo_server, mongo_database, *options, env=env) as store:
        for _ in range(3):
            for _ in range(10):
                assert status_of(store, "") == 200
            await asyncio.sleep(0.5)  # events reach the files after 0.2 s
            before = store.workers()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            started = store.logged("Application startup complete.")
            store.wait(
                "replacement",
                lambda started=started: (
                    store.logged("Application startup complete.") >= started + 2
                ),
            )
        lines = await asyncio.to_thread(scrape, store)
        series = 'agl_http_total{method="GET",path="/v1/agl/statistics",status="200"} 30.0'
        assert series in lines
        # Of the arbiter, of two processes, and of all the dead together.
        assert len(list(folder.glob("counter_*.db"))) == 4
        assert len(list(folder.glob("counter_folded-*.db"))) == 1
        assert store.stop() == 0


def pool_sizes(store: RunningStore) -> dict[str, float]:
    """By slot."""
    pattern = r'agl_mongo_pool_size\{server_process="(\d+)"\} (\S+)'
    found = (re.fullmatch(pattern, line) for line in scrape(store))
    return {match[1]: float(match[2]) for match in found if match}


async def test_sizes_of_pools_are_what_is_open_also_after_a_death(
    mongo_server: MongoServer, mongo_database: str, tmp_path: Path
) -> None:
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    sockets = Sockets(mongo_server.uri)
    server = replace(mongo_server, uri=sockets.uri)

    def agree(store: RunningStore) -> bool:
        clients = 2  # of the store, and of the heartbeats
        opened = [len(sockets.of(pid)) - clients * sockets.watching for pid in store.workers()]
        return min(opened) > 0 and sorted(pool_sizes(store).values()) == sorted(opened)

    with store_on_mongo(server, mongo_database, "--tracker", "prometheus", env=env) as store:
        async with load(store) as ledger:
            await until("progress", lambda: len(ledger.finished) >= 10)
        store.wait("agreement", lambda: agree(store))
        os.kill(min(store.workers()), signal.SIGKILL)
        store.wait("successor", lambda: store.logged("Application startup complete.") == 3)
        store.wait("agreement", lambda: agree(store))
        assert store.stop() == 0
