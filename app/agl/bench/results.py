"""The document that every measurement leaves, and that comparing, archives and reports read."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl import __version__
from agl.errors import UsageError
from agl.utils.whole_file import whole_file

Better = Literal["higher", "lower", "neither"]

INTERRUPTED = "interrupted"
"""How ``partial`` begins when somebody ended the run (Ctrl-C, SIGTERM)."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Figure(_Document):
    """One measured quantity: a sample a round, in ``unit`` (``1/s``, ``s``, ``bytes``, ``ratio``,
    ``share`` (of 1), ``count`` or ``instructions``)."""

    name: str
    unit: str
    better: Better
    samples: tuple[float, ...] = Field(min_length=1)

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)


class Machine(_Document):
    """What the measurement ran on; ``memory`` in bytes, ``load`` the 1-minute average at its
    start."""

    system: str
    processor: str
    cores: int
    memory: int
    python: str
    load: float

    @classmethod
    def here(cls) -> Machine:
        """Return the facts of this machine."""
        return cls(
            system=platform.platform(),
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            python=platform.python_version(),
            load=os.getloadavg()[0],
        )


class Result(_Document):
    """One run of one measurement.

    ``started`` and ``ended`` are seconds since the epoch. ``partial`` says why a run was cut short;
    its figures then cover what was done until there. ``problems`` are reasons to distrust it.
    """

    format: Literal["agl-bench/1"] = "agl-bench/1"
    kind: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    """Which measurement: ``scenario``, ``micro``, ``collection``, ``load``, ``pair``, …"""

    name: str
    """Which preset or mode of it."""

    parameters: dict[str, Any]
    figures: tuple[Figure, ...]
    started: float
    ended: float
    partial: str | None = None
    problems: tuple[str, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What only this kind of measurement has to tell."""

    version: str = __version__
    machine: Machine = Field(default_factory=Machine.here)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end without a problem."""
        return self.partial is None and not self.problems

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it before its time."""
        return (self.partial or "").startswith(INTERRUPTED)

    def figure(self, name: str) -> Figure | None:
        """Return the figure of that name, or None."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def write(self, path: Path) -> None:
        """Write the document as JSON; a reader never finds half of one."""
        with whole_file(path) as partial:
            partial.write_text(self.model_dump_json(indent=2) + "\n", "utf-8")


def read_result(path: Path) -> Result:
    """Read a document that :meth:`Result.write` wrote.

    Raises:
        UsageError: the file cannot be read, or is no such document; names file and field.
    """
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            raise UsageError(
                f"{path}: format {first['input']!r} is none that this version reads; use the one"
                " that wrote it"
            ) from None
        field = ".".join(map(str, first["loc"])) or "the document"
        raise UsageError(
            f"{path}: {field}: {first['msg']}; give a file that agl bench wrote with --json"
        ) from None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
