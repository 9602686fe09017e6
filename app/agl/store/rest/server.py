"""A store behind an HTTP server, usable as a store itself in every process that knows it."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiologic
from fastapi import FastAPI

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.rest.app import create_app
from agl.store.rest.limits import ServerLimits
from agl.store.rest.wire import HEALTH_PATH, TRACES_PATH
from agl.utils.metrics import MetricsBackend
from agl.utils.server_launcher import LaunchMode, PythonServerLauncher, PythonServerLauncherArgs

if TYPE_CHECKING:
    from agl.store.rest.client import LightningStoreClient

logger = logging.getLogger("agl.store.server")

DEFAULT_PORT = 4747
ANY_USER = "agl"


class LightningStoreServer(LightningStore):
    """Serves ``store`` over HTTP, and is a store: calls go to ``store`` where that is possible.

    In the process that created it, calls reach ``store`` directly. In other processes (after a
    fork, or unpickled) they go over HTTP, unless the store's state is shared between processes.

    Args:
        store: What to serve; it must be ``async_safe``, and ``zero_copy`` for launch mode ``mp``.
        host: Address to listen on.
        port: Port to listen on; 4747 with a warning when not given.
        cors_allow_origins: Origins a browser may call from; ``*`` for all.
        launch_mode: In this event loop, in a thread or in processes.
        launcher_args: All settings of the launcher, instead of the three above.
        n_workers: Server processes, in mode ``mp``.
        tracker: Where requests are counted.
        api_token: What clients must show; ``None`` lets everybody in.
        debug_errors: Put tracebacks into error answers.
        limits: How much one server process takes on.

    Raises:
        ValueError: arguments that exclude each other, or a store that cannot be served so.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: Sequence[str] | str | None = None,
        launch_mode: LaunchMode = "thread",
        launcher_args: PythonServerLauncherArgs | None = None,
        n_workers: int = 1,
        tracker: MetricsBackend | None = None,
        *,
        api_token: str | None = None,
        debug_errors: bool = False,
        limits: ServerLimits | None = None,
    ) -> None:
        if launcher_args is None:
            launcher_args = _launcher_args(host, port, launch_mode, n_workers)
        elif host is not None or port is not None or launch_mode != "thread":
            raise ValueError(
                "host, port, and launch_mode cannot be set when launcher_args is provided."
            )
        _check_store(store, launcher_args.launch_mode)
        self.store: LightningStore | None = store
        self.tracker = tracker
        self.launcher_args = launcher_args
        self._owner_pid = os.getpid()
        self._api_token = api_token
        self._client: LightningStoreClient | None = None
        self._lock = _needed_lock(store, launcher_args.launch_mode)
        self.app: FastAPI | None = create_app(
            store if self._lock is None else self,
            cors_allow_origins=cors_allow_origins,
            tracker=tracker,
            api_token=api_token,
            debug_errors=debug_errors,
            limits=limits,
            processes=launcher_args.n_workers,
        )
        self.server_launcher: PythonServerLauncher | None = PythonServerLauncher(
            self.app, launcher_args
        )
        self._endpoint = self.server_launcher.access_endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "launcher_args": self.launcher_args,
            "_endpoint": self._endpoint,
            "_owner_pid": self._owner_pid,
            "_api_token": self._api_token,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.store = self.tracker = self.app = self.server_launcher = None
        self._client = self._lock = None

    @property
    def endpoint(self) -> str:
        """The server's URL, as told to others."""
        return self._endpoint

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True
        )

    def otlp_traces_endpoint(self) -> str:
        """URL that takes OTLP traces, with the API token in it if there is one."""
        return self._address_with_token() + TRACES_PATH

    async def start(self) -> None:
        """Start serving; returns once the server is healthy.

        Raises:
            RuntimeError: port in use, not healthy in time, or not the process that created this.
        """
        await self._announced_launcher().start()

    async def stop(self) -> None:
        """Stop serving gracefully."""
        await self._launcher().stop()
        if self._client is not None:
            await self._client.close()

    async def run_forever(self) -> None:
        """Serve until SIGTERM, SIGINT or cancellation; see :class:`PythonServerLauncher`."""
        await self._announced_launcher().run_forever()

    def _announced_launcher(self) -> PythonServerLauncher:
        launcher = self._launcher()
        logger.info(
            "Running the lightning store server at %s, accessible at %s",
            launcher.endpoint,
            launcher.access_endpoint,
        )
        return launcher

    def _launcher(self) -> PythonServerLauncher:
        if self.server_launcher is None or os.getpid() != self._owner_pid:
            raise RuntimeError("Only the process that created the server can start and stop it.")
        return self.server_launcher

    async def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, lock = self._target(name)
        method = getattr(target, name)
        if lock is None:
            return await method(*args, **kwargs)
        async with lock:
            return await method(*args, **kwargs)

    def _target(self, name: str) -> tuple[LightningStore, aiologic.Lock | None]:
        store = self.store
        if store is None:
            return self._remote(), None
        if os.getpid() == self._owner_pid:
            return store, None if name == "wait_for_rollouts" else self._lock
        return (store if store.capabilities.get("zero_copy") else self._remote()), None

    def _remote(self) -> LightningStoreClient:
        if self._client is None:
            from agl.store.rest.client import LightningStoreClient

            self._client = LightningStoreClient(self._address_with_token())
        return self._client

    def _address_with_token(self) -> str:
        if self._api_token is None:
            return self._endpoint
        scheme, _, rest = self._endpoint.partition("://")
        return f"{scheme}://{ANY_USER}:{quote(self._api_token, safe='')}@{rest}"


def _launcher_args(
    host: str | None, port: int | None, launch_mode: LaunchMode, n_workers: int
) -> PythonServerLauncherArgs:
    if port is None:
        logger.warning("No port given; using %d.", DEFAULT_PORT)
        port = DEFAULT_PORT
    return PythonServerLauncherArgs(
        host=host,
        port=port,
        launch_mode=launch_mode,
        n_workers=n_workers,
        healthcheck_url=HEALTH_PATH,
    )


def _check_store(store: LightningStore, launch_mode: LaunchMode) -> None:
    capabilities = store.capabilities
    if not capabilities.get("async_safe"):
        raise ValueError("The store is not async-safe and cannot be served.")
    if launch_mode == "mp" and not capabilities.get("zero_copy"):
        raise ValueError(
            "The store does not support zero-copy. Its data would be split between processes; use "
            "launch mode asyncio or thread, or a store whose data lives elsewhere."
        )
    if launch_mode == "thread" and not capabilities.get("thread_safe"):
        logger.warning("The store is not thread-safe; its calls are made one at a time.")


def _needed_lock(store: LightningStore, launch_mode: LaunchMode) -> aiologic.Lock | None:
    """The server's thread and the caller's share the store: one of them at a time, if need be."""
    capabilities = store.capabilities
    shared = launch_mode == "thread" and not capabilities.get("thread_safe")
    return aiologic.Lock() if shared and not capabilities.get("zero_copy") else None


def _delegate(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(getattr(LightningStore, name))
    async def call(self: LightningStoreServer, *args: Any, **kwargs: Any) -> Any:
        return await self._call(name, args, kwargs)  # pyright: ignore[reportPrivateUsage]  # a method of the class

    return call


for _name, _method in vars(LightningStore).items():
    if inspect.iscoroutinefunction(_method):
        setattr(LightningStoreServer, _name, _delegate(_name))
