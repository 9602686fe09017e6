"""``backup`` and ``restore``: what a bundle on MongoDB holds, into one file and out of it.

MongoDB's own ``mongodump`` is used where the container has it, else our own reader of the database,
which also works with a MongoDB elsewhere. Which of them made a file shows in its first bytes.
"""

from __future__ import annotations

import gzip
import subprocess
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agl.errors import EnvironmentFault
from agl.ops.choices import remember
from agl.ops.compose import Compose, cause, last_line
from agl.ops.console import Console
from agl.ops.engine import Container, Engine
from agl.ops.layout import Layout, give_to_owner
from agl.ops.view import as_running, running_mode
from agl.utils.whole_file import whole_file

MODE = "mongo"
MONGODUMP, DRIVER = "mongodump", "driver"
METHODS = (MONGODUMP, DRIVER)
# Beginning of an archive of mongodump, inside the gzip around it.
MONGODUMP_MAGIC = bytes.fromhex("6de29981")
RESTORE_MEMORY = "1g"

# The password goes from its file into one that the tool reads: it shows in no list of processes.
_TOOL = """
umask 077
config=$(mktemp)
trap 'rm -f "$config"' EXIT
password=$(sed 's/[\\\\"]/\\\\&/g' /run/agl/secrets/mongo-root-password)
printf 'password: "%s"\\n' "$password" >"$config"
tool=$1
shift
"$tool" --config="$config" --username=root --authenticationDatabase=admin --quiet "$@"
"""


@dataclass(frozen=True)
class Bundle:
    """The running bundle whose data is meant."""

    layout: Layout
    console: Console
    compose: Compose
    containers: tuple[Container, ...]

    @property
    def database(self) -> str:
        return self.layout.variables().get("AGL_MONGO_DATABASE") or "agentlightning"

    @property
    def mongo(self) -> Container | None:
        """The container of MongoDB, when it runs in this bundle."""
        return next((c for c in self.containers if c.service == "mongo" and c.running), None)

    @property
    def stores(self) -> list[Container]:
        return [c for c in self.containers if c.service == "app" and c.running]

    def has_tools(self) -> bool:
        """Whether MongoDB's container has MongoDB's own tools."""
        if self.mongo is None:
            return False
        command = ["docker", "exec", self.mongo.id, "sh", "-c", "command -v mongodump mongorestore"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def own(self, program: str, *arguments: str) -> list[str]:
        """The command line of one of our programs, with the store's access to MongoDB."""
        return self.compose.command(*self.compose.program(program, *arguments))

    def tool(self, name: str, *arguments: str) -> list[str]:
        """The command line of one of MongoDB's tools, in MongoDB's container."""
        if self.mongo is None:
            raise EnvironmentFault("MongoDB does not run in this bundle", remedy="--method driver")
        inside = ("sh", "-euc", _TOOL, "sh", name, *arguments)
        return ["docker", "exec", "--interactive", self.mongo.id, *inside]


def find_bundle(layout: Layout, console: Console) -> Bundle:
    """The bundle that runs on MongoDB. Raises EnvironmentFault when there is none."""
    engine = Engine.connect(layout)
    containers = engine.containers()
    if running_mode(containers) != MODE or not any(c.running for c in containers):
        raise EnvironmentFault(
            f"no bundle on MongoDB is running as {layout.project!r}",
            remedy="start it: scripts/up mongo",
        )
    names = {**remember(layout).names, **as_running(containers)}
    return Bundle(layout, console, Compose(layout, MODE, names), tuple(containers))


def backup(bundle: Bundle, target: Path, *, method: str = "", snapshot: bool = True) -> None:
    """Write everything to ``target``, which appears only when it is complete.

    Raises EnvironmentFault.
    """
    chosen = method or (MONGODUMP if bundle.has_tools() else DRIVER)
    if chosen == MONGODUMP:
        command = bundle.tool(MONGODUMP, f"--db={bundle.database}", "--archive", "--gzip")
    else:
        command = bundle.own("mongo-dump", *(() if snapshot else ("--no-snapshot",)))
    try:
        with bundle.console.step(f"backing up to {target} ({chosen})") as progress:
            with whole_file(target) as partial, partial.open("wb") as file:
                partial.chmod(0o600)
                told = _run(bundle, command, stdout=file)
            give_to_owner(target)
            size = target.stat().st_size / 1e6
            progress.conclude(f"{told or 'backed up'} to {target}, {size:.1f} MB ({chosen})")
    except OSError as error:
        raise EnvironmentFault(
            f"{target} cannot be written: {error.strerror}", remedy="name another file"
        ) from error


def restore(bundle: Bundle, source: Path, *, replace: bool) -> None:
    """Make the database what ``source`` holds; the store is stopped meanwhile.

    Raises EnvironmentFault, also when the database holds rollouts and ``replace`` is not said.
    """
    method = method_of(source)
    check_whole(source)
    flags = ("--replace",) if replace else ()
    check = bundle.own("mongo-load", "--check", *flags)
    _run(bundle, check)  # without stopping a store for nothing
    with (
        stopped(bundle),
        bundle.console.step(f"restoring {source} ({method})") as progress,
        source.open("rb") as file,
    ):
        if method == DRIVER:
            command = bundle.own("mongo-load", *flags)
        else:
            _run(bundle, check)
            include = f"--nsInclude={bundle.database}.*"
            command = bundle.tool("mongorestore", include, "--archive", "--gzip", "--drop")
        told = _run(bundle, command, stdin=file)
        progress.conclude(f"{told or 'restored'} from {source}")


def method_of(source: Path) -> str:
    """What made a file. Raises EnvironmentFault when it is no backup."""
    try:
        with gzip.open(source, "rb") as file:
            begin = file.read(32)
    except FileNotFoundError:
        raise EnvironmentFault(f"there is no file {source}") from None
    except (OSError, EOFError) as error:
        raise EnvironmentFault(f"{source} is no backup, or damaged: {error}") from error
    if begin.startswith(MONGODUMP_MAGIC):
        return MONGODUMP
    if begin.startswith(b'{"magic": "agl-mongo-dump"'):
        return DRIVER
    raise EnvironmentFault(f"{source} is no backup that scripts/backup has made")


def check_whole(source: Path) -> None:
    """Read a backup to its end, so that nothing is changed for one that is damaged.

    Raises EnvironmentFault.
    """
    try:
        with gzip.open(source, "rb") as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise EnvironmentFault(
            f"{source} is damaged: {error}", remedy="nothing was changed; take another backup"
        ) from error


@contextmanager
def stopped(bundle: Bundle) -> Generator[None]:
    """Without a store that writes; those that ran are started again, whatever happens."""
    names = [container.name for container in bundle.stores]
    if names:
        with bundle.console.step("stopping the store") as progress:
            _run(bundle, ["docker", "stop", *names])
            progress.conclude("stopped the store")
    try:
        yield
    finally:
        if names:
            with bundle.console.step("starting the store") as progress:
                _run(bundle, ["docker", "start", *names])
                progress.conclude("started the store")


def _run(
    bundle: Bundle,
    command: list[str],
    *,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
) -> str:
    """Run a command; the last line it says. Raises EnvironmentFault with it when it fails."""
    done = subprocess.run(
        command,
        env=bundle.compose.environ(),
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    said = last_line(done.stderr.decode(errors="replace"))
    if done.returncode != 0:
        raise EnvironmentFault(cause(said))
    return said if done.stderr.strip() else ""
