"""The launcher and the command line of 0.3, one recorded fact a row.

What they do as real threads and processes is in ``tests/integration/test_launcher.py``,
``test_cli.py`` and ``test_exporter.py``; differences are in ``docs/compatibility.md``.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_support import LOOPBACK, launcher_args, serving
from uvicorn_worker import UvicornWorker

from agl import logging as agl_logging
from agl.cli import prometheus
from agl.cli.store import announce, build_server, parse
from agl.store.memory import InMemoryLightningStore
from agl.utils import listening, server_launcher
from agl.utils.gunicorn_server import RollingArbiter
from agl.utils.multiprocess import shutdown_metrics
from agl.utils.server_launcher import ChildEvent, PythonServerLauncher, PythonServerLauncherArgs
from agl.utils.server_runners import _gunicorn_problem

# Names, fields and signatures


@pytest.mark.parametrize(
    "name",
    [
        *("PythonServerLauncher", "PythonServerLauncherArgs", "LaunchMode", "ChildEvent"),
        *("GunicornApp", "noop_context", "run_gunicorn", "run_uvicorn_asyncio"),
        *("run_uvicorn_subprocess", "run_uvicorn_thread", "shutdown_uvicorn_server"),
    ],
)
def test_names(name: str) -> None:
    assert name in server_launcher.__all__
    assert hasattr(server_launcher, name)


ARGUMENTS = {
    "port": None,
    "host": None,
    "access_host": None,
    "launch_mode": "asyncio",
    "n_workers": 1,
    "healthcheck_url": None,
    "log_level": logging.INFO,
    "access_log": False,
    "startup_timeout": 60.0,
    "kill_unhealthy_server": True,
    "thread_join_timeout": 10.0,
    "process_join_timeout": 10.0,
    "timeout_keep_alive": 30,
}
EVENT = {"exc_type": None, "message": None, "traceback": None}


@pytest.mark.parametrize(("place", "name"), list(enumerate(ARGUMENTS)))
def test_fields_of_the_arguments(place: int, name: str) -> None:
    field = fields(PythonServerLauncherArgs)[place]
    assert (field.name, field.default) == (name, ARGUMENTS[name])


def test_an_event() -> None:
    assert [field.name for field in fields(ChildEvent)] == ["kind", *EVENT]
    assert vars(ChildEvent("ready")) == {"kind": "ready", **EVENT}


def written(function: Callable[..., Any]) -> str:
    """Its parameters as they would be written, without annotations."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    bare = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return str(bare)[1:-1]


CHECK = "timeout=60.0, health_url=None"
LOGGING = (
    "propagate=False, disable_existing_loggers=False, capture_warnings=False, "
    "submodule_levels=None, extra_handlers=None, formatter=None, apply_to=None, files=None"
)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (PythonServerLauncher, "app, args, serve_context=None"),
        (
            server_launcher.run_uvicorn_asyncio,
            f"uvicorn_server, serve_context, {CHECK}, wait_for_serve=True, "
            "kill_unhealthy_server=True",
        ),
        (
            server_launcher.run_uvicorn_thread,
            f"uvicorn_server, serve_context, event_queue, stop_event, {CHECK}",
        ),
        (
            server_launcher.run_uvicorn_subprocess,
            f"uvicorn_server, serve_context, event_queue, {CHECK}",
        ),
        (server_launcher.run_gunicorn, f"gunicorn_app, serve_context, event_queue, {CHECK}"),
        (agl_logging.setup_logging, f"level='INFO', *, console=True, color=True, {LOGGING}"),
        (prometheus.ensure_prometheus_dir, ""),
        (prometheus.create_prometheus_app, "metrics_path"),
    ],
)
def test_signatures(function: Callable[..., Any], parameters: str) -> None:
    """Ours may go on after those of 0.3."""
    ours = written(function)
    assert ours == parameters or ours.startswith(f"{parameters}, ")


# Addresses


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers 200 to everything."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def launcher(context: Any = None, **changes: Any) -> PythonServerLauncher:
    return PythonServerLauncher(app, launcher_args(**changes), context)


@pytest.mark.parametrize(
    ("host", "access_host", "endpoint", "access_endpoint"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("127.0.0.1", "me.example", "http://127.0.0.1:9", "http://me.example:9"),
        ("0.0.0.0", "me.example", "http://0.0.0.0:9", "http://me.example:9"),
        ("0.0.0.0", None, "http://0.0.0.0:9", "http://OUTBOUND:9"),
        ("::", None, "http://[::]:9", "http://OUTBOUND:9"),
        (None, None, "http://0.0.0.0:9", "http://OUTBOUND:9"),
    ],
)
def test_endpoints(
    host: str | None, access_host: str | None, endpoint: str, access_endpoint: str
) -> None:
    server = launcher(host=host, access_host=access_host, port=9)
    outbound = listening.outbound_address()
    assert server.endpoint == endpoint
    assert server.access_endpoint == access_endpoint.replace("OUTBOUND", outbound)


