"""What runs inside the task, thread or process that serves an application.

The first thing a thread or process does once it is ready, or has failed, is to put one
:class:`ChildEvent` into the queue its parent waits on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback as traceback_module
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

import uvicorn

from agl.probe import probe
from agl.utils.garbage import spare_old_objects
from agl.utils.multiprocess import take_metrics_slot

if TYPE_CHECKING:
    from agl.utils.gunicorn_server import GunicornApp

logger = logging.getLogger("agl.utils.server_launcher")

GRACE_SECONDS = 5
"""How long a stopping server waits for open requests before it cancels them."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

ServeContext = AbstractAsyncContextManager[Any]

ORPHAN_POLL_SECONDS = 1.0
"""How often a serving process looks whether its parent is still there."""

_POLL_SECONDS = 0.02
_TICK_SECONDS = 0.1  # uvicorn counts on ten ticks a second
_PROBE_TIMEOUT_SECONDS = 2.0
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


@dataclass(frozen=True)
class ChildEvent:
    """What a serving thread or process tells its parent."""

    kind: Literal["ready", "error"]
    exc_type: str | None = None
    message: str | None = None
    traceback: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> ChildEvent:
        """The event for a failure."""
        text = "".join(traceback_module.format_exception(error))
        return cls("error", type(error).__name__, str(error), text)


class EventQueue(Protocol):
    """The part of ``queue.Queue`` and ``multiprocessing.Queue`` that is used here."""

    def put(self, obj: ChildEvent, /) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> ChildEvent: ...


@runtime_checkable
class Stoppable(Protocol):
    """An application that wants to know when its server is about to stop."""

    def about_to_stop(self) -> None:
        """Called in the event loop that serves, before open requests are waited for."""
        ...


@asynccontextmanager
async def noop_context() -> AsyncGenerator[None]:
    """A serve context that does nothing."""
    yield


