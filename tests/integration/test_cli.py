"""The command line as real processes: exit codes, one line for each failure, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from ports import free_port
from processes import BIN, run_agl, running_agl, wait_until_answering, wait_until_read

from agl import __version__
from agl.cli import COMMANDS, main
from agl.cli._serving import is_loopback
from agl.cli.store import api_token, build_tracker, parse
from agl.config import StoreSettings
from agl.errors import EnvironmentFault
from agl.utils.metrics import (
    ConsoleMetricsBackend,
    MultiMetricsBackend,
    PrometheusMetricsBackend,
)


def one_line(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.removesuffix("\n")


# The program


def test_help_lists_every_command() -> None:
    for flag in ("--help", "-h"):
        ended = run_agl(flag)
        assert (ended.returncode, ended.stderr) == (0, "")
        lines = ended.stdout.splitlines()
        for name, text in COMMANDS.items():
            assert any(line.split() == [name, *text.split()] for line in lines)


def test_version_under_both_names() -> None:
    for program in ("agl", "agl-stack"):
        ended = subprocess.run([BIN / program, "--version"], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (0, f"agl-stack {__version__}\n")


def test_unknown_and_missing_command() -> None:
    line = one_line(run_agl("bogus"), 2)
    assert line.startswith("agl: error: unknown command 'bogus' (choose from store, prometheus")
    assert one_line(run_agl(), 2).startswith("agl: error: a command is needed")


def test_the_other_name_names_itself() -> None:
    ended = subprocess.run([BIN / "agl-stack", "store", "--bogus"], capture_output=True, text=True)
    assert one_line(ended, 2) == "agl-stack store: error: unrecognized arguments: --bogus"


def test_main_returns_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--help"]) == 0
    assert "--published-on" in capsys.readouterr().out
    assert main(["store", "--port"]) == 2
    assert capsys.readouterr().err == ("agl store: error: argument --port: expected one argument\n")


def test_a_reader_that_went_away_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        ended = subprocess.run(
            [BIN / "agl", "--help"], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=20
        )
    assert (ended.returncode, ended.stderr) == (141, "")


def test_start_is_light() -> None:
    code = "import sys, agl.cli; print([m for m in sys.modules if m.split('.')[0] in ('fastapi', \
'pydantic', 'uvicorn', 'prometheus_client', 'rich', 'asyncio')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


# agl store: options


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--port", "0"], "argument --port: '0' is not a port between 1 and 65535"),
        (["--port", "65536"], "argument --port: '65536' is not a port"),
        (["--port", "९"], "is not a port"),
        (["--n-workers", "0"], "argument --n-workers: '0' is not a number of processes"),
        (["--n-workers", "2"], "the memory backend keeps its data in one process"),
        (["--backend", "x"], "argument --backend: invalid choice: 'x'"),
        (["--tracker", "x"], "argument --tracker: invalid choice: 'x'"),
        (["--tracker"], "argument --tracker: expected at least one argument"),
        (["--log-level", "LOUD"], "argument --log-level: invalid choice: 'LOUD'"),
        (["--log-format", "xml"], "argument --log-format: invalid choice: 'xml'"),
        (["--published-on", "example"], "argument --published-on: 'example' is not an IP address"),
        (["--host", "not a host"], "argument --host: 'not a host' is not an address"),
    ],
)
def test_store_usage_errors(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(["store", *arguments]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("agl store: error: ")
    assert text in err
    assert err.count("\n") == 1


def test_store_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_LOG_FORMAT", raising=False)
    assert parse([], "agl store") == StoreSettings()
    settings = parse(
        [
            "--cors-origin",
            "a",
            "--cors-origin",
            "*",
            "--tracker",
            "console",
            "prometheus",
            "console",
            "--log-level",
            "debug",
        ],
        "agl store",
    )
    assert settings.cors_origins == ("a", "*")
    assert settings.trackers == ("console", "prometheus")
    assert settings.log.level == "DEBUG"
    assert parse(["--tracker", "console", "--tracker", "prometheus"], "p").trackers == (
        "prometheus",
    )


def test_log_format_option_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_LOG_FORMAT", "json")
    assert parse([], "agl store").log.format == "json"
    assert parse(["--log-format", "text"], "agl store").log.format == "text"
    monkeypatch.setenv("AGL_LOG_FORMAT", "xml")
    with pytest.raises(EnvironmentFault, match="AGL_LOG_FORMAT"):
        parse([], "agl store")


def test_trackers() -> None:
    assert build_tracker(()) is None
    assert isinstance(build_tracker(("console",)), ConsoleMetricsBackend)
    assert isinstance(build_tracker(("prometheus",)), PrometheusMetricsBackend)
    both = build_tracker(("console", "prometheus"))
    assert isinstance(both, MultiMetricsBackend)
    assert both.has_prometheus()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example")),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("published_on", "demanded"),
    [
        *((address, False) for address in ("127.0.0.1", "localhost", "::1")),
        *((address, True) for address in (None, "0.0.0.0", "", "192.0.2.7")),
    ],
)
def test_when_a_token_is_demanded(published_on: str | None, demanded: bool, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    settings = StoreSettings(api_token_file=file, published_on=published_on)
    assert api_token(settings) == ("s3cret" if demanded else None)
    assert api_token(StoreSettings(published_on=published_on)) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff", "holds other characters than ASCII"),
        (b"two\nlines", "does not hold one token on one line"),
        (b"a\0b", "does not hold one token on one line"),
    ],
)
def test_token_file_faults(content: bytes | None, text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    line = one_line(run_agl("store", "--api-token-file", str(file), "--published-on", "::1"), 1)
    assert line.startswith(f"agl store: error: argument --api-token-file: {file} {text} - write")


def test_store_needs_a_writable_metrics_folder(tmp_path: Path) -> None:
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "no" / "parent")}
    line = one_line(run_agl("store", "--tracker", "prometheus", env=env), 1)
    assert line.startswith("agl store: error: PROMETHEUS_MULTIPROC_DIR: the folder ")
    assert "no/parent is missing and cannot be created" in line


def test_store_port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            line = one_line(run_agl("store", "--host", host, "--port", str(port)), 1)
            assert line.startswith(f"agl store: error: port {port} on {host} is taken - stop what")


def test_store_address_of_another_machine() -> None:
    line = one_line(run_agl("store", "--host", "192.0.2.1", "--port", str(free_port())), 1)
    assert line.startswith("agl store: error: 192.0.2.1 is not an address of this machine - ")


# agl store: a running server


def get(url: str, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def log_of(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    out, err = process.communicate(timeout=20)
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_store_drains_and_ends_with_zero(number: signal.Signals) -> None:
    port = free_port()
    with running_agl("store", "--port", str(port)) as process:
        wait_until_answering(f"http://127.0.0.1:{port}/v1/agl/health", process)
        process.send_signal(number)
        lines = log_of(process)
    assert process.returncode == 0
    messages = [str(line["message"]) for line in lines]
    warnings = [str(line["message"]) for line in lines if line["level"] == "WARNING"]
    assert warnings[0].startswith("The memory backend keeps everything in this process")
    assert warnings[1].startswith("Anyone who can reach port")
    assert len(warnings) == 2
    assert any(message.startswith(f"Received {number.name}") for message in messages)
    assert messages[-1] == "The store has stopped."
    assert not any("exception" in line for line in lines)


def test_store_finishes_an_open_request_before_it_ends() -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}/v1/agl"
    with running_agl("store", "--host", "127.0.0.1", "--port", str(port)) as process:
        wait_until_answering(f"{base}/health", process)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(20)
            body = b'{"rollouts": [{"input": 1}]}'
            head = (
                "POST /v1/agl/queues/rollouts/enqueue HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body[:4])
            wait_until_read(port, 1)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            client.sendall(body[4:])
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        log_of(process)
    assert answer.startswith(b"HTTP/1.1 201"), answer
    assert process.returncode == 0


def test_store_demands_its_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    port = free_port()
    base = f"http://127.0.0.1:{port}/v1/agl"
    with running_agl("store", "--port", str(port), "--api-token-file", str(file)) as process:
        wait_until_answering(f"{base}/health", process)
        assert get(f"{base}/statistics")[0] == 401
        assert get(f"{base}/statistics", "wrong")[0] == 401
        assert get(f"{base}/statistics", "s3cret")[0] == 200
        process.terminate()
        lines = log_of(process)
    assert process.returncode == 0
    assert not any("Anyone who can reach" in str(line["message"]) for line in lines)
    assert "s3cret" not in json.dumps(lines)


@pytest.mark.parametrize("trackers", [[], ["console"], ["prometheus"], ["console", "prometheus"]])
def test_store_with_each_tracker(trackers: Sequence[str]) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}/v1"
    options = ["--tracker", *trackers] if trackers else []
    with running_agl("store", "--host", "127.0.0.1", "--port", str(port), *options) as process:
        wait_until_answering(f"{base}/agl/health", process)
        assert get(f"{base}/agl/statistics")[0] == 200
        status, body = get(f"{base}/prometheus/")
        process.terminate()
        lines = log_of(process)
    assert process.returncode == 0
    if "prometheus" in trackers:
        assert status == 200
        assert b"\nagl_http_total{" in body
        assert b"\nagl_rollouts_total{" in body
    else:
        assert status == 404
    loggers = {line["logger"] for line in lines}
    assert ("agl.utils.metrics" in loggers) is ("console" in trackers)


def test_store_and_exporter_share_a_folder(tmp_path: Path) -> None:
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    ports = free_port(), free_port()
    store = ("store", "--host", "127.0.0.1", "--port", str(ports[0]), "--tracker", "prometheus")
    exporter = ("prometheus", "--host", "127.0.0.1", "--port", str(ports[1]))
    metrics = f"http://127.0.0.1:{ports[1]}/v1/prometheus"
    with running_agl(*exporter, env=env) as reader:
        wait_until_answering(metrics, reader)
        for _ in range(2):
            with running_agl(*store, env=env, program="agl-stack") as writer:
                health = f"http://127.0.0.1:{ports[0]}/v1/agl/health"
                wait_until_answering(health, writer)
                for _ in range(5):
                    get(f"http://127.0.0.1:{ports[0]}/v1/agl/statistics")
                writer.terminate()
                log_of(writer)
            assert writer.returncode == 0
        text = get(metrics)[1].decode()
    series = 'agl_http_total{method="GET",path="/v1/agl/statistics",status="200"} '
    assert [line for line in text.splitlines() if line.startswith(series)] == [f"{series}10.0"]
    assert 'agl_rollouts_total{mode="train",status="succeeded"} 0.0\n' in text


def test_store_logs_text_when_asked() -> None:
    port = free_port()
    options = ("--host", "127.0.0.1", "--port", str(port))
    with running_agl("store", *options, env={"AGL_LOG_FORMAT": "text"}) as process:
        wait_until_answering(f"http://127.0.0.1:{port}/v1/agl/health", process)
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "[WARNING] (Process-" in out
    assert "{" not in out.splitlines()[0]


def test_sigterm_during_the_start_is_a_clean_end() -> None:
    for wait in (0.15, 0.6):
        with running_agl("store", "--port", str(free_port())) as process:
            time.sleep(wait)
            process.terminate()
            out, err = process.communicate(timeout=20)
        assert "Traceback" not in out + err
        assert process.returncode in (0, -signal.SIGTERM)
