"""Building images from their folder's ``Dockerfile``, and knowing when there is no need to."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops.console import Console, can_ask
from agl.ops.docker_install import apt
from agl.ops.engine import Engine, PullError
from agl.ops.layout import Layout

CONTENT_LABEL = "agl-stack.content"
DEFAULT_BASE = "debian:trixie-slim"
DEBOOTSTRAP = ("debootstrap", "debian-archive-keyring")
SHARED_SOURCES = ("images/apt-install.sh",)
STORE_SOURCES = (
    "app/agl",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "locks/store.txt",
    "locks/build.txt",
)
LAB_SOURCES = ("images/store/pip.sh", "locks/lab.txt")
# What a build takes from outside its own folder, by folder.
OTHER_SOURCES = {
    "images/store": STORE_SOURCES,
    "tests/lab/mongod": LAB_SOURCES,
}
BUILD_ARGUMENTS = {
    "APT_MIRROR": "AGL_APT_MIRROR",
    "APT_SECURITY_MIRROR": "AGL_APT_SECURITY_MIRROR",
    "PIP_INDEX_URL": "AGL_PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL": "AGL_PIP_EXTRA_INDEX_URL",
}
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
_MOUNT = re.compile(r"--mount=\S+")
_STAGE = re.compile(r"^#\d+ (\[[^\]]*\d+/\d+\] .*)$")


@dataclass(frozen=True)
class Builder:
    """Builds with one machine's base image, mirrors and certificates."""

    layout: Layout
    engine: Engine
    console: Console
    yes: bool = False

    def ensure(
        self, folder: str, name: str, more_arguments: Mapping[str, str] | None = None
    ) -> bool:
        """Have ``name`` built from ``folder``; False when it was there and current.

        ``folder`` is relative to the repository. ``more_arguments`` name images that the build
        starts from, by build argument. Raises EnvironmentFault when the build fails, after
        printing its last lines.
        """
        variables = self.layout.pinned()
        base = variables.get("AGL_BASE_IMAGE") or DEFAULT_BASE
        self.ensure_base(base)
        arguments = {"BASE_IMAGE": base}
        for argument, variable in BUILD_ARGUMENTS.items():
            if variables.get(variable):
                arguments[argument] = variables[variable]
        arguments.update(more_arguments or {})
        bases = [self.engine.image(name) for name in (base, *(more_arguments or {}).values())]
        base_ids = " ".join(image.id for image in bases if image)
        content = content_sum(self.layout.root, folder, arguments, base_ids)
        if self.is_current(name, content):
            return False
        with self.console.step(f"building {name}") as progress:
            self._build(folder, name, arguments, content, progress.update)
            progress.conclude(f"built {name}")
        return True

    def is_current(self, name: str, content: str) -> bool:
        image = self.engine.image(name)
        return image is not None and image.labels.get(CONTENT_LABEL) == content

    def ensure_base(self, base: str) -> None:
        """Have the base image: local, else pulled, else made from Debian packages."""
        if self.engine.image(base):
            return
        try:
            with self.console.step(f"pulling {base}") as progress:
                self.engine.pull(base, lambda line: progress.update([line]))
                progress.conclude(f"pulled {base}")
                return
        except PullError as error:
            if error.answered or base != DEFAULT_BASE:
                raise EnvironmentFault(
                    f"the base image {base} could not be pulled: {error}",
                    remedy="check AGL_BASE_IMAGE in compose/.env",
                ) from error
        self._have_debootstrap(base)
        with self.console.step(f"making {base} from Debian packages") as progress:
            command = [str(self.layout.root / "images" / "base" / "build.sh"), "--tag", base]
            run_shown(command, self.layout.environ, progress.update, "the base image")

    def _have_debootstrap(self, base: str) -> None:
        """Install what ``images/base/build.sh`` needs, after consent. Raises EnvironmentFault."""
        environ = self.layout.environ
        if shutil.which("debootstrap", path=f"{environ.get('PATH', '')}:/usr/sbin:/sbin"):
            return
        what = f"{DEBOOTSTRAP[0]} is needed to make {base}, since no registry answers"
        agreed = self.yes or (can_ask() and self.console.ask(f"{what}. Install it now?"))
        if not agreed:
            remedy = f"run it again with --yes, or type: sudo apt-get install {DEBOOTSTRAP[0]}"
            raise EnvironmentFault(what, remedy=remedy)
        with self.console.step(f"installing {DEBOOTSTRAP[0]}") as progress:
            apt(["update"], environ, lambda line: progress.update([line]))
            apt(["install", *DEBOOTSTRAP], environ, lambda line: progress.update([line]))

    def _build(
        self,
        folder: str,
        name: str,
        arguments: Mapping[str, str],
        content: str,
        show: Callable[[list[str]], None],
    ) -> None:
        root = self.layout.root
        command = ["docker", "build", "--progress", "plain", "--tag", name]
        command += ["--file", str(root / folder / "Dockerfile")]
        command += ["--label", f"{CONTENT_LABEL}={content}"]
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        bundle = ca_bundle(self.layout)
        if bundle:
            command += ["--secret", f"id=ca_bundle,src={bundle}"]
        environ = {**self.layout.environ, "DOCKER_BUILDKIT": "1"}
        run_shown([*command, str(root)], environ, show, f"the build of {name}")


