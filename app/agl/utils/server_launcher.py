"""Runs an ASGI application: in this event loop, in a thread, in a process or in several.

The port is bound by the calling process before anything else starts, so a port in use is found at
once and in every mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import queue
import socket
import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Literal, Protocol

import uvicorn

from agl.config import load_environment
from agl.utils.http_protocol import LimitedHttpProtocol
from agl.utils.listening import ANY_ADDRESSES, free_port, listen, outbound_address, url
from agl.utils.multiprocess import shutdown_metrics
from agl.utils.server_runners import (
    GRACE_SECONDS,
    ChildEvent,
    EventQueue,
    LauncherServer,
    ServeContext,
    noop_context,
    run_gunicorn,
    run_uvicorn_asyncio,
    run_uvicorn_subprocess,
    run_uvicorn_thread,
    shutdown_uvicorn_server,
    stop_on_signals,
)

if TYPE_CHECKING:
    from agl.utils.gunicorn_server import GunicornApp

__all__ = [
    "ChildEvent",
    "GunicornApp",
    "LaunchMode",
    "PythonServerLauncher",
    "PythonServerLauncherArgs",
    "noop_context",
    "run_gunicorn",
    "run_uvicorn_asyncio",
    "run_uvicorn_subprocess",
    "run_uvicorn_thread",
    "shutdown_uvicorn_server",
]

logger = logging.getLogger(__name__)

LaunchMode = Literal["asyncio", "thread", "mp"]

_POLL_SECONDS = 0.02
_ALIVE_POLL_SECONDS = 0.5
_KILL_JOIN_SECONDS = 5.0


def __getattr__(name: str) -> Any:
    if name == "GunicornApp":
        from agl.utils.gunicorn_server import GunicornApp

        return GunicornApp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass
class PythonServerLauncherArgs:
    """Where and how to serve. Times in seconds."""

    port: int | None = None
    """``None``: a free one."""

    host: str | None = None
    """Address to listen on; ``None``: every IPv4 interface."""

    access_host: str | None = None
    """Address told to others; ``None``: ``host``, or this machine's outbound address."""

    launch_mode: LaunchMode = "asyncio"
    n_workers: int = 1
    """Server processes; more than one only in mode ``mp``."""

    healthcheck_url: str | None = None
    """Path that must answer 200 before the server counts as started; ``None``: no check."""

    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    """Only in mode ``asyncio``; the other modes always stop an unhealthy server."""

    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30
    ssl_certfile: str | None = None
    """Certificate chain in PEM; with it the server speaks HTTPS only."""

    ssl_keyfile: str | None = None
    """Private key in PEM, if it is not in the certificate's file."""


class _Handle(Protocol):
    """A server that was started."""

    def alive(self) -> bool: ...

    async def stop(self) -> None: ...


@dataclass
class _Task:
    server: LauncherServer
    task: asyncio.Task[None]

    def alive(self) -> bool:
        return not self.task.done()

    async def stop(self) -> None:
        await shutdown_uvicorn_server(self.server, self.task)


@dataclass
class _Thread:
    thread: threading.Thread
    stop_event: threading.Event
    join_timeout: float

    def alive(self) -> bool:
        return self.thread.is_alive()

    async def stop(self) -> None:
        self.stop_event.set()
        await asyncio.to_thread(self.thread.join, self.join_timeout)
        if self.thread.is_alive():
            raise RuntimeError("Threaded server refused to shut down.")


@dataclass
class _Process:
    process: BaseProcess
    join_timeout: float

    def alive(self) -> bool:
        return self.process.is_alive()

    async def stop(self) -> None:
        process = self.process
        if process.is_alive():
            process.terminate()
        await asyncio.to_thread(process.join, self.join_timeout)
        if process.is_alive():
            logger.error("Server process %s ignores SIGTERM; killing it.", process.pid)
            process.kill()
            await asyncio.to_thread(process.join, _KILL_JOIN_SECONDS)
        if process.is_alive():
            raise RuntimeError(f"Server process {process.pid} refused to shut down.")


