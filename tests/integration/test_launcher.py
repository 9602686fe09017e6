"""The launcher, with real tasks, threads and processes."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from rest_support import LOOPBACK, launcher_args

from agl.utils import listening, server_launcher
from agl.utils.server_launcher import (
    ChildEvent,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    noop_context,
    run_uvicorn_asyncio,
    shutdown_uvicorn_server,
)

MODES = [("asyncio", 1), ("thread", 1), ("mp", 1), ("mp", 2)]


async def reply(send: Any, status: int, text: str) -> None:
    headers = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Healthy; tells its process id everywhere else."""
    if scope["type"] == "http":
        await reply(send, 200, str(os.getpid()))


async def sick_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await reply(send, 503, "no")


async def broken_app(scope: Any, receive: Any, send: Any) -> None:
    """Fails to start."""
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


def launcher(mode: str, workers: int = 1, app: Any = app, **changes: Any) -> PythonServerLauncher:
    args = launcher_args(launch_mode=mode, n_workers=workers, healthcheck_url="health", **changes)
    return PythonServerLauncher(app, args)


async def fetch(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        return await http.get(url)


@pytest.mark.parametrize(("mode", "workers"), MODES)
async def test_every_mode_starts_serves_reloads_and_stops(mode: str, workers: int) -> None:
    server = launcher(mode, workers)
    assert not server.is_running()
    await server.start()
    try:
        assert server.is_running()
        with pytest.raises(RuntimeError, match="running already"):
            await server.start()
        answer = await fetch(server.endpoint + "/pid")
        assert (int(answer.text) != os.getpid()) == (mode == "mp")
        await server.reload()
        assert (await fetch(server.access_endpoint)).status_code == 200
    finally:
        await server.stop()
    assert not server.is_running()
    await server.stop()
    with pytest.raises(httpx.ConnectError):
        await fetch(server.endpoint)


@pytest.mark.parametrize(("mode", "workers"), MODES)
async def test_a_port_in_use_is_told_at_once(mode: str, workers: int) -> None:
    with listening.listen(LOOPBACK, 0) as taken:
        port = taken.getsockname()[1]
        server = launcher(mode, workers, port=port)
        with pytest.raises(RuntimeError, match=f"{port}: address already in use"):
            await server.start()
    assert not server.is_running()
    await server.start()
    await server.stop()


@pytest.mark.parametrize(("mode", "workers"), MODES)
async def test_an_unhealthy_server_is_stopped_and_told(mode: str, workers: int) -> None:
    server = launcher(mode, workers, app=sick_app, startup_timeout=0.7)
    end = "will be killed by the watchdog" if workers > 1 else "has been killed"
    told = rf"Server is not healthy at .*/health after 0\.70 seconds\. It {end}\.$"
    with pytest.raises(RuntimeError, match=told):
        await server.start()
    assert not server.is_running()
    with listening.listen(LOOPBACK, int(server.endpoint.rpartition(":")[2])):
        pass  # the port is free again


async def test_an_unhealthy_server_can_be_left_running(caplog: pytest.LogCaptureFixture) -> None:
    server = launcher("asyncio", app=sick_app, startup_timeout=0.3, kill_unhealthy_server=False)
    await server.start()
    assert server.is_running()
    assert "It is left running." in caplog.text
    await server.stop()


@pytest.mark.parametrize(("mode", "workers"), MODES[:3])
async def test_an_application_that_fails_to_start_is_told(mode: str, workers: int) -> None:
    server = launcher(mode, workers, app=broken_app)
    with pytest.raises(RuntimeError, match="Uvicorn server failed to serve"):
        await server.start()
    assert not server.is_running()


async def test_a_slow_start_is_given_up() -> None:
    async def slow_app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    server = launcher("asyncio", app=slow_app, startup_timeout=0.2)
    with pytest.raises(RuntimeError, match=r"Server did not start up within 0\.20 seconds\."):
        await server.start()


async def test_a_process_that_dies_in_its_start_is_noticed() -> None:
    @asynccontextmanager
    async def deadly() -> AsyncGenerator[None]:
        os._exit(3)
        yield

    server = PythonServerLauncher(app, launcher_args(launch_mode="mp"), deadly())
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        await server.start()


async def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported launch mode: carrier-pigeon"):
        await launcher("carrier-pigeon").start()


async def test_the_serve_context_surrounds_serving() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def context() -> AsyncGenerator[None]:
        events.append("entered")
        yield
        events.append("left")

    server = PythonServerLauncher(app, launcher_args(launch_mode="thread"), context())
    await server.start()
    assert events == ["entered"]
    await server.stop()
    assert events == ["entered", "left"]


def test_defaults_are_filled_in_and_told(caplog: pytest.LogCaptureFixture) -> None:
    server = PythonServerLauncher(app, PythonServerLauncherArgs())
    assert server.endpoint.startswith("http://0.0.0.0:")
    assert (
        server.access_endpoint
        == f"http://{listening.outbound_address()}:" + (server.endpoint.rpartition(":")[2])
    )
    assert server.health_url is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    named = launcher("asyncio", host="::1", access_host=None, port=9)
    assert (named.endpoint, named.access_endpoint) == ("http://[::1]:9",) * 2
    assert named.health_url == "http://[::1]:9/health"


async def test_a_launcher_can_be_pickled() -> None:
    server = launcher("asyncio")
    await server.start()
    copy: PythonServerLauncher = pickle.loads(pickle.dumps(server))
    assert copy.endpoint == server.endpoint
    assert not copy.is_running()
    await server.stop()
    await copy.start()
    await copy.stop()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "x" * 300])
