"""A real HAProxy, with the configuration of the role, in front of real stores on one MongoDB."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mongo import MongoServer, mongo_database, mongo_server
from mongo_store import RunningStore, client_of, load, store_on_mongo, until, verify
from rendered import Rendered, rendered
from test_scale_out import HAPROXY

__all__ = ["mongo_database", "mongo_server", "rendered"]
pytestmark = HAPROXY


@contextmanager
def balancer(rendered: Rendered, host: str) -> Iterator[RunningStore]:
    """What clients take for the store."""
    log = rendered.folder / f"{host}.log"
    command = ["haproxy", "-db", "-f", rendered.haproxy(host)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    front = RunningStore(rendered.hosts[host]["haproxy_port"], process, log)
    try:
        front.wait("store that is well", lambda: servers(rendered, host)["UP"] == 2)
        yield front
    finally:
        process.terminate()
        process.wait(60)


def servers(rendered: Rendered, host: str) -> dict[str, int]:
    """How many stores are up and down, as Prometheus is told."""
    known = rendered.hosts[host]
    address = f"{known['haproxy_metrics_address']}:{known['haproxy_metrics_port']}"
    states = {"UP": 0, "DOWN": 0}
    try:
        with urllib.request.urlopen(f"http://{address}/metrics?scope=server", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return states
    for state in states:
        marks = [line for line in lines if line.startswith("haproxy_server_status{")]
        states[state] = sum(f'state="{state}"' in line and line.endswith(" 1") for line in marks)
    return states


async def test_a_store_is_killed_and_clients_go_on(
    rendered: Rendered, mongo_server: MongoServer, mongo_database: str
) -> None:
    """Two of three stores run; one of them dies while clients work and one waits."""
    ports = [rendered.hosts[host]["store_port"] for host in ("control1", "control2")]
    with (
        store_on_mongo(mongo_server, mongo_database, port=ports[0], processes=1) as victim,
        store_on_mongo(mongo_server, mongo_database, port=ports[1], processes=1),
        balancer(rendered, "control1") as front,
    ):
        async with client_of(front) as client, load(front) as ledger:
            open_one = await client.start_rollout({"task": "nobody finishes this"})
            ledger.claim(open_one)
            wait = asyncio.create_task(
                client.wait_for_rollouts(rollout_ids=[open_one.rollout_id], timeout=8)
            )
            await until("progress", lambda: len(ledger.finished) >= 10)
            workers = victim.workers()
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait(60)
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            target = len(ledger.finished) + 30
            await until("progress", lambda: len(ledger.finished) >= target)
            await until("store that is out", lambda: servers(rendered, "control1")["UP"] == 1)
            assert await wait == []
        assert ledger.failures == []
        ledger.enqueued["nobody finishes this"] = open_one.rollout_id
        await verify(front, ledger)
