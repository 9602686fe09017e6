"""One checksummed file with every image of the bundle, for machines that reach no registry.

The file is a tar: ``images.tar`` (the stream of ``docker save``), ``wheels/`` (Python packages
for the scripts), ``manifest.json`` (names, ids, sizes and checksums of all of it) and
``manifest.sha256``. Everything is streamed; no image is ever held in memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from agl.errors import EnvironmentFault
from agl.ops.shapes import items, texts
from agl.utils.whole_file import whole_file

FORMAT = 1
PAYLOAD, MANIFEST, MANIFEST_SUM, WHEELS = (
    "images.tar",
    "manifest.json",
    "manifest.sha256",
    "wheels",
)
CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class ArchivedImage:
    """One image in the archive: the variable it fills, its local name, id, size and layers."""

    variable: str
    pinned: str
    name: str
    origin: str
    id: str
    size: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A piece of the archive: size in bytes, checksum, and the images that need it."""

    name: str
    size: int
    sha256: str
    images: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} (of {', '.join(self.images)})" if self.images else self.name


@dataclass(frozen=True)
class Manifest:
    """What the archive holds."""

    architecture: str
    images: tuple[ArchivedImage, ...]
    left_out: Mapping[str, str]
    payload: Part
    pieces: tuple[Part, ...]
    wheels: tuple[Part, ...]
    format: int = FORMAT


def save(
    target: Path,
    images: Iterable[ArchivedImage],
    *,
    architecture: str,
    left_out: Mapping[str, str],
    wheels: Iterable[Path],
    environ: Mapping[str, str],
    progress: Callable[[int], None],
) -> Manifest:
    """Write the archive; ``target`` appears only when it is complete.

    ``progress`` is told the bytes written so far. Raises EnvironmentFault when Docker or the disk
    fails; nothing is left behind then.
    """
    images = tuple(images)
    try:
        with whole_file(target) as partial, partial.open("w+b") as file:
            payload = _write_payload(file, [image.name for image in images], environ, progress)
            pieces = tuple(_read_pieces(file, payload))
            manifest = Manifest(
                architecture=architecture,
                images=images,
                left_out=dict(left_out),
                payload=payload,
                pieces=pieces,
                wheels=tuple(_part(path) for path in wheels),
            )
            _write_rest(file, manifest, wheels)
    except OSError as error:
        raise EnvironmentFault(
            f"{target} could not be written: {error.strerror or error}",
            remedy="check the folder and its free space (df -h)",
        ) from error
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of an archive. Raises EnvironmentFault when it is missing or damaged."""
    with _opened(path) as archive:
        text = _member(archive, path, MANIFEST)
        wanted = _member(archive, path, MANIFEST_SUM).decode(errors="replace").strip()
    if hashlib.sha256(text).hexdigest() != wanted:
        raise _corrupt(path, MANIFEST, "its checksum does not match")
    try:
        return _parse(text)
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(path, MANIFEST, str(error)) from error


def verify(path: Path, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Read the whole payload once. Raises EnvironmentFault naming the part that is damaged."""
    digest = hashlib.sha256()
    with _opened(path) as archive:
        done = 0
        for chunk in _chunks(_payload(archive, path, manifest), manifest.payload.size):
            digest.update(chunk)
            done += len(chunk)
            progress(done)
        if digest.hexdigest() == manifest.payload.sha256:
            return
        broken = _broken_piece(_payload(archive, path, manifest), manifest)
    raise _corrupt(path, broken, "its checksum does not match")


def payload_chunks(path: Path, manifest: Manifest) -> Iterator[bytes]:
    """The ``docker save`` stream inside the archive, in chunks."""
    with _opened(path) as archive:
        yield from _chunks(_payload(archive, path, manifest), manifest.payload.size)


def _write_payload(
    file: IO[bytes],
    names: list[str],
    environ: Mapping[str, str],
    progress: Callable[[int], None],
) -> Part:
    """Stream ``docker save`` into the tar; its header is written last, when the size is known."""
    file.write(bytes(_BLOCK))
    digest, size = hashlib.sha256(), 0
    command = ["docker", "save", *dict.fromkeys(names)]
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            for chunk in iter(lambda: cast("IO[bytes]", process.stdout).read(CHUNK), b""):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                progress(size)
            error = cast("IO[bytes]", process.stderr).read().decode(errors="replace").strip()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise EnvironmentFault(f"docker save failed: {error}", remedy="run scripts/images again")
    file.write(bytes(-size % _BLOCK))
    file.seek(0)
    file.write(_header(PAYLOAD, size))
    file.seek(0, 2)
    return Part(PAYLOAD, size, digest.hexdigest())


