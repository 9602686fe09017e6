"""The release that control nodes get: this clone as one file, the same bytes for the same tree."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from agl.errors import EnvironmentFault

_NOT_WANTED = (".venv", ".cache", ".git", "tests", "bench", "ansible")


def make_release(root: Path, target: Path) -> Path:
    """Write every file of ``root`` that git knows or would know to ``target``; returns it.

    Times and owners are left out, so an unchanged tree makes an unchanged file. Raises
    EnvironmentFault when the tree cannot be read.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as tar:
            for name in _files(root):
                _add(tar, root, name)
        if not target.exists() or target.read_bytes() != partial.read_bytes():
            partial.replace(target)
    except OSError as error:
        raise EnvironmentFault(f"the release cannot be made: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _files(root: Path) -> list[str]:
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            raise EnvironmentFault(f"git ls-files in {root}: {listed.stderr.strip()}")
        names = set(filter(None, listed.stdout.split("\0")))
    else:
        names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    wanted = (name for name in names if name.partition("/")[0] not in _NOT_WANTED)
    return sorted(name for name in wanted if (root / name).is_file())


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    path = root / name
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(entry)
        return
    content = path.read_bytes()
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
