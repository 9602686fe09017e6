"""Ansible for these tests, from locks/cluster-dev.txt into an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ansible_bin() -> Path:
    """Folder with ansible-playbook and ansible-lint; made once, and again when the lock changes."""
    venv = Path(os.environ.get("AGL_CLUSTER_DEV_VENV", ROOT / ".cache" / "cluster-dev-venv"))
    lock = ROOT / "locks" / "cluster-dev.txt"
    wanted = f"{venv} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with venv.with_name(f"{venv.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stamp = venv / ".agl-lock"
        if not stamp.is_file() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            install = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q"]
            subprocess.run([*install, "install", "--require-hashes", "-r", lock], check=True)
            stamp.write_text(wanted)
    return venv / "bin"


@pytest.fixture(scope="session")
def ansible_module(ansible_bin: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of ansible/library by its name, as Ansible's own environment does."""
    packages = ansible_bin.parent / "lib" / "python{}.{}".format(*sys.version_info)
    sys.path.append(str(packages / "site-packages"))

    def load(name: str) -> ModuleType:
        path = ROOT / "ansible" / "library" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.path.remove(str(packages / "site-packages"))