@pytest.mark.parametrize("missing", ["host", "port", "access_host"])
def test_what_is_not_given_is_warned_of(missing: str, caplog: pytest.LogCaptureFixture) -> None:
    launcher()
    assert caplog.records == []
    launcher(**{missing: None})
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_machine_without_a_way_out_is_known_by_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_ROUTE_TARGET", ("255.255.255.255", 9))  # refused to all
    assert listening.outbound_address() == LOOPBACK


@pytest.mark.parametrize(
    ("path", "url"),
    [(None, None), ("health", "http://h:9/health"), ("/a/b", "http://h:9/a/b")],
)
def test_health_url(path: str | None, url: str | None) -> None:
    assert launcher(access_host="h", port=9, healthcheck_url=path).health_url == url


async def test_a_port_found_by_itself_is_kept() -> None:
    server = launcher(port=None)
    endpoint = server.endpoint
    for _ in range(2):
        await server.reload()
        assert server.endpoint == endpoint
        async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
            assert (await http.get(endpoint)).status_code == 200
    await server.stop()


# What the servers are told


@pytest.fixture
def given() -> dict[str, Any]:
    return {
        "n_workers": 3,
        "log_level": logging.WARNING,
        "process_join_timeout": 9.0,
        "timeout_keep_alive": 17,
    }


@pytest.mark.parametrize(
    ("access_log", "option", "value"),
    [
        (False, "workers", 3),
        (False, "loglevel", "warning"),
        (False, "accesslog", None),
        (True, "accesslog", "-"),
        (False, "errorlog", "-"),
        (False, "preload_app", True),
        (False, "graceful_timeout", 4),
        (False, "timeout", 30),
        (False, "max_requests", 0),
        (False, "backlog", 2048),
        (False, "keepalive", 17),
    ],
)
def test_gunicorn(given: dict[str, Any], access_log: bool, option: str, value: Any) -> None:
    with listening.listen(LOOPBACK, 0) as listener:
        built = launcher(**given, access_log=access_log)._gunicorn_app(listener)
    assert getattr(built.cfg, option) == value
    assert issubclass(built.cfg.worker_class, UvicornWorker)
    assert built.load() is app


@pytest.mark.parametrize("measured", [False, True])
def test_gunicorn_and_the_metrics_of_dead_processes(
    measured: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    if measured:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with listening.listen(LOOPBACK, 0) as listener:
        built = launcher()._gunicorn_app(listener)
    assert (built.cfg.child_exit is shutdown_metrics) is measured


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("log_level", logging.WARNING),
        ("access_log", False),
        ("timeout_keep_alive", 17),
        ("timeout_graceful_shutdown", 5),
    ],
)
def test_uvicorn(given: dict[str, Any], option: str, value: Any) -> None:
    with listening.listen(LOOPBACK, 0) as listener:
        assert getattr(launcher(**given)._uvicorn_server(listener).config, option) == value


# Starts and stops that do not go well


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Set at the end of the test, so that threads which wait for it end."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name.startswith("agl-server-"):
            thread.join(60)
            assert not thread.is_alive()


async def test_a_thread_that_does_not_end_is_told(let_go: threading.Event) -> None:
    @asynccontextmanager
    async def context() -> AsyncGenerator[None]:
        yield
        let_go.wait()

    server = launcher(context(), launch_mode="thread", thread_join_timeout=0.1)
    await server.start()
    with pytest.raises(RuntimeError, match=r"^Threaded server refused to shut down\.$"):
        await server.stop()


