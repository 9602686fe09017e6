"""The thin shell: it finds a Python, keeps environments, and asks nothing without a terminal."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = ("up", "down", "status", "images")
TOOLS = [
    "bash",
    "sh",
    "dirname",
    "id",
    "cut",
    "sha256sum",
    "grep",
    "mktemp",
    "rm",
    "tar",
    "chown",
    "env",
    "readlink",
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The scripts in a path with a space, without an environment."""
    root = tmp_path / "a clone"
    for folder in ("scripts", "locks", "compose"):
        shutil.copytree(REPOSITORY / folder, root / folder)
    shutil.copytree(REPOSITORY / "app", root / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    return root


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the shell's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name} here"))
    return folder


def run(
    *command: str | Path, path: Path | None = None, cwd: Path | str = "/"
) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": str(path) if path else os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "DOCKER_HOST": "tcp://127.0.0.1:1",
    }
    return subprocess.run(
        [str(part) for part in command],
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def shell(clone: Path, code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run("bash", "-c", f'source "{clone}/scripts/lib/env.sh"; {code}', path=path)


def fake_venv(clone: Path, *, works: bool = True) -> Path:
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    python.chmod(0o755)
    return python


def stamp(clone: Path, *lines: str) -> None:
    (clone / ".venv" / ".agl-locks").write_text("".join(f"{line}\n" for line in lines))


def lock_sum(clone: Path, name: str) -> str:
    return hashlib.sha256((clone / "locks" / name).read_bytes()).hexdigest()


def snapshot(root: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in root.rglob("*")}


class TestCheck:
    def test_changes_nothing_and_needs_no_environment(self, clone: Path) -> None:
        before = snapshot(clone)
        answer = run(clone / "scripts" / "up", "--check")
        assert answer.returncode == 1
        assert "not ready: docker" in answer.stdout, answer.stderr
        assert snapshot(clone) == before

    def test_without_python_it_says_how_to_get_it(self, clone: Path, tools: Path) -> None:
        answer = run(clone / "scripts" / "up", "--check", path=tools)
        assert answer.returncode == 1
        assert answer.stderr.startswith("up: error: python3 is missing - type: sudo apt-get")
        assert len(answer.stderr.splitlines()) == 1

    def test_through_a_relative_path(self, clone: Path) -> None:
        answer = run("./up", "--check", "nonsense", cwd=clone / "scripts")
        assert answer.returncode == 2
        assert "known modes: memory" in answer.stderr

    @pytest.mark.parametrize("name", SCRIPTS)
    def test_through_a_link(self, clone: Path, tmp_path: Path, name: str) -> None:
        link = tmp_path / f"agl-{name}"
        link.symlink_to(clone / "scripts" / name)
        fake_venv(clone)
        (clone / ".venv" / "bin" / "agl-stack").symlink_to("/bin/true")
        answer = run(link, *(["--check", "nonsense"] if name == "up" else []))
        assert "known modes" in answer.stderr if name == "up" else answer.returncode == 0

    def test_what_up_cannot_repair_is_said_before_anything_is_made(self, clone: Path) -> None:
        before = snapshot(clone)
        answer = run(clone / "scripts" / "up", "--yes")
        assert answer.returncode == 1
        assert "the daemon does not answer" in answer.stderr
        assert snapshot(clone) == before


class TestPython:
    @pytest.mark.parametrize("name", SCRIPTS[1:])
    def test_without_a_terminal_nothing_is_asked(self, clone: Path, tools: Path, name: str) -> None:
        (tools / "apt-get").symlink_to("/bin/false")
        answer = run(clone / "scripts" / name, path=tools)
        assert answer.returncode == 1
        assert answer.stderr.startswith(f"{name}: error: Python 3.11 or newer with its venv")
        assert "apt-get install -y python3" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1

    def test_a_system_without_apt(self, clone: Path, tools: Path) -> None:
        answer = run(clone / "scripts" / "status", path=tools)
        assert "your system's package manager" in answer.stderr

    def test_consent_runs_apt_and_its_failure_is_one_line(self, clone: Path, tools: Path) -> None:
        called = clone / "called"
        for name in ("apt-get", "sudo"):
            (tools / name).write_text(f'#!/bin/sh\necho "$@" >> "{called}"\nexit 100\n')
            (tools / name).chmod(0o755)
        answer = run(clone / "scripts" / "status", "--yes", path=tools)
        assert answer.returncode == 1
        assert "update" in called.read_text()
        assert answer.stderr.splitlines()[-1].startswith("status: error: apt-get could not install")

    def test_too_old_and_broken_pythons_are_passed_over(self, clone: Path, tools: Path) -> None:
        for name, body in (
            ("python3", "exit 1"),
            ("python3.13", "exit 127"),
            ("python3.11", f'exec "{sys.executable}" "$@"'),
        ):
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        assert shell(clone, "agl_python", tools).stdout.strip() == str(tools / "python3.11")


class TestEnvironment:
    def is_current(self, clone: Path, lock: str = "host.txt") -> bool:
        return shell(clone, f"agl_venv_current {lock}").returncode == 0

    def test_none(self, clone: Path) -> None:
        assert not self.is_current(clone)

    def test_stamped_with_this_lock_and_place(self, clone: Path) -> None:
        fake_venv(clone)
        stamp(clone, f"root {clone}", f"host.txt {lock_sum(clone, 'host.txt')}")
        assert self.is_current(clone)
        assert not self.is_current(clone, "dev.txt")

    def test_changed_lock(self, clone: Path) -> None:
        fake_venv(clone)
        stamp(clone, f"root {clone}", f"host.txt {lock_sum(clone, 'host.txt')}")
        with (clone / "locks" / "host.txt").open("a") as file:
            file.write("# changed\n")
        assert not self.is_current(clone)

    def test_moved_clone(self, clone: Path) -> None:
        fake_venv(clone)
        stamp(clone, "root /elsewhere", f"host.txt {lock_sum(clone, 'host.txt')}")
        assert not self.is_current(clone)

    def test_python_that_is_gone(self, clone: Path) -> None:
        fake_venv(clone, works=False)
        stamp(clone, f"root {clone}", f"host.txt {lock_sum(clone, 'host.txt')}")
        assert not self.is_current(clone)

    def test_a_developers_environment_serves_the_host(self, clone: Path) -> None:
        fake_venv(clone)
        answer = shell(clone, "agl_stamp dev.txt && agl_venv_current host.txt")
        assert answer.returncode == 0, answer.stderr
        assert self.is_current(clone, "dev.txt")

    def test_an_environment_made_by_hand_is_left_alone(self, clone: Path) -> None:
        fake_venv(clone)
        before = snapshot(clone / ".venv")
        assert shell(clone, "agl_venv host.txt").returncode == 0
        assert snapshot(clone / ".venv") == before

    def test_packages_that_cannot_be_had(self, clone: Path) -> None:
        environ = "export PIP_INDEX_URL=http://127.0.0.1:1/ PIP_FIND_LINKS= PIP_RETRIES=0"
        answer = shell(clone, f"{environ}; agl_venv host.txt")
        assert answer.returncode == 1
        assert "locks/host.txt could not be installed" in answer.stderr.splitlines()[-1]
        assert not (clone / ".venv" / ".agl-locks").exists()


def test_the_scripts_hold_no_logic_of_their_own() -> None:
    for name in SCRIPTS:
        lines = (REPOSITORY / "scripts" / name).read_text().splitlines()
        code = [line for line in lines if line and not line.lstrip().startswith("#")]
        assert len(code) <= 16, name
