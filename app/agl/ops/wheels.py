"""Packages of the scripts for machines that reach no package index, for the Pythons they have."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from agl.errors import UsageError


def own_version() -> str:
    """The Python this runs under, as 3.13."""
    return "{}.{}".format(*sys.version_info)


def check_versions(versions: Sequence[str]) -> None:
    """Raises UsageError when one of them is no version that the scripts run under."""
    for version in versions:
        if not re.fullmatch(r"3\.\d+", version) or int(version[2:]) < 11:
            raise UsageError(f"--python takes versions from 3.11 on, such as 3.13, not {version!r}")


def requirements_for(lock: str, version: str) -> str:
    """The lines of a lock that Python ``version`` installs on this system, with their hashes.

    pip looks at conditions with the Python that it runs under, whichever it downloads for.
    """
    return "\n".join(
        _wanted(lock, {"python_version": version, "python_full_version": f"{version}.0"})
    )


def _wanted(lock: str, python: dict[str, str]) -> Iterator[str]:
    lines = (line for line in lock.splitlines() if not line.lstrip().startswith("#"))
    for entry in "\n".join(lines).replace("\\\n", " ").splitlines():
        head, hashes, rest = entry.partition(" --hash=")
        if not head.strip():
            continue
        requirement = Requirement(head)
        if requirement.marker is None or requirement.marker.evaluate(python):
            yield f"{requirement.name}{requirement.specifier}{hashes}{rest}"


def collect(
    lock: Path, folder: Path, versions: Sequence[str], environ: Mapping[str, str]
) -> list[Path]:
    """Wheels of ``lock`` for each Python, in ``folder``; none when no index answers."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes"]
    for version in versions:
        listed = folder / f"{version}.txt"
        listed.write_text(requirements_for(lock.read_text(), version))
        answer = subprocess.run(
            [*command, "--python-version", version, "--requirement", listed, "--dest", folder],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        listed.unlink()
        if answer.returncode != 0:
            return []
    return sorted(folder.iterdir())
