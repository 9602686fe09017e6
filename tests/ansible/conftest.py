"""Ansible for these tests, from locks/cluster-dev.txt into an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

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
