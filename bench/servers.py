"""The servers under measurement, each in a process of its own on a free port."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from agl.bench.contenders import free_port as free_port

ROOT = Path(__file__).resolve().parent.parent
HEALTH_PATH = "/v1/agl/health"
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    pid: int
    port: int
    ready_seconds: float
    """From the start of its process to its first answer."""

    idle_mib: float
    """Resident memory before the first request but health."""


@contextlib.contextmanager
def serving(variant: str) -> Generator[Running]:
    """Run a server (``yardstick``, ``ours`` or ``ours-no-tracker``) while inside.

    Raises:
        RuntimeError: it does not start.
    """
    port = free_port()
    with metrics_folder() as folder, tempfile.TemporaryFile() as log:
        environment = {name: value for name, value in os.environ.items() if name[:5] != "PROME"}
        if variant == "ours":
            environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        began = time.monotonic()
        process = subprocess.Popen(
            _command(variant, port), cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        try:
            try:
                _wait_ready(process, port)
            except RuntimeError as error:
                log.seek(0)
                said = log.read().decode(errors="replace")[-2000:]
                raise RuntimeError(f"{variant}: {error}\n{said}") from None
            ready = time.monotonic() - began
            time.sleep(0.5)
            yield Running(process.pid, port, ready, resident_mib(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no VmRSS for process {pid}")


def _command(variant: str, port: int) -> list[str]:
    if variant == "yardstick":
        return [sys.executable, "-m", "bench.ceiling.app", str(port)]
    command = [str(Path(sys.executable).with_name("agl")), "store", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "WARNING"]
    return command + (["--tracker", "prometheus"] if variant == "ours" else [])


@contextlib.contextmanager
def metrics_folder() -> Generator[Path]:
    """In memory where that is possible, as in the bundle."""
    memory = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a shared file
    folder = Path(tempfile.mkdtemp(prefix="agl-bench-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"ended with exit code {process.returncode}")
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", HEALTH_PATH)
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            time.sleep(0.01)
        finally:
            connection.close()
    raise RuntimeError(f"not ready within {_START_SECONDS:.0f} s")
