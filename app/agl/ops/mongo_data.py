"""Which MongoDB wrote a data folder, found out without opening it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

# MongoDB 8.0 has WiredTiger 11; 8.2, which agent-lightning 0.3 was run with, has 12.
WIRED_TIGER = 11
# What mongod ends with when it meets data of a version that it does not know.
NEED_DOWNGRADE = 62
_MAJOR = re.compile(r"^major=(\d+),minor=\d+", re.MULTILINE)


def check_mongo_data(folder: Path) -> None:
    """Let a folder pass that MongoDB 8.0 can open, and an empty one.

    Raises EnvironmentFault, with the commands that bring the data over, for one that a newer
    MongoDB has written.
    """
    try:
        text = (folder / "WiredTiger.turtle").read_text("ascii", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnvironmentFault(f"cannot look into MongoDB's data: {error.strerror}") from error
    written_by = _MAJOR.search(text)
    if written_by and int(written_by[1]) > WIRED_TIGER:
        raise too_new()


def too_new() -> EnvironmentFault:
    """What to do with the data of a MongoDB newer than 8.0."""
    return EnvironmentFault(
        "the data in AGL_MONGO_DATA was written by a MongoDB newer than 8.0 (agent-lightning 0.3"
        " ran 8.2), and MongoDB 8.0 cannot open it; nothing was changed",
        remedy="give AGL_MONGO_DATA another name, start the old server on its data beside the"
        " bundle (docker run --rm -p 127.0.0.1:27018:27017 -v OLD_DATA:/data/db mongo:8.2"
        " --replSet rs0), and copy: agl store migrate --from"
        " 'mongodb://127.0.0.1:27018/?directConnection=true' (docs/operating.md)",
    )
