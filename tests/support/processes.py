"""Real processes for tests: the command line as it is installed, and ports nobody uses."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

BIN = Path(sys.executable).parent
NOBODY = 65534
CLEARED = ("PROMETHEUS_MULTIPROC_DIR", "AGL_LOG_FORMAT")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    return {**kept, **(extra or {})}


def wait_until_read(port: int, connections: int, seconds: float = 60) -> None:
    """Until a server on loopback has read all that came over so many connections."""
    server = f"0100007F:{port:04X}"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        here = [row for row in rows if row[1] == server and row[3] == "01"]  # established
        if len(here) >= connections and all(row[4].endswith(":00000000") for row in here):
            return
        time.sleep(0.02)
    raise AssertionError("what was sent has not been read")


def run_agl(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    seconds: float = 30,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "agl", *arguments],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=seconds,
        user=user,
        check=False,
    )


@contextlib.contextmanager
def running_agl(
    *arguments: str, env: Mapping[str, str] | None = None, program: str = "agl"
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [BIN / program, *arguments],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until_answering(url: str, process: subprocess.Popen[str], seconds: float = 60) -> bytes:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read()
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None:
                ended = f"ended with {process.returncode}: {process.communicate()}"
                raise AssertionError(ended) from None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def unprivileged_folder(mode: int) -> Iterator[Path]:
    """A folder of this mode; root, who may do everything, becomes nobody while it is in use."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "folder"
        folder.mkdir()
        folder.chmod(mode)
        if root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o700)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key for the loopback address."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key
