"""What an archive holds, in its first member; everything else is checked against it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agl import __version__
from agl.bench.results import Machine

NAME = "manifest.json"
DERIVED = ("analysis", "comparison", "model", "cost")
"""Kinds of results that put no load on a store while they are made."""

DATA, DASHBOARDS, RESULTS = "data", "dashboards", "results"
_MEMBER = re.compile(
    rf"{DATA}/[0-9A-Z]{{26}}/(meta\.json|index|tombstones|chunks/\d{{6}})"
    rf"|{DASHBOARDS}/[\w-][\w.-]*\.json|{RESULTS}/[\w-][\w.-]*\.json"
)
_CHUNK = 1 << 20
LONGEST_RUN = 366 * 86400.0
"""Seconds; each is a mark on the dashboards, of a sample every few seconds."""

Moment = Annotated[float, Field(ge=0, le=253402300799)]
"""Seconds since the epoch, up to the year 9999."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Member(_Part):
    """A file of the archive."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Run(_Part):
    """A result that is in the archive, for a mark on the dashboards."""

    kind: str
    name: str
    started: Moment
    ended: Moment
    partial: str | None = None
    file: str

    @model_validator(mode="after")
    def _is_no_endless_run(self) -> Run:
        if not 0 <= self.ended - self.started <= LONGEST_RUN:
            raise ValueError("ended before it started, or more than 366 days later")
        return self

    @property
    def is_load(self) -> bool:
        """Whether a store was at work for it."""
        return self.kind not in DERIVED


class Manifest(_Part):
    """``start`` and ``end`` are the window in seconds since the epoch; ``problems`` are reasons to
    distrust what is here."""

    format: Literal["agl-bench-archive/1"] = "agl-bench-archive/1"
    made: Moment
    start: Moment
    end: Moment
    clock_ahead: float = Field(ge=-LONGEST_RUN, le=LONGEST_RUN)
    """By how many seconds Prometheus' clock was ahead of the clock of whoever made this."""

    prometheus: dict[str, str]
    """Its own words on its version."""

    images: dict[str, str] = Field(default_factory=dict[str, str])
    """The images of the bundle, by their variables in ``compose/.env``."""

    version: str = __version__
    machine: Machine = Field(default_factory=Machine.here)
    runs: tuple[Run, ...] = ()
    problems: tuple[str, ...] = ()
    members: dict[str, Member]

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members.values())


def is_member(name: str) -> bool:
    """Whether a name may be in an archive: none leads out of its folder."""
    return _MEMBER.fullmatch(name) is not None


def member_of(path: Path) -> Member:
    """The facts of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        return Member(size=file.tell(), sha256=digest.hexdigest())
