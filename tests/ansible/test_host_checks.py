"""Faults of a host that the preflight finds, on a machine made of files and small programs."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FS_IOC_SETFLAGS = 0x40086602


@pytest.fixture(scope="module")
def checks(ansible_module: Callable[[str], ModuleType]) -> ModuleType:
    return ansible_module("host_checks")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that come before the machine's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def failed(found: list[dict[str, str]]) -> dict[str, str]:
    """What was found and the fix of each failed check, by name; each has a fix."""
    wrong = [check for check in found if check["status"] == "fail"]
    assert all(check["fix"] for check in wrong)
    return {check["name"]: f"{check['found']}; {check['fix']}" for check in wrong}


@pytest.mark.parametrize(
    ("release", "supported"),
    [
        ('ID=debian\nVERSION_ID="13"', True),
        ('ID=ubuntu\nVERSION_ID="22.04"\nID_LIKE=debian', True),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"', True),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.9"', False),
        ('ID=debian\nVERSION_ID="11"', False),
        ("", False),
    ],
)
def test_systems(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, release: str, supported: bool
) -> None:
    monkeypatch.setattr(checks, "read", lambda _: release)
    systems = ["debian 12", "debian 13", "ubuntu 22.04", "rhel 9"]
    found = failed(checks.system(systems, [os.uname().machine]))
    assert ("system" in found) != supported
    assert "architecture" in failed(checks.system(systems, ["s390x"]))


def test_too_little_disk(checks: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path / "not" / "there" / "yet")
    assert not failed(checks.disks({place: 0}))
    found = failed(checks.disks({place: 10**9}))
    assert f"the file system of {tmp_path}" in found["disk"]


def test_a_half_finished_installation(checks: ModuleType, programs: Path) -> None:
    program(programs, "dpkg", "printf 'not configured:\\n cuda-drivers-580  NVIDIA driver\\n'")
    assert (
        "cuda-drivers-580; sudo dpkg --configure -a" in failed(checks.packages_whole())["packages"]
    )
    program(programs, "dpkg", "exit 0")
    assert checks.packages_whole() == []


def test_a_port_in_use_by_another(checks: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        own = Path("/proc/self/comm").read_text().strip()
        entry = {"port": port, "by": ["docker-proxy"], "variable": "store_port"}
        found = failed(checks.ports([entry]))["port"]
        assert f"{port} is in use by {own}" in found
        assert "or set store_port" in found
        assert not failed(checks.ports([{**entry, "by": [own]}]))
    assert not failed(checks.ports([entry]))


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ('[ "$1" = version ] && echo 19.03.15', "fail", "19.03.15 is too old"),
        ("exit 1", "fail", "its daemon does not answer"),
        ('[ "$1" = version ] && echo 20.10.24', "warn", "without Compose 2"),
        ('[ "$1" = version ] && echo 28.2.2 || echo 2.26.1', "ok", "28.2.2, Compose 2.26.1"),
    ],
)
def test_the_docker_that_is_there(
    checks: ModuleType, programs: Path, script: str, status: str, words: str
) -> None:
    program(programs, "docker", script)
    (found,) = checks.docker_engine("docker")
    assert found["status"] == status
    assert words in found["found"]


@pytest.mark.parametrize(("code", "version"), [(127, ""), (0, "20.10.24")])
def test_debian_12_has_no_compose(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, code: int, version: str
) -> None:
    answers = {"version": (code, version)}
    monkeypatch.setattr(checks, "run", lambda _, word, *__: answers.get(word, (1, "")))
    monkeypatch.setattr(checks, "read", lambda _: 'ID=debian\nVERSION_ID="12"')
    said = failed(checks.docker_engine("distribution"))["docker"]
    assert said.endswith("Debian 12 has no Compose 2; set docker_source: docker")
    assert not failed(checks.docker_engine("docker"))
    monkeypatch.setattr(checks, "read", lambda _: 'ID=debian\nVERSION_ID="13"')
    assert not failed(checks.docker_engine("distribution"))


def daemon_json(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, path: Path, content: str
) -> Path:
    path.write_text(content)
    monkeypatch.setattr(checks, "DAEMON_JSON", path)
    return path


@pytest.mark.parametrize("content", ["{", "[]", "nonsense"])
def test_a_daemon_json_that_is_none(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    path = daemon_json(checks, monkeypatch, tmp_path / "daemon.json", content)
    assert f"correct {path}" in failed(checks.daemon_json(runtime=False))["daemon.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file immutable")
def test_a_daemon_json_that_cannot_be_written(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It only matters where the runtime has to be added; the user's keys are never in the way."""
    path = daemon_json(checks, monkeypatch, tmp_path / "daemon.json", '{"bip": "10.9.0.1/24"}')
    assert not failed(checks.daemon_json(runtime=True))
    set_flags(path, checks.FS_IMMUTABLE)
    try:
        found = failed(checks.daemon_json(runtime=True))["daemon.json"]
        assert not failed(checks.daemon_json(runtime=False))
    finally:
        set_flags(path, 0)
    assert "it is immutable (chattr +i)" in found
    assert '"nvidia-container-runtime"' in found
    path.write_text(json.dumps({"runtimes": {"nvidia": {}}}))
    set_flags(path, checks.FS_IMMUTABLE)
    assert not failed(checks.daemon_json(runtime=True))
    set_flags(path, 0)