def _read_pieces(file: IO[bytes], payload: Part) -> Iterator[Part]:
    """Checksums of the members of the inner tar, so that damage can be named later."""
    file.seek(_BLOCK)
    try:
        with tarfile.open(fileobj=file, mode="r:") as inner:
            owners = _owners(inner)
            for member in inner:
                if member.isfile():
                    stream = cast("IO[bytes]", inner.extractfile(member))
                    checksum = _sum(_chunks(stream, member.size))
                    images = tuple(owners.get(member.name, ()))
                    yield Part(member.name, member.size, checksum, images)
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise EnvironmentFault(f"docker save wrote no usable tar: {error}") from error
    file.seek(_BLOCK + payload.size + (-payload.size % _BLOCK))


def _owners(inner: tarfile.TarFile) -> dict[str, list[str]]:
    """The images that need each file, from the index that ``docker save`` writes."""
    index = cast("IO[bytes]", inner.extractfile("manifest.json")).read()
    owners: dict[str, list[str]] = {}
    for image in items(json.loads(index)):
        for name in (image["Config"], *texts(image["Layers"])):
            owners.setdefault(str(name), []).extend(texts(image.get("RepoTags")))
    return owners


def _write_rest(file: IO[bytes], manifest: Manifest, wheels: Iterable[Path]) -> None:
    text = json.dumps(asdict(manifest), indent=1).encode()
    with tarfile.open(fileobj=file, mode="w:") as archive:
        for wheel in wheels:
            archive.add(wheel, f"{WHEELS}/{wheel.name}")
        for name, content in (
            (MANIFEST, text),
            (MANIFEST_SUM, hashlib.sha256(text).hexdigest().encode() + b"\n"),
        ):
            _add(archive, name, content)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member.tobuf(tarfile.GNU_FORMAT)


def _broken_piece(stream: IO[bytes], manifest: Manifest) -> str:
    """The first piece that is not as it was saved, with the images that need it."""
    wanted = {piece.name: piece for piece in manifest.pieces}
    try:
        with tarfile.open(fileobj=stream, mode="r:") as inner:
            for member in inner:
                if member.isfile():
                    content = cast("IO[bytes]", inner.extractfile(member))
                    piece = wanted.pop(member.name, None)
                    if piece is None or _sum(_chunks(content, member.size)) != piece.sha256:
                        return f"{PAYLOAD}: {piece or member.name}"
    except (tarfile.TarError, EnvironmentFault, OSError):
        pass
    return f"{PAYLOAD}: {next(iter(wanted.values()), 'between its files')}"


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode="r:")
    except FileNotFoundError:
        raise EnvironmentFault(
            f"there is no file {path}", remedy="make it with: agl stack images save FILE"
        ) from None
    except (OSError, tarfile.TarError) as error:
        raise _corrupt(path, "its beginning", str(error)) from error


def _member(archive: tarfile.TarFile, path: Path, name: str) -> bytes:
    try:
        member = archive.getmember(name)
        return cast("IO[bytes]", archive.extractfile(member)).read()
    except (KeyError, tarfile.TarError, OSError) as error:
        raise _corrupt(path, name, "it is missing, so the file may have been cut off") from error


def _payload(archive: tarfile.TarFile, path: Path, manifest: Manifest) -> IO[bytes]:
    try:
        member = archive.getmember(PAYLOAD)
    except (KeyError, tarfile.TarError, OSError) as error:
        raise _corrupt(path, PAYLOAD, "it is missing") from error
    if member.size != manifest.payload.size:
        raise _corrupt(path, PAYLOAD, f"{member.size} bytes instead of {manifest.payload.size}")
    return cast("IO[bytes]", archive.extractfile(member))


def _chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        try:
            chunk = stream.read(min(CHUNK, left))
        except (OSError, tarfile.TarError) as error:
            raise EnvironmentFault(f"the archive ends {left} bytes too early: {error}") from error
        if not chunk:
            raise EnvironmentFault(f"the archive ends {left} bytes too early")
        left -= len(chunk)
        yield chunk


def _sum(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _part(path: Path) -> Part:
    with path.open("rb") as file:
        size = path.stat().st_size
        return Part(f"{WHEELS}/{path.name}", size, _sum(_chunks(file, size)))


def _parse(text: bytes) -> Manifest:
    data = cast("dict[str, Any]", json.loads(text))
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, this program reads {FORMAT}")
    return Manifest(
        architecture=data["architecture"],
        images=tuple(_image(image) for image in data["images"]),
        left_out=data["left_out"],
        payload=_read_part(data["payload"]),
        pieces=tuple(map(_read_part, data["pieces"])),
        wheels=tuple(map(_read_part, data["wheels"])),
    )


def _read_part(data: dict[str, Any]) -> Part:
    return Part(data["name"], data["size"], data["sha256"], tuple(data["images"]))


def _image(data: dict[str, Any]) -> ArchivedImage:
    layers = tuple(cast("list[str]", data.pop("layers")))
    return ArchivedImage(**data, layers=layers)


def _corrupt(path: Path, part: str, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"{path} is damaged at {part}: {why}", remedy="copy or make the archive again"
    )