async def test_an_impossible_address_is_told(host: str) -> None:
    with pytest.raises(RuntimeError, match="Cannot listen on"):
        listening.listen(host, 0)


async def test_uvicorn_can_be_run_without_waiting() -> None:
    sock = socket.socket()
    sock.bind((LOOPBACK, 0))
    config = uvicorn.Config(app, fd=sock.fileno(), log_config=None)
    server = uvicorn.Server(config)
    task = await run_uvicorn_asyncio(server, noop_context(), wait_for_serve=False)
    assert not server.started
    await shutdown_uvicorn_server(server, task)
    assert task.done()
    sock.close()


def test_unknown_and_empty_gunicorn_options_are_ignored() -> None:
    gunicorn_app = server_launcher.GunicornApp
    built = gunicorn_app(app, {"workers": 3, "nonsense": 1, "accesslog": None})
    assert built.cfg.workers == 3
    assert built.load() is app
    with pytest.raises(AttributeError):
        _ = server_launcher.Nonsense


SCRIPT = """
import asyncio, logging, os
from agl.utils.server_launcher import PythonServerLauncher, PythonServerLauncherArgs
logging.basicConfig(level=logging.INFO)

async def app(scope, receive, send):
    if scope["type"] == "http":
        text = str(os.getpid()).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({{"type": "http.response.start", "status": 200, "headers": headers}})
        await send({{"type": "http.response.body", "body": text}})

args = PythonServerLauncherArgs(port={port}, host="127.0.0.1", access_host="127.0.0.1",
                                launch_mode={mode!r}, n_workers={workers}, healthcheck_url="/h")
asyncio.run(PythonServerLauncher(app, args).run_forever())
print("returned")
"""


class Running:
    """``run_forever`` in a process of its own."""

    def __init__(self, mode: str, workers: int) -> None:
        self.port = listening.free_port(LOOPBACK)
        script = SCRIPT.format(port=self.port, mode=mode, workers=workers)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    async def ready(self) -> int:
        """Waits; returns the process id that serves."""
        async with asyncio.timeout(30):
            while True:
                try:
                    return int((await fetch(f"http://127.0.0.1:{self.port}/")).text)
                except httpx.HTTPError:
                    assert self.process.poll() is None, self.process.communicate()
                    await asyncio.sleep(0.05)

    def first_child(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("mode", "workers"), MODES)
async def test_a_signal_ends_run_forever_without_a_traceback(
    mode: str, workers: int, number: signal.Signals
) -> None:
    running = Running(mode, workers)
    await running.ready()
    running.process.send_signal(number)
    code, out, err = await asyncio.to_thread(running.end)
    assert (code, out) == (0, "returned\n"), err
    assert "Traceback" not in err
    assert f"Received {number.name}" in err


@pytest.mark.parametrize(("mode", "workers"), MODES[2:])
async def test_a_server_process_that_ends_by_itself_ends_run_forever(
    mode: str, workers: int
) -> None:
    running = Running(mode, workers)
    serving = await running.ready()
    assert serving != running.process.pid
    os.kill(running.first_child(), signal.SIGKILL)
    code, _, err = await asyncio.to_thread(running.end)
    assert code == 1
    assert re.search("The server ended (by itself|before it was ready)", err)
    listening.listen(LOOPBACK, running.port).close()


@pytest.mark.parametrize(("mode", "workers"), MODES[2:])
async def test_no_process_outlives_the_one_that_started_it(mode: str, workers: int) -> None:
    running = Running(mode, workers)
    await running.ready()
    running.process.kill()
    code, _, _ = await asyncio.to_thread(running.end)  # its pipes close when the last one ends
    assert code == -signal.SIGKILL
    listening.listen(LOOPBACK, running.port).close()


async def test_cancelling_run_forever_stops_the_server() -> None:
    server = launcher("asyncio")
    task = asyncio.create_task(server.run_forever())
    async with asyncio.timeout(10):
        while not server.is_running():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.is_running()


async def test_a_handler_of_somebody_else_keeps_its_signal() -> None:
    caught: queue.Queue[int] = queue.Queue()
    before = signal.signal(signal.SIGTERM, lambda number, _: caught.put(number))
    server = launcher("asyncio")
    task = asyncio.create_task(server.run_forever())
    try:
        async with asyncio.timeout(10):
            while not server.is_running():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.to_thread(caught.get, timeout=5) == signal.SIGTERM
        assert server.is_running()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        signal.signal(signal.SIGTERM, before)


def test_a_failure_is_told_with_its_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        event = ChildEvent.of(error)
    assert (event.kind, event.exc_type, event.message) == ("error", "ValueError", "why")
    assert "raise ValueError" in (event.traceback or "")
