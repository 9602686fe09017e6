"""``images save`` and ``images load``: the bundle's images into one archive and out of it."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops import archive, wheels
from agl.ops.choices import LEFT_OUT, SLOTS, Choice, Choices, profiles_without, write_choices
from agl.ops.console import Console
from agl.ops.engine import Engine
from agl.ops.images import left_out_line, nofile
from agl.ops.layout import Layout, give_to_owner
from agl.ops.preflight import ARCHITECTURES


@dataclass(frozen=True)
class Transport:
    """Moves the images of one machine's bundle through a file."""

    layout: Layout
    engine: Engine
    console: Console

    def save(self, target: Path, choices: Choices, pythons: Sequence[str]) -> None:
        """Write the archive of ``choices`` to ``target``, with the scripts' packages for each
        version of ``pythons``. Raises EnvironmentFault."""
        with tempfile.TemporaryDirectory() as folder:
            packages = self._wheels(Path(folder), pythons)
            with self.console.step(f"saving {len(choices.present)} images to {target}") as progress:
                manifest = archive.save(
                    target,
                    [self._described(choice) for choice in choices.present],
                    architecture=architecture(),
                    left_out={c.slot.variable: c.pinned for c in choices.of(LEFT_OUT)},
                    wheels=packages,
                    environ=self.layout.environ,
                    progress=lambda size: progress.update([megabytes(size // 10**8 * 10**8)]),
                )
                total = megabytes(target.stat().st_size)
                progress.conclude(f"saved {len(manifest.images)} images to {target}: {total}")
        give_to_owner(target)
        for image in manifest.images:
            self.console.line(f"      {image.name:<36} {megabytes(image.size):>9}  {image.origin}")
        for choice in choices.of(LEFT_OUT):
            self.console.mark("warn", left_out_line(choice))

    def load(self, source: Path) -> Choices:
        """Have every image of the archive, and write the env file that names them.

        Images that are here already are not loaded again. Raises EnvironmentFault before Docker
        is given anything when the archive is damaged or made for another architecture.
        """
        manifest = archive.read_manifest(source)
        if manifest.architecture != architecture():
            raise EnvironmentFault(
                f"{source} holds images for {manifest.architecture}, this machine is"
                f" {architecture()}",
                remedy="make the archive on a machine of the same architecture",
            )
        if all(map(self._is_here, manifest.images)):
            self.console.mark("ok", f"every image of {source} is here already")
        else:
            self._load(source, manifest)
        choices = self._choices(manifest)
        write_choices(self.layout, choices)
        for choice in choices.of(LEFT_OUT):
            self.console.mark("warn", left_out_line(choice))
        return choices

    def _load(self, source: Path, manifest: archive.Manifest) -> None:
        total = manifest.payload.size
        with self.console.step(f"checking {source}") as progress:
            archive.verify(source, manifest, _share(progress.update, total))
            progress.conclude(f"checked {source}: {megabytes(total)} of images, checksums match")
        with self.console.step(f"loading {len(manifest.images)} images") as progress:
            self.engine.load(archive.payload_chunks(source, manifest))
            for image in manifest.images:
                if not self._is_here(image):
                    raise EnvironmentFault(f"Docker loaded {image.name}, but not as it was saved")
            progress.conclude(f"loaded {len(manifest.images)} images")

    def _is_here(self, image: archive.ArchivedImage) -> bool:
        found = self.engine.image(image.name)
        return found is not None and found.layers == image.layers

    def _described(self, choice: Choice) -> archive.ArchivedImage:
        image = self.engine.image(choice.name)
        if image is None:
            raise EnvironmentFault(f"the image {choice.name} is gone", remedy="run scripts/images")
        return archive.ArchivedImage(
            variable=choice.slot.variable,
            pinned=choice.pinned,
            name=choice.name,
            origin=choice.origin,
            id=image.id,
            size=image.size,
            layers=image.layers,
        )

    def _choices(self, manifest: archive.Manifest) -> Choices:
        filled = [
            Choice(SLOTS[image.variable], image.pinned, image.name, image.origin)
            for image in manifest.images
        ]
        missing = [
            Choice(SLOTS[variable], pinned, "", LEFT_OUT)
            for variable, pinned in manifest.left_out.items()
        ]
        return Choices(
            choices=(*filled, *missing),
            profiles=profiles_without(self.layout.pinned(), [choice.slot for choice in missing]),
            nofile=nofile(self.layout),
        )

    def _wheels(self, folder: Path, pythons: Sequence[str]) -> list[Path]:
        """The packages of the host's lock, so that the scripts need no package index either."""
        lock = self.layout.root / "locks" / "host.txt"
        with self.console.step("collecting the Python packages of the scripts") as progress:
            found = wheels.collect(lock, folder, pythons, self.layout.environ)
            progress.conclude(
                f"collected {len(found)} Python packages of the scripts"
                f" (Python {', '.join(pythons)})"
            )
        if not found:
            self.console.mark(
                "warn",
                "no Python package index answers: the other machine has to reach one itself",
            )
        return found


def check_target(target: Path) -> None:
    """Raises EnvironmentFault when no file can be made there, before anything takes time."""
    if target.is_dir():
        raise EnvironmentFault(f"{target} is a folder", remedy="name a file to write")
    if not target.parent.is_dir():
        raise EnvironmentFault(f"there is no folder {target.parent}", remedy="create it first")


def architecture() -> str:
    """Docker's name of this machine's architecture."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _share(show: Callable[[list[str]], None], total: int) -> Callable[[int], None]:
    return lambda done: show([f"{done * 100 // max(total, 1) // 25 * 25} %"])
