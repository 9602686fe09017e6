"""``agl bench pair`` with servers that are small enough to start at once."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agl.bench.results import read_result
from agl.cli import main

SERVER = """\
import asyncio, sys

BODY = b'{"rollout_id":"ro-1","attempt_id":"at-1"}'
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(BODY), BODY)


async def serve(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        size = head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]
        await reader.readexactly(int(size or 0))
        writer.write(ANSWER)
        if "die" in sys.argv and b"attempts" in head:
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(7)


import os


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


asyncio.run(main())
"""
SHORT = ("--seconds", "0.2", "--warmup", "0.05", "--clients", "2")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path) -> str:
    """The command of a server that notes its starts in a file ``starts``."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    run = f'echo $1 >> {tmp_path}/starts; exec "$2" -I "$3" "$4" "$5"'
    return shlex.join(
        ["sh", "-c", run, "sh", "NAME", sys.executable, str(script), "{port}", "MODE"]
    )


def command(server: str, name: str, mode: str = "live") -> str:
    return server.replace("NAME", name).replace("MODE", mode)


def pair(a: str, b: str, *options: str) -> int:
    return main(["bench", "pair", "--a", a, "--b", b, *SHORT, *options])


def test_servers_are_measured_in_turns(server: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "pair.json"
    options = ("--rounds", "2", "--seconds", "0.6", "--json", str(out))
    assert pair(command(server, "A"), command(server, "B"), *options) == 0
    assert (tmp_path / "starts").read_text().split() == ["A", "B", "B", "A"]
    result = read_result(out)
    for name in ("rollouts a second, B / A", "A: p50", "B: rollouts a second"):
        figure = result.figure(name)
        assert figure is not None
        assert len(figure.samples) == 2
        assert min(figure.samples) > 0
    assert "median of 2 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("a", "words"),
    [
        ("sh -c 'echo no luck >&2; exit 3' {port}", ("server A ended with 3 before", "no luck")),
        ("no-such-program {port}", ("server A cannot be started", "No such file")),
        ("sleep 60 {port}", ("server A did not get ready in time", "it said nothing")),
    ],
)
def test_a_server_that_does_not_come_up_is_named_with_what_it_said(
    server: str, capsys: Capture, a: str, words: tuple[str, ...]
) -> None:
    options = ("--rounds", "1", "--ready-timeout", "0.4")
    assert pair(a, command(server, "B"), *options) == 1
    shown = capsys.readouterr()
    assert "no round was completed" in shown.out
    assert "partial result: round 1 of 1" in shown.err
    for word in words:
        assert word in shown.err


def test_a_server_that_dies_under_load_ends_the_run(server: str, capsys: Capture) -> None:
    assert pair(command(server, "A"), command(server, "B", "die"), "--rounds", "1") == 1
    said = capsys.readouterr().err
    assert "server B ended with 7 under load" in said
    assert "out of luck" in said


@pytest.mark.parametrize("a", ["agl store", "sh -c 'unfinished {port}"])
def test_a_command_without_a_port_or_an_end_is_refused(a: str, capsys: Capture) -> None:
    assert pair(a, "sleep {port}") == 2
    assert "--a: " in capsys.readouterr().err


def test_ctrl_c_leaves_whole_rounds_and_no_server(server: str, tmp_path: Path) -> None:
    out = tmp_path / "pair.json"
    agl = Path(sys.executable).with_name("agl")
    arguments = ["--a", command(server, "A"), "--b", command(server, "B"), "--json", str(out)]
    sizes = ["--rounds", "1000", *SHORT]
    with subprocess.Popen(
        [agl, "bench", "pair", *arguments, *sizes], stderr=subprocess.PIPE
    ) as run:
        assert run.stderr is not None
        assert b"round 1" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130
    result = read_result(out)
    assert result.partial is not None
    assert result.partial.startswith("interrupted")
    assert result.figures
    deadline = time.monotonic() + 60
    while servers := _running(str(tmp_path / "server.py")):
        assert time.monotonic() < deadline, servers
        time.sleep(0.1)


def _running(script: str) -> list[str]:
    """Processes that have this script on their command line."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if script in line:
            found.append(line)
    return found
