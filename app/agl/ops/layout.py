"""Where the bundle's files are, which modes it knows, and the variables it is run with.

Uses the standard library alone and runs on Python 3.9, since the preflight needs it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault, UsageError
from agl.ops.envfile import effective

if TYPE_CHECKING:
    from collections.abc import Mapping

MODES = {
    "memory": "compose.prometheus-memory-store.yml",
    "mongo": "compose.prometheus-mongo-store.yml",
    "store": "compose.store.yml",
}
DEFAULT_MODE = "memory"
PROJECT = "agl"


@dataclass(frozen=True)
class Layout:
    """One checkout of the bundle together with the environment it is used in."""

    root: Path
    environ: Mapping[str, str]

    @property
    def compose_dir(self) -> Path:
        return self.root / "compose"

    @property
    def env_file(self) -> Path:
        """The committed file with every version, port, limit and retention."""
        return self.compose_dir / ".env"

    @property
    def images_env_file(self) -> Path:
        """The git-ignored file that ``images`` writes: local names of the images to run."""
        return self.compose_dir / ".env.images"

    @property
    def site_env_file(self) -> Path:
        """The git-ignored file with the settings of this site, if it has any."""
        return self.compose_dir / "site.env"

    @property
    def env_files(self) -> list[Path]:
        """The env files that exist, in the order in which Compose is given them."""
        files = (self.env_file, self.site_env_file, self.images_env_file)
        return [path for path in files if path.is_file()]

    @property
    def project(self) -> str:
        """Name of the Compose project; every container, network and volume is labelled with it."""
        return self.variables().get("COMPOSE_PROJECT_NAME") or PROJECT

    def compose_file(self, mode: str) -> Path:
        return self.compose_dir / MODES[check_mode(mode)]

    @property
    def overlays(self) -> list[Path]:
        """Files that ``AGL_OVERLAYS`` puts on top of the mode's own.

        Raises UsageError for a name that has no file.
        """
        names = [name.strip() for name in self.variables().get("AGL_OVERLAYS", "").split(",")]
        paths = {name: self.compose_dir / f"compose.{name}.yml" for name in names if name}
        for name, path in paths.items():
            if not re.fullmatch(r"[a-z]+", name) or not path.is_file():
                raise UsageError(f"AGL_OVERLAYS: there is no overlay {name!r} ({path.name})")
        return list(paths.values())

    def variables(self) -> dict[str, str]:
        """All variables in force: env files, then the environment over them."""
        return effective(self.env_files, self.environ)

    @property
    def external_mongo(self) -> str:
        """``AGL_MONGO_URI``: a MongoDB of the site's own, instead of the container; or empty."""
        return self.variables().get("AGL_MONGO_URI", "")

    def pinned(self) -> dict[str, str]:
        """The variables without what ``images`` wrote: the versions this site asks for."""
        return effective([self.env_file, self.site_env_file], self.environ)


def check_mode(mode: str) -> str:
    """``mode`` itself. Raises UsageError, naming the known modes, when it is not one."""
    if mode not in MODES:
        known = ", ".join(MODES)
        raise UsageError(f"unknown mode {mode!r} (known modes: {known})")
    return mode


def find_layout(environ: Mapping[str, str], start: Path | None = None) -> Layout:
    """The checkout this package runs from, or the one around ``start`` (default: current folder).

    Raises EnvironmentFault when neither has a ``compose`` folder with an ``.env`` in it.
    """
    package_root = Path(__file__).resolve().parents[3]
    here = (start or Path.cwd()).resolve()
    for candidate in (package_root, here, *here.parents):
        if (candidate / "compose" / ".env").is_file():
            return Layout(candidate, environ)
    raise EnvironmentFault(
        f"no bundle here: neither {package_root} nor {here} has compose/.env",
        remedy="run it from a clone of the repository",
    )


def give_to_owner(path: Path) -> None:
    """Under sudo, hand a file we wrote to whoever owns the folder it lies in."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