async def test_a_thread_without_a_sign_of_life_is_given_up(
    let_go: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def context() -> AsyncGenerator[None]:
        let_go.wait()
        yield

    server = launcher(
        context(), launch_mode="thread", thread_join_timeout=0.1, startup_timeout=0.05
    )
    with pytest.raises(RuntimeError, match=r"no sign of life within 0\.10 seconds"):
        await server.start()
    assert not server.is_running()
    assert "Threaded server refused to shut down." in caplog.text


async def test_a_process_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def context() -> AsyncGenerator[None]:
        yield
        threading.Event().wait(60)

    server = launcher(context(), launch_mode="mp", process_join_timeout=0.1)
    await server.start()
    await server.stop()
    assert "ignores SIGTERM; killing it." in caplog.text
    assert multiprocessing.active_children() == []


async def test_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(RuntimeError, match="needs the fork start method"):
        await launcher(launch_mode="mp").start()


def test_gunicorn_without_processes_is_told() -> None:
    with listening.listen(LOOPBACK, 0) as listener:
        arbiter = RollingArbiter(launcher(n_workers=2)._gunicorn_app(listener))
    told = "Gunicorn workers did not start within 0.01 seconds."
    assert _gunicorn_problem(arbiter, 0.01, None) == told


# agl store


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        *(("host", "0.0.0.0"), ("port", 4747), ("cors_origins", ()), ("trackers", ())),
        *(("n_workers", 1), ("backend", "memory"), ("mongo", None)),
    ],
)
def test_store_defaults(setting: str, default: Any) -> None:
    assert getattr(parse([], "agl store"), setting) == default


def test_store_defaults_of_what_has_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AGL_MONGO_URI", "AGL_MONGO_URI_FILE", "AGL_MONGO_DATABASE"):
        monkeypatch.delenv(variable, raising=False)
    settings = parse(["--backend", "mongo"], "agl store")
    assert settings.log.level == "INFO"
    assert settings.mongo is not None
    assert settings.mongo.uri == "mongodb://localhost:27017/?replicaSet=rs0"
    assert settings.mongo.database == "agentlightning"


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        *((["--log-level", level], "log.level", level) for level in ("DEBUG", "WARNING", "ERROR")),
        (["--log-level", "INFO"], "log.level", "INFO"),
        (["--host", "h", "--port", "1"], "host", "h"),
        (["--host", "h", "--port", "1"], "port", 1),
        (["--n-workers", "1"], "n_workers", 1),
        (["--backend", "mongo", "--n-workers", "2"], "n_workers", 2),
        (["--backend", "mongo", "--mongo-uri", "mongodb://m/"], "mongo.uri", "mongodb://m/"),
        (["--tracker", "prometheus", "console"], "trackers", ("prometheus", "console")),
        (["--tracker", "prometheus", "--tracker", "console"], "trackers", ("console",)),
    ],
)
def test_store_options(options: list[str], setting: str, value: Any) -> None:
    found: Any = parse(options, "agl store")
    for name in setting.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("argument", "value"),
    [("launch_mode", "asyncio"), ("n_workers", 1), ("healthcheck_url", "/v1/agl/health")],
)
def test_the_store_that_is_served(argument: str, value: Any) -> None:
    server = build_server(parse(["--host", LOOPBACK, "--port", "9"], "agl store"), None)
    assert isinstance(server.store, InMemoryLightningStore)
    assert server.store.capabilities.get("thread_safe") is True
    assert getattr(server.launcher_args, argument) == value


async def test_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agl")
    announce(parse(["--tracker", "prometheus", "console"], "agl store"), None, None)
    async with serving() as server:
        url = server.endpoint
    lines = caplog.messages
    assert "Enabling Prometheus metrics tracking." in lines
    assert "Enabling console metrics tracking." in lines
    assert f"Running the lightning store server at {url}, accessible at {url}" in lines
    assert any(line.startswith(f"Server is healthy at {url}/v1/agl/health in ") for line in lines)


# agl prometheus


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        *(("host", "0.0.0.0"), ("port", 4748), ("metrics_path", "/v1/prometheus")),
        ("access_log", False),
    ],
)
def test_exporter_defaults(setting: str, default: Any) -> None:
    settings = prometheus.parse([], "agl prometheus")
    assert getattr(settings, setting) == default
    assert settings.log.level == "INFO"


@pytest.mark.parametrize(
    ("path", "status"), [("/health", 200), ("/openapi.json", 200), ("/docs", 404), ("/redoc", 404)]
)
async def test_paths_of_the_exporter(
    path: str, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "new"))
    transport = httpx.ASGITransport(prometheus.create_prometheus_app("/metrics"))
    assert (tmp_path / "new").is_dir()
    async with httpx.AsyncClient(transport=transport, base_url="http://exporter") as http:
        assert (await http.get(path)).status_code == status


async def test_health_of_the_exporter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    transport = httpx.ASGITransport(prometheus.create_prometheus_app("/metrics"))
    async with httpx.AsyncClient(transport=transport, base_url="http://exporter") as http:
        answers = [await http.request(method, "/health") for method in ("GET", "HEAD")]
        document = (await http.get("/openapi.json")).json()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == {"status": "ok"}
    assert {path: [*methods] for path, methods in document["paths"].items()} == {"/health": ["get"]}
    assert document["paths"]["/health"]["get"]["operationId"] == "health_health_get"