class PythonServerLauncher:
    """Starts, watches and stops one server.

    Args:
        app: The ASGI application.
        args: Where and how to serve.
        serve_context: Entered around serving, in the thread or process that serves. For
            :meth:`reload` to work it must allow being entered again.
    """

    def __init__(
        self,
        app: Any,
        args: PythonServerLauncherArgs,
        serve_context: AbstractAsyncContextManager[Any] | None = None,
    ) -> None:
        self.app = app
        self.args = args
        self.serve_context = serve_context
        self._host = args.host if args.host is not None else _default_host()
        self._port = args.port if args.port is not None else _default_port(self._host)
        self._access_host = args.access_host or _default_access_host(self._host)
        self._handle: _Handle | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    @property
    def endpoint(self) -> str:
        """URL of the address listened on."""
        return url(self._host, self._port, self._scheme)

    @property
    def access_endpoint(self) -> str:
        """URL to tell others."""
        return url(self._access_host, self._port, self._scheme)

    @property
    def _scheme(self) -> str:
        return "http" if self.args.ssl_certfile is None else "https"

    @property
    def health_url(self) -> str | None:
        """URL that must answer before the server counts as started, if any."""
        path = self.args.healthcheck_url
        if path is None:
            return None
        return f"{self.access_endpoint}/{path.removeprefix('/')}"

    def is_running(self) -> bool:
        """Whether the server's task, thread or process is alive."""
        return self._handle is not None and self._handle.alive()

    async def start(self) -> None:
        """Start and return once the server is ready.

        Raises:
            RuntimeError: already running, port in use, not ready in time, or no fork here.
            ValueError: the launch mode is unknown.
        """
        starters = {
            "asyncio": self._start_asyncio,
            "thread": self._start_thread,
            "mp": self._start_process,
        }
        if self.args.launch_mode not in starters:
            raise ValueError(f"Unsupported launch mode: {self.args.launch_mode}")
        if self.is_running():
            raise RuntimeError("The server is running already; stop it first.")
        listener = listen(self._host, self._port)
        try:
            self._handle = await starters[self.args.launch_mode](listener)
        except BaseException:
            listener.close()
            raise

    async def stop(self) -> None:
        """Stop gracefully; harmless when nothing runs.

        Raises:
            RuntimeError: the thread or process refuses to end.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.stop()

    async def reload(self) -> None:
        """Stop if running, then start again on the same address."""
        await self.stop()
        await self.start()

    async def run_forever(self) -> None:
        """Start and serve until SIGTERM or SIGINT, which stop the server gracefully.

        A signal that already has a handler keeps it. Cancelling stops the server gracefully, too.

        Raises:
            RuntimeError: as from :meth:`start`, or the server ended by itself.
        """
        stop = asyncio.Event()
        with stop_on_signals(stop, self._force_exit):
            serving = asyncio.create_task(self._start_and_watch())
            asked = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
            finally:
                for task in (serving, asked):
                    task.cancel()
                await asyncio.gather(serving, asked, return_exceptions=True)
                await self.stop()

    async def _start_and_watch(self) -> None:
        await self.start()
        while self.is_running():  # noqa: ASYNC110 - threads and processes set no event
            await asyncio.sleep(_ALIVE_POLL_SECONDS)
        raise RuntimeError("The server ended by itself; its last log lines say why.")

    def _force_exit(self) -> None:
        if isinstance(self._handle, _Task):
            self._handle.server.force_exit = True

    async def _start_asyncio(self, listener: socket.socket) -> _Handle:
        server = self._uvicorn_server(listener)
        task = await run_uvicorn_asyncio(
            server,
            self._context(),
            timeout=self.args.startup_timeout,
            health_url=self.health_url,
            kill_unhealthy_server=self.args.kill_unhealthy_server,
        )
        return _Task(server, task)

    async def _start_thread(self, listener: socket.socket) -> _Handle:
        events: queue.Queue[ChildEvent] = queue.Queue()
        stop_event = threading.Event()
        thread = threading.Thread(
            target=run_uvicorn_thread,
            name=f"agl-server-{self._port}",
            daemon=True,
            kwargs={
                "uvicorn_server": self._uvicorn_server(listener),
                "stop_event": stop_event,
                **self._shared_arguments(events),
            },
        )
        thread.start()
        handle = _Thread(thread, stop_event, self.args.thread_join_timeout)
        return await self._once_ready(handle, events)

    async def _start_process(self, listener: socket.socket) -> _Handle:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise RuntimeError("Launch mode mp needs the fork start method, which is missing here.")
        context = multiprocessing.get_context("fork")
        events: multiprocessing.Queue[ChildEvent] = context.Queue()
        arguments = self._shared_arguments(events)
        if self.args.n_workers > 1:
            app = self._gunicorn_app(listener)
            # Not a daemon: those may have no children of their own.
            process = context.Process(target=run_gunicorn, kwargs={"gunicorn_app": app} | arguments)
        else:
            server = self._uvicorn_server(listener)
            process = context.Process(
                target=run_uvicorn_subprocess,
                daemon=True,
                kwargs={"uvicorn_server": server} | arguments,
            )
        process.start()
        listener.close()
        return await self._once_ready(_Process(process, self.args.process_join_timeout), events)

    def _shared_arguments(self, events: EventQueue) -> dict[str, Any]:
        return {
            "serve_context": self._context(),
            "event_queue": events,
            "timeout": self.args.startup_timeout,
            "health_url": self.health_url,
        }

    async def _once_ready(self, handle: _Handle, events: EventQueue) -> _Handle:
        try:
            event = await self._first_event(handle, events)
            if event.kind == "error":
                logger.debug("The server failed to start: %s", event.traceback)
                raise RuntimeError(event.message or "The server failed to start.")
        except BaseException:
            await _give_up(handle)
            raise
        return handle

    async def _first_event(self, handle: _Handle, events: EventQueue) -> ChildEvent:
        loop = asyncio.get_running_loop()
        patience = 2 * self.args.startup_timeout
        deadline = loop.time() + patience
        while loop.time() < deadline:
            ended = not handle.alive()
            with contextlib.suppress(queue.Empty):
                return events.get(block=ended, timeout=_ALIVE_POLL_SECONDS)
            if ended:
                raise RuntimeError("The server ended before it was ready.")
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"The server gave no sign of life within {patience:.2f} seconds.")

    def _context(self) -> ServeContext:
        return self.serve_context if self.serve_context is not None else noop_context()

    def _uvicorn_server(self, listener: socket.socket) -> LauncherServer:
        config = uvicorn.Config(
            self.app,
            host=self._host,
            port=self._port,
            log_config=None,
            log_level=self.args.log_level,
            access_log=self.args.access_log,
            timeout_keep_alive=self.args.timeout_keep_alive,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            http=LimitedHttpProtocol,
            ssl_certfile=self.args.ssl_certfile,
            ssl_keyfile=self.args.ssl_keyfile,
        )
        return LauncherServer(config, listener)

    def _gunicorn_app(self, listener: socket.socket) -> GunicornApp:
        from agl.utils.gunicorn_server import GunicornApp

        measured = load_environment().multiproc_dir is not None
        options = {
            "bind": f"fd://{listener.fileno()}",
            "workers": self.args.n_workers,
            "worker_class": "agl.utils.gunicorn_server.PropagatingWorker",
            "logger_class": "agl.utils.gunicorn_server.PropagatingLogger",
            "loglevel": logging.getLevelName(self.args.log_level).lower(),
            "accesslog": "-" if self.args.access_log else None,
            "errorlog": "-",
            "preload_app": True,
            "keepalive": self.args.timeout_keep_alive,
            "graceful_timeout": int(self.args.process_join_timeout / 2),
            "child_exit": shutdown_metrics if measured else None,
            "control_socket_disable": True,
            "certfile": self.args.ssl_certfile,
            "keyfile": self.args.ssl_keyfile,
        }
        return GunicornApp(self.app, options)


async def _give_up(handle: _Handle) -> None:
    """Stop a server that did not get ready; what kept it from that is told, not how it ends."""
    try:
        await handle.stop()
    except RuntimeError as error:
        logger.error("%s", error)


def _default_host() -> str:
    host = ANY_ADDRESSES[0]
    logger.warning("No host given; listening on %s, every IPv4 interface.", host)
    return host


def _default_port(host: str) -> int:
    port = free_port(host)
    logger.warning("No port given; using %d, which is free now.", port)
    return port


def _default_access_host(host: str) -> str:
    address = outbound_address() if host in ANY_ADDRESSES else host
    logger.warning("No access host given; others are told %s.", address)
    return address