class TellingServer(uvicorn.Server):
    """A uvicorn server that tells its application before it waits for open requests."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self.config.app, Stoppable):
            self.config.app.about_to_stop()
        await super().shutdown(sockets=sockets)


class LauncherServer(TellingServer):
    """A uvicorn server on a socket that listens already; signals are left to whoever runs it."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket | None = None) -> None:
        super().__init__(config)
        self._listener = listener
        self._stopping = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        own = [self._listener] if self._listener is not None else None
        await super().serve(sockets=sockets or own)

    def stop_soon(self) -> None:
        """Ask for a graceful stop; must be called in the event loop that serves."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


# In this event loop


async def run_uvicorn_asyncio(
    uvicorn_server: uvicorn.Server,
    serve_context: ServeContext,
    timeout: float = 60.0,
    health_url: str | None = None,
    wait_for_serve: bool = True,
    kill_unhealthy_server: bool = True,
) -> asyncio.Task[None]:
    """Serve in a task of this event loop and return the task.

    Args:
        uvicorn_server: What to run.
        serve_context: Entered around serving.
        timeout: Seconds for starting and becoming healthy together.
        health_url: Must answer 200; ``None`` for no check.
        wait_for_serve: Return only when the server is ready; otherwise return at once.
        kill_unhealthy_server: Stop a server that does not become healthy; otherwise log only.

    Raises:
        RuntimeError: it failed, or was not ready in time.
    """
    task = asyncio.create_task(_serve(uvicorn_server, serve_context))
    if not wait_for_serve:
        return task
    began = time.monotonic()
    try:
        await _wait_started(uvicorn_server, task, timeout)
        if health_url is not None:
            await _require_healthy(health_url, task, began, timeout, kill_unhealthy_server)
    except BaseException:
        await shutdown_uvicorn_server(uvicorn_server, task)
        raise
    return task


async def _serve(server: uvicorn.Server, serve_context: ServeContext) -> None:
    try:
        async with serve_context:
            await server.serve()
    except SystemExit as exit_:
        # uvicorn exits when the application's start-up fails; a task must not end its loop.
        raise RuntimeError("the application failed to start; its log lines say why") from exit_


async def _wait_started(server: uvicorn.Server, task: asyncio.Task[None], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not server.started:
        if task.done():
            raise _serve_failure(task)
        if time.monotonic() >= deadline:
            raise RuntimeError(f"Server did not start up within {timeout:.2f} seconds.")
        await asyncio.sleep(_POLL_SECONDS)


def _serve_failure(task: asyncio.Task[None]) -> RuntimeError:
    error = None if task.cancelled() else task.exception()
    failure = RuntimeError(f"Uvicorn server failed to serve: {error or 'it ended'}")
    failure.__cause__ = error
    return failure


async def _require_healthy(
    health_url: str, task: asyncio.Task[None], began: float, timeout: float, kill: bool
) -> None:
    if await _wait_healthy(health_url, task, timeout - (time.monotonic() - began)):
        logger.info(
            "Server is healthy at %s in %.2f seconds.", health_url, time.monotonic() - began
        )
        return
    problem = f"Server is not healthy at {health_url} after {timeout:.2f} seconds."
    if kill:
        raise RuntimeError(f"{problem} It has been killed.")
    logger.error("%s It is left running.", problem)


async def _wait_healthy(health_url: str, task: asyncio.Task[None], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if await asyncio.to_thread(is_healthy, health_url, min(left, _PROBE_TIMEOUT_SECONDS)):
            return True
        if task.done():
            raise _serve_failure(task)
        await asyncio.sleep(_POLL_SECONDS)


def is_healthy(health_url: str, timeout: float = _PROBE_TIMEOUT_SECONDS) -> bool:
    """Whether a GET is answered with 200 within ``timeout`` seconds."""
    parts = urlsplit(health_url)
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    return not probe(parts.hostname or "", port, parts.path or "/", timeout, tls=tls)


async def shutdown_uvicorn_server(
    uvicorn_server: uvicorn.Server, serve_task: asyncio.Task[None], timeout: float = 10.0
) -> None:
    """Stop gracefully; what still runs after ``timeout`` seconds is cancelled."""
    if isinstance(uvicorn_server, LauncherServer):
        uvicorn_server.stop_soon()
    uvicorn_server.should_exit = True
    if not uvicorn_server.started:
        serve_task.cancel()
    await asyncio.wait((serve_task,), timeout=timeout)
    if not serve_task.done():
        serve_task.cancel()
        await asyncio.wait((serve_task,))
    if not serve_task.cancelled() and (error := serve_task.exception()) is not None:
        logger.debug("The server ended with an error.", exc_info=error)


# In a thread or process of its own


def run_uvicorn_thread(
    uvicorn_server: uvicorn.Server,
    serve_context: ServeContext,
    event_queue: EventQueue,
    stop_event: threading.Event,
    timeout: float = 60.0,
    health_url: str | None = None,
) -> None:
    """Body of a serving thread: an event loop of its own until ``stop_event`` is set."""

    async def asked_to_stop() -> None:
        while not stop_event.is_set():  # noqa: ASYNC110 - an event of another thread
            await asyncio.sleep(_POLL_SECONDS)

    _run(
        uvicorn_server,
        _serve_until(
            asked_to_stop, uvicorn_server, serve_context, event_queue, timeout, health_url
        ),
    )


def run_uvicorn_subprocess(
    uvicorn_server: uvicorn.Server,
    serve_context: ServeContext,
    event_queue: EventQueue,
    timeout: float = 60.0,
    health_url: str | None = None,
) -> None:
    """Body of a serving process: SIGTERM and SIGINT stop it gracefully, a second SIGINT at once.

    It also stops when its parent is gone, so that nobody finds the port taken by a leftover.
    """
    forget_signals_of_parent()
    spare_old_objects(forked=True)
    take_metrics_slot()
    parent = os.getppid()

    def force() -> None:
        uvicorn_server.force_exit = True

    async def main() -> None:
        stop = asyncio.Event()

        async def asked_to_stop() -> None:
            while not stop.is_set() and not _is_orphan(parent):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), ORPHAN_POLL_SECONDS)

        with stop_on_signals(stop, force):
            await _serve_until(
                asked_to_stop, uvicorn_server, serve_context, event_queue, timeout, health_url
            )

    _run(uvicorn_server, main())


def _run(server: uvicorn.Server, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(main)


async def _serve_until(
    asked_to_stop: Callable[[], Coroutine[Any, Any, Any]],
    server: uvicorn.Server,
    serve_context: ServeContext,
    events: EventQueue,
    timeout: float,
    health_url: str | None,
) -> None:
    stopping = asyncio.create_task(asked_to_stop())
    try:
        task = await run_uvicorn_asyncio(server, serve_context, timeout, health_url)
    except Exception as error:
        events.put(ChildEvent.of(error))
        return
    finally:
        if not server.started:
            stopping.cancel()
    events.put(ChildEvent("ready"))
    await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    await shutdown_uvicorn_server(server, task)
    stopping.cancel()


def run_gunicorn(
    gunicorn_app: GunicornApp,
    serve_context: ServeContext,
    event_queue: EventQueue,
    timeout: float = 60.0,
    health_url: str | None = None,
) -> None:
    """Body of the process that starts and watches gunicorn's workers."""
    from agl.utils.rolling import RollingArbiter

    forget_signals_of_parent()
    owner = os.getpid()
    with asyncio.Runner() as runner:
        runner.run(_enter(serve_context))
        try:
            arbiter: Any = RollingArbiter(gunicorn_app)
            watchdog = threading.Thread(
                target=_watch_gunicorn,
                args=(arbiter, event_queue, timeout, health_url),
                daemon=True,
            )
            watchdog.start()
            arbiter.run()
        finally:
            if os.getpid() == owner:  # workers leave through here as well
                runner.run(_leave(serve_context))


