"""Unpacking an archive: nothing but what its manifest lists, each file with its checksum."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from pydantic import ValidationError

from agl.bench.archive.manifest import NAME, Manifest, Member, is_member
from agl.errors import EnvironmentFault

_CHUNK = 1 << 20
_MANIFEST_BYTES = 16 << 20
_EXTENSION_BYTES = 1 << 16
_PADDING_BYTES = 1 << 20


class _Header(tarfile.TarInfo):
    """A header whose extensions (long names and the like), read into memory, are of modest size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if not header.isfile() and header.size > _EXTENSION_BYTES:
            raise tarfile.ReadError(f"an extended header of {header.size} bytes")
        return header


def unpack(path: Path, folder: Path) -> Manifest:
    """Unpack an archive into an empty folder, readable for every user.

    Raises:
        EnvironmentFault: it is no archive, cut short, damaged, or holds what it must not.
    """
    with _opened(path) as archive:
        manifest = _manifest(path, archive.next(), archive)
        free = shutil.disk_usage(folder).free
        if manifest.size > free:
            raise EnvironmentFault(
                f"{path} holds {manifest.size >> 20} MiB, and {folder} has room for"
                f" {free >> 20} MiB",
                remedy="make room there",
            )
        missing = dict(manifest.members)
        while (header := archive.next()) is not None:
            member = missing.pop(header.name, None)
            if member is None or not header.isfile() or not is_member(header.name):
                raise _bad(path, f"{header.name!r} is not in its manifest, or no plain file")
            _extract(path, archive.extractfile(header), folder / header.name, member)
        # What is behind the last file is read as well, or a few lost bytes would go unnoticed.
        left = _PADDING_BYTES
        while chunk := archive.fileobj.read(_CHUNK):
            if (left := left - len(chunk)) < 0:
                raise _bad(path, "more follows behind its last file")
    if missing:
        raise _bad(path, f"{len(missing)} files are missing, {next(iter(missing))} first")
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return manifest


def _manifest(path: Path, header: tarfile.TarInfo | None, archive: tarfile.TarFile) -> Manifest:
    file = archive.extractfile(header) if header is not None and header.isfile() else None
    if header is None or header.name != NAME or file is None or header.size > _MANIFEST_BYTES:
        raise _bad(path, f"it does not begin with {NAME}")
    try:
        manifest = Manifest.model_validate_json(file.read())
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            raise EnvironmentFault(
                f"{path} is of the format {first['input']!r}, which this version does not read",
                remedy="open it with the version that made it",
            ) from None
        raise _bad(path, f"{NAME}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    strange = [name for name in manifest.members if not is_member(name)]
    if strange:
        raise _bad(path, f"its manifest lists {strange[0]!r}, which is no file of an archive")
    return manifest


def _extract(path: Path, source: IO[bytes] | None, target: Path, wanted: Member) -> None:
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while source is not None and (chunk := source.read(_CHUNK)):
            size += len(chunk)
            if size > wanted.size:
                break
            digest.update(chunk)
            file.write(chunk)
    if size != wanted.size or digest.hexdigest() != wanted.sha256:
        raise _bad(path, f"the checksum of {target.name} does not match")


@contextmanager
def _opened(path: Path) -> Generator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:gz", tarinfo=_Header) as archive:
            yield archive
    except FileNotFoundError:
        raise EnvironmentFault(f"there is no file {path}") from None
    except (EOFError, tarfile.TarError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise EnvironmentFault(f"{path} cannot be unpacked: {error}") from error
        raise _bad(path, str(error)) from error


def _bad(path: Path, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path} is no archive of agl bench, or was cut short or damaged: {why}",
        remedy="copy or make it again",
    )
