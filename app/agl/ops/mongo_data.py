"""Which MongoDB wrote a data folder, found out without opening it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

# MongoDB 8.0 has WiredTiger 11; 8.2, which agent-lightning 0.3 was run with, has 12.
WIRED_TIGER = 11
# What mongod ends with when it meets data of a version that it does not know.
NEED_DOWNGRADE = 62
OLD_IMAGE = "mongo:8.2"
_MAJOR = re.compile(r"^major=(\d+),minor=\d+", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """Where the bundle of a project keeps MongoDB's data: a volume of its own, or a folder.

    Attributes:
        data: As ``AGL_MONGO_DATA`` says.
        project: Name of the Compose project.
    """

    data: str = "mongo-data"
    project: str = "agl"

    @property
    def fresh(self) -> str:
        """How MongoDB is given another place that is empty."""
        if self.data != Source.data:
            return f"set AGL_MONGO_DATA={Source.data}"
        return (
            "set AGL_MONGO_DATA=/srv/agl-mongo and type"
            " sudo install -d -o 999 -g 999 -m 0700 /srv/agl-mongo"
        )

    @property
    def commands(self) -> tuple[str, ...]:
        """What brings the data into that place: one after the other, each when the last went well.

        Data of 0.3 calls its replica set's only member ``mongo``, which here is the new server;
        a server that does not find itself in its set cannot be read.
        """
        volume = self.data if self.data.startswith("/") else f"{self.project}_{self.data}"
        mount = shlex.quote(f"{volume}:/data/db")
        return (
            "./scripts/up mongo",
            f"docker run -d --rm --name old-mongo --network {self.project}_default"
            f" --add-host mongo:127.0.0.1 -v {mount} {OLD_IMAGE} --replSet rs0",
            f"docker exec {self.project}-app-1 agl store migrate"
            " --from 'mongodb://old-mongo/?directConnection=true'",
            "docker stop old-mongo",
        )


def check_mongo_data(folder: Path, source: Source) -> None:
    """Let a folder pass that MongoDB 8.0 can open, and an empty one.

    Args:
        folder: Where it is seen from here.
        source: Where the bundle has it from.

    Raises:
        EnvironmentFault: A newer MongoDB has written it; names the commands that bring it over.
    """
    try:
        text = (folder / "WiredTiger.turtle").read_text("ascii", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnvironmentFault(f"cannot look into MongoDB's data: {error.strerror}") from error
    written_by = _MAJOR.search(text)
    if written_by and int(written_by[1]) > WIRED_TIGER:
        raise too_new(source)


def too_new(source: Source) -> EnvironmentFault:
    """What to do with the data of a MongoDB newer than 8.0."""
    return EnvironmentFault(
        f"the data in AGL_MONGO_DATA={source.data} was written by a MongoDB newer than 8.0"
        " (agent-lightning 0.3 ran 8.2), and MongoDB 8.0 cannot open it; nothing was changed",
        remedy=f"{source.fresh}, then copy the data over (docs/operating.md): "
        + " && ".join(source.commands),
    )