async def _enter(context: ServeContext) -> None:
    await context.__aenter__()


async def _leave(context: ServeContext) -> None:
    await context.__aexit__(None, None, None)


def _watch_gunicorn(
    arbiter: Any, events: EventQueue, timeout: float, health_url: str | None
) -> None:
    parent = os.getppid()
    problem = _gunicorn_problem(arbiter, timeout, health_url)
    if problem is not None:
        events.put(ChildEvent("error", "RuntimeError", problem))
    else:
        events.put(ChildEvent("ready"))
        while not _is_orphan(parent):
            time.sleep(ORPHAN_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _gunicorn_problem(arbiter: Any, timeout: float, health_url: str | None) -> str | None:
    deadline = time.monotonic() + timeout
    while not arbiter.WORKERS:
        if time.monotonic() >= deadline:
            return f"Gunicorn workers did not start within {timeout:.2f} seconds."
        time.sleep(_POLL_SECONDS)
    while health_url is not None and not is_healthy(health_url):
        if time.monotonic() >= deadline:
            return (
                f"Server is not healthy at {health_url} after {timeout:.2f} seconds. "
                "It will be killed by the watchdog."
            )
        time.sleep(_POLL_SECONDS)
    return None


def _is_orphan(parent: int) -> bool:
    return os.getppid() != parent


# Signals


def forget_signals_of_parent() -> None:
    """After a fork: without this, a signal to the child would wake the parent's event loop."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, force: Callable[[], None]) -> Generator[None]:
    """While inside, SIGTERM and SIGINT set ``stop``; a further SIGINT calls ``force``.

    A signal that already has a handler keeps it, and threads other than the main one get none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    taken = {
        number: handler
        for number in STOP_SIGNALS
        if (handler := signal.getsignal(number)) in _UNHANDLED or _is_of_runner(handler)
    }
    for number in taken:
        loop.add_signal_handler(number, _on_signal, number, stop, force)
    try:
        yield
    finally:
        for number, handler in taken.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _is_of_runner(handler: Any) -> bool:
    """Whether it is the SIGINT handler of ``asyncio.run``, which knows only how to interrupt."""
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return isinstance(owner, asyncio.Runner)


def _on_signal(number: signal.Signals, stop: asyncio.Event, force: Callable[[], None]) -> None:
    if not stop.is_set():
        logger.info("Received %s: finishing open requests, then stopping.", number.name)
        stop.set()
    elif number is signal.SIGINT:
        force()
