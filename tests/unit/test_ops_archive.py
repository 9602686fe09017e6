"""The archive of images: streamed, checksummed, and never half there under its own name.

``docker save`` is played by a script here, since the real one cannot be made to fail on demand;
tests/stack uses the real one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault
from agl.ops import archive
from agl.ops.archive import ArchivedImage, Manifest, read_manifest, save, verify
from agl.ops.transport import check_target

IMAGES = [
    ArchivedImage("A_IMAGE", "pinned/a:1", "a:1", "pinned", "sha256:aa", 10, ("l1", "l2")),
    ArchivedImage("B_IMAGE", "pinned/b:1", "b:1", "stand-in", "sha256:bb", 20, ("l1", "l3")),
]
LAYERS = {name: os.urandom(3 << 20) for name in ("l1", "l2", "l3")}


def docker_stream() -> bytes:
    index = [
        {"Config": "a.json", "RepoTags": ["a:1"], "Layers": ["l1/layer.tar", "l2/layer.tar"]},
        {"Config": "b.json", "RepoTags": ["b:1"], "Layers": ["l1/layer.tar", "l3/layer.tar"]},
    ]
    files = {f"{name}/layer.tar": content for name, content in LAYERS.items()}
    files |= {"a.json": b"{}", "b.json": b"{}", "manifest.json": json.dumps(index).encode()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as inner:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            inner.addfile(member, io.BytesIO(content))
    return out.getvalue()


class Docker:
    """A ``docker`` command whose ``save`` writes a given stream."""

    def __init__(self, folder: Path) -> None:
        self.stream = docker_stream()
        self.path = folder / "stream.tar"
        self.path.write_bytes(self.stream)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.says(f'[ "$*" = "save a:1 b:1" ] && exec cat "{self.path}"')

    def says(self, script: str) -> None:
        command = self.bin / "docker"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def save(self, target: Path, wheels: list[Path] | None = None) -> Manifest:
        return save(
            target,
            IMAGES,
            architecture="amd64",
            left_out={"C_IMAGE": "pinned/c:1"},
            wheels=wheels or [],
            environ={"PATH": f"{self.bin}:{os.environ['PATH']}"},
            progress=lambda _: None,
        )


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    return Docker(tmp_path)


def damage(path: Path, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(content[:64]) + 5] ^= 0xFF
    path.write_bytes(data)


def check(path: Path) -> None:
    verify(path, read_manifest(path), lambda _: None)


class TestRoundTrip:
    def test_everything_comes_out_as_it_went_in(self, docker: Docker, tmp_path: Path) -> None:
        wheel = tmp_path / "x-1-py3-none-any.whl"
        wheel.write_bytes(b"wheel")
        target = tmp_path / "bundle.tar"
        written = docker.save(target, [wheel])
        read = read_manifest(target)
        assert read == written
        assert read.images == tuple(IMAGES)
        assert read.left_out == {"C_IMAGE": "pinned/c:1"}
        assert read.payload.sha256 == hashlib.sha256(docker.stream).hexdigest()
        check(target)
        assert b"".join(archive.payload_chunks(target, read)) == docker.stream
        with tarfile.open(target) as outer:
            extracted = outer.extractfile("wheels/x-1-py3-none-any.whl")
            assert extracted is not None
            assert extracted.read() == b"wheel"

    def test_progress_grows_to_the_size_of_the_stream(self, docker: Docker, tmp_path: Path) -> None:
        target = tmp_path / "bundle.tar"
        manifest = docker.save(target)
        seen: list[int] = []
        verify(target, manifest, seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == len(docker.stream)

    def test_memory_stays_small(self, docker: Docker, tmp_path: Path) -> None:
        target = tmp_path / "bundle.tar"
        manifest = docker.save(target)
        assert max(map(len, archive.payload_chunks(target, manifest))) <= archive.CHUNK


class TestDamage:
    def test_a_flipped_bit_names_the_layer_and_its_images(
        self, docker: Docker, tmp_path: Path
    ) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        damage(target, LAYERS["l3"])
        with pytest.raises(EnvironmentFault, match=r"images.tar: l3/layer.tar \(of b:1\): its"):
            check(target)

    def test_a_shared_layer_names_every_image(self, docker: Docker, tmp_path: Path) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        damage(target, LAYERS["l1"])
        with pytest.raises(EnvironmentFault, match=r"l1/layer.tar \(of a:1, b:1\)"):
            check(target)

    def test_a_damaged_header_inside_names_the_first_piece_lost(
        self, docker: Docker, tmp_path: Path
    ) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        damage(target, b"l2/layer.tar" + bytes(52))
        with pytest.raises(EnvironmentFault, match=r"is damaged at images.tar: l2.layer.tar"):
            check(target)

    def test_a_damaged_manifest_is_named(self, docker: Docker, tmp_path: Path) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        damage(target, b'{\n "architecture": "amd64"')
        with pytest.raises(EnvironmentFault, match=r"manifest.json: its checksum does not match"):
            read_manifest(target)

    @pytest.mark.parametrize("share", [0.0001, 0.3, 0.9])
    def test_a_file_cut_short(self, docker: Docker, tmp_path: Path, share: float) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        os.truncate(target, int(target.stat().st_size * share))
        with pytest.raises(EnvironmentFault, match="is damaged at"):
            read_manifest(target)

    def test_what_is_no_archive(self, tmp_path: Path) -> None:
        target = tmp_path / "bundle.tar"
        target.write_text("not a tar" * 1000)
        with pytest.raises(EnvironmentFault, match="damaged at its beginning"):
            read_manifest(target)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(EnvironmentFault, match="there is no file"):
            read_manifest(tmp_path / "absent.tar")

    def test_an_archive_of_a_later_format(
        self, docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "bundle.tar"
        docker.save(target)
        monkeypatch.setattr(archive, "FORMAT", 2)
        with pytest.raises(EnvironmentFault, match="format 1, this program reads 2"):
            read_manifest(target)


class TestFailedSave:
    @pytest.mark.parametrize("name", [".", "..", "/", ""])
    def test_a_folder_is_no_target(self, name: str) -> None:
        with pytest.raises(EnvironmentFault, match="is a folder"):
            check_target(Path(name))

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, tmp_path: Path) -> object:
        yield
        assert not [path for path in tmp_path.iterdir() if "bundle" in path.name]

    def test_docker_refuses(self, docker: Docker, tmp_path: Path) -> None:
        docker.says('echo "No such image: b:1" >&2; exit 1')
        with pytest.raises(EnvironmentFault, match="docker save failed: No such image: b:1"):
            docker.save(tmp_path / "bundle.tar")

    def test_docker_dies_half_way(self, docker: Docker, tmp_path: Path) -> None:
        docker.says(f'head -c 4000000 "{docker.path}"; echo "connection lost" >&2; exit 1')
        with pytest.raises(EnvironmentFault, match="connection lost"):
            docker.save(tmp_path / "bundle.tar")

    def test_docker_writes_half_and_claims_success(self, docker: Docker, tmp_path: Path) -> None:
        docker.says(f'head -c 4000000 "{docker.path}"')
        with pytest.raises(EnvironmentFault, match="no usable tar"):
            docker.save(tmp_path / "bundle.tar")

    def test_the_disk_is_full(self, docker: Docker, tmp_path: Path) -> None:
        full = tmp_path / "full"
        full.mkdir()
        (full / f".bundle.tar.{os.getpid()}").symlink_to("/dev/full")
        with pytest.raises(EnvironmentFault, match="No space left on device"):
            docker.save(full / "bundle.tar")
        assert list(full.iterdir()) == []

    def test_interrupted(self, docker: Docker, tmp_path: Path) -> None:
        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            save(
                tmp_path / "bundle.tar",
                IMAGES,
                architecture="amd64",
                left_out={},
                wheels=[],
                environ={"PATH": f"{docker.bin}:{os.environ['PATH']}"},
                progress=interrupt,
            )

    def test_an_older_archive_survives(self, docker: Docker, tmp_path: Path) -> None:
        target = tmp_path / "keep" / "images.tar"
        target.parent.mkdir()
        docker.save(target)
        docker.says("exit 1")
        with pytest.raises(EnvironmentFault):
            docker.save(target)
        check(target)