def set_flags(path: Path, flags: int) -> None:
    with path.open() as file:
        fcntl.ioctl(file, FS_IOC_SETFLAGS, struct.pack("l", flags))


def test_gpus_that_are_not_there(checks: ModuleType, tmp_path: Path) -> None:
    for slot, kind in (("01", "0x030200"), ("02", "0x030200"), ("03", "0x068000")):
        device = tmp_path / slot
        device.mkdir()
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text(f"{kind}\n")
    assert not failed(checks.gpus(2, tmp_path))
    assert "2 on the PCI bus, the inventory promises 8" in failed(checks.gpus(8, tmp_path))["gpus"]
    assert "0 on the PCI bus" in failed(checks.gpus(8, tmp_path / "none"))["gpus"]


PACKAGES = [{"names": ["cuda-drivers-580"], "version": "580.95*"}]
CONTAINER = '{"DeviceRequests": [{"Driver": "nvidia"}], "Devices": %s} /train'


@pytest.mark.parametrize(
    ("driver", "toolkit", "explicit", "words"),
    [
        ("580.82.07-1", "1.18.1-1", True, "container train would lose the GPUs by"),
        ("580.95.05-1", "1.17.0-1", True, "a daemon-reload would take the GPUs"),
        ("580.95.05-1", "1.18.1-1", False, "without explicit devices: container train"),
        ("580.95.05-1", "1.18.1-1", True, ""),
    ],
)
def test_gpu_work_that_a_change_would_disturb(
    checks: ModuleType, programs: Path, driver: str, toolkit: str, explicit: bool, words: str
) -> None:
    devices = '[{"PathOnHost": "/dev/nvidia0"}]' if explicit else "[]"
    shown = CONTAINER % devices
    program(programs, "docker", f"[ \"$1\" = ps ] && echo c1 || echo '{shown}'")
    program(programs, "nvidia-smi", "exit 0")
    version = f"case $4 in cuda*) v={driver};; *) v={toolkit};; esac"
    program(programs, "dpkg-query", f'{version}; printf "installed $v"')
    found = failed(checks.disturbing(PACKAGES, "this release", drain=False))
    assert words in found.get("gpu work", "")
    assert bool(found) == bool(words)
    assert not failed(checks.disturbing(PACKAGES, "this release", drain=True))


def test_more_open_files_than_the_host_allows(checks: ModuleType) -> None:
    assert "is above the hard limit" in failed(checks.nofile(10**10))["nofile"]
    assert not failed(checks.nofile(64))
