"""The health probe, as containers run it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_port

import agl.probe
from agl.probe import main


class Handler(BaseHTTPRequestHandler):
    asked = 0
    healthy_questions = 0
    """After so many, ``/fails`` is not healthy any more."""

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.path == "/fails":
            self.send_response(200 if self.asked <= self.healthy_questions else 500)
            self.end_headers()
            return
        statuses = {"/health": 200, "/moved": 301, "/broken": 503, "/": 200, "/q?a=b": 200}
        self.send_response(statuses.get(self.path, 404))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that says these bytes and, when there are none, nothing at all."""
    text: bytes = request.param
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                if text:
                    connection.sendall(text)
                else:
                    stop.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        stop.set()
        thread.join()


@pytest.mark.parametrize("path", ["/health", "/", "", "/q?a=b"])
def test_200_is_healthy(server: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([server + path]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("path", "text"), [("/moved", "301 Moved"), ("/broken", "503 Serv"), ("/x", "404 Not Found")]
)
def test_anything_else_is_not(
    server: str, path: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([server + path]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"answered {text}" in err
    assert err.count("\n") == 1


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"http://127.0.0.1:{free_port()}/"]) == 1
    assert "no answer: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b""], indirect=True)
def test_timeout_counts_for_everything(answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    assert main([answer, "--timeout", "0.2"]) == 1
    assert time.monotonic() - begin > 0.15
    assert "no answer within 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n", b"no line end", b"\n"], indirect=True)
def test_not_http(answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([answer]) == 1
    assert "the answer is not HTTP" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--timeout", "3"],
        ["ftp://x/"],
        ["x"],
        ["http://"],
        ["http://x:0/"],
        ["http://x:99999/"],
        ["http://x:1/a b"],
        ["http://u:p@x/"],
        ["http://x/", "http://y/"],
        ["http://x/", "--bogus"],
        ["http://x/", "--timeout", "0"],
        ["http://x/", "--timeout", "nan"],
        ["http://x/", "--timeout=x"],
        ["http://x/", "--watch=-1"],
        ["http://x/", "--watch"],
        ["http://x/\r\nX: y"],
    ],
)
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("agl.probe: error: ")
    assert err.count("\n") == 1


def test_ipv6(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://[::1]:1/"]) == 1
    assert "[::1]:1/: no answer" in capsys.readouterr().err


def test_real_process_imports_little(server: str) -> None:
    """The probe runs every few seconds for ever; what it imports is what it costs."""
    arguments = ["-m", "agl.probe", f"{server}/health", "--timeout=2"]
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stderr
    assert "agl" in shown
    for heavy in ("ssl", "http.client", "argparse", "asyncio", "pydantic", "email"):
        assert f"| {heavy}\n" not in shown.replace(" ", "").replace("|", "| "), heavy


@pytest.fixture
def watching(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], tuple[int, int]]:
    """Watches 0.3 s, every 0.05 s; returns the exit code and how often the server was asked."""
    monkeypatch.setattr(agl.probe, "MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr(agl.probe, "WATCH_INTERVAL_SECONDS", 0.05)

    def watch(path: str, healthy_questions: int) -> tuple[int, int]:
        monkeypatch.setattr(Handler, "asked", 0)
        monkeypatch.setattr(Handler, "healthy_questions", healthy_questions)
        return main([server + path, "--watch=0.3"]), Handler.asked

    return watch


def test_what_was_healthy_is_watched(watching: Callable[[str, int], tuple[int, int]]) -> None:
    assert watching("/fails", 0) == (1, 1)
    assert watching("/health", 0) == (0, 1), "the first good answer is told at once"
    code, asked = watching("/health", 0)
    assert code == 0
    assert 2 <= asked <= 6
    assert watching("/fails", 2) == (1, 3), "a failure is told at once"
    assert watching("/health", 0) == (0, 1), "and so is that it is over"


def test_another_start_of_the_container_is_told_at_once(
    watching: Callable[[str, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watching("/health", 0) == (0, 1)
    monkeypatch.setattr(agl.probe, "_start_of_container", lambda: "another")
    assert watching("/health", 0) == (0, 1)
    assert watching("/health", 0)[1] > 1


def test_whoever_was_not_asked_for_long_is_told_at_once(
    watching: Callable[[str, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause of the container, when to Docker it is unhealthy until a probe ends."""
    assert watching("/health", 0) == (0, 1)
    monkeypatch.setattr(agl.probe, "FRESH_SECONDS", 0.0)
    assert watching("/health", 0) == (0, 1)


def test_after_a_probe_that_was_ended_the_next_is_told_at_once(
    server: str,
    watching: Callable[[str, int], tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert watching("/health", 0) == (0, 1)
    monkeypatch.setattr(Handler, "asked", 0)
    program = f"import agl.probe; agl.probe.MARKER = {agl.probe.MARKER!r}; agl.probe.main()"
    command = [sys.executable, "-c", program, f"{server}/health", "--watch=60"]
    with subprocess.Popen(command) as watcher:
        while not Handler.asked:
            assert watcher.poll() is None
            time.sleep(0.01)
        assert watcher.poll() is None, "it goes on asking"
        watcher.terminate()
    assert watching("/health", 0) == (0, 1)


@pytest.mark.parametrize("text", ["", " ", "x", "1 x", "1 2 3", "\xff"])
def test_a_marker_that_says_nothing_is_none(
    watching: Callable[[str, int], tuple[int, int]], text: str
) -> None:
    Path(agl.probe.MARKER).write_text(text, "latin-1")
    assert watching("/health", 0) == (0, 1)


def test_without_a_place_for_its_marker_it_asks_once(
    watching: Callable[[str, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agl.probe, "MARKER", "/proc/no/such/place")
    for _ in range(2):
        assert watching("/health", 0) == (0, 1)