def ca_bundle(layout: Layout) -> str:
    """File of certificates to trust while building; an empty string when there is none to give.

    ``AGL_CA_BUNDLE`` first (relative to ``compose/``, as Compose reads it), then what this
    machine's own programs are told to trust.
    """
    variables = layout.pinned()
    own = variables.get("AGL_CA_BUNDLE", "")
    candidates = [layout.compose_dir / own] if own else []
    candidates += [Path(variables[name]) for name in CA_VARIABLES if variables.get(name)]
    for path in candidates:
        if path.is_file() and path.stat().st_size > 0:
            return str(path.resolve())
    if own and not candidates[0].is_file():
        raise EnvironmentFault(
            f"AGL_CA_BUNDLE names {own}, which is not there",
            remedy="give the path of a PEM file, absolute or from the compose folder",
        )
    return ""


def content_sum(root: Path, folder: str, arguments: Mapping[str, str], base_ids: str) -> str:
    """Checksum of everything that an image is built from."""
    digest = hashlib.sha256()
    for text in (base_ids, *(f"{key}={value}" for key, value in sorted(arguments.items()))):
        digest.update(text.encode() + b"\0")
    sources = [folder, *SHARED_SOURCES, *OTHER_SOURCES.get(folder, ())]
    for path in _files(root, sources):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(root: Path, sources: Iterable[str]) -> Iterator[Path]:
    for source in sources:
        path = root / source
        if path.is_dir():
            inside = (item for item in sorted(path.rglob("*")) if item.is_file())
            yield from (item for item in inside if "__pycache__" not in item.parts)
        else:
            yield path


def run_shown(
    command: list[str],
    environ: Mapping[str, str],
    show: Callable[[list[str]], None],
    what: str,
) -> None:
    """Run a long command, showing the stage it is at. Raises EnvironmentFault when it fails."""
    last: deque[str] = deque(maxlen=20)
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with process:
        for line in process.stdout or ():
            last.append(line.rstrip())
            stage = _STAGE.match(line) or re.match(r"^(base image: .*)$", line)
            if stage:
                show([" ".join(_MOUNT.sub("", stage[1]).split())[:90]])
    if process.returncode != 0:
        print("\n".join(f"      {line}" for line in last), file=sys.stderr)
        reason = re.sub(r"\[/bin/sh -c .*\]: ?", "", last[-1] if last else "")[:200]
        raise EnvironmentFault(
            f"{what} failed (its last lines are above): {reason}",
            remedy="for mirrors, proxies and certificates see the last part of compose/.env",
        )
