"""Making an archive: blocks of the window, dashboards, results, and the manifest before them."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from agl.bench.archive.manifest import (
    DASHBOARDS,
    DATA,
    NAME,
    RESULTS,
    Manifest,
    Run,
    member_of,
)
from agl.bench.archive.snapshot import Block, Data, build_info, taken
from agl.bench.results import Result
from agl.errors import EnvironmentFault, UsageError
from agl.utils.whole_file import whole_file

SKEW_SECONDS = 1.0
MARGIN_SECONDS = 60.0
"""What is kept before the first and after the last run."""


@dataclass(frozen=True)
class Wanted:
    """What goes into an archive.

    Attributes:
        results: Files, and what was read from them.
        window: Start and end in seconds since the epoch; ``None``: that of the results, or all.
        clock_ahead: By how much Prometheus' clock is ahead of ours.
    """

    prometheus: str
    data: Data
    output: Path
    dashboards: Path
    results: Sequence[tuple[Path, Result]] = ()
    window: tuple[float, float] | None = None
    clock_ahead: float = 0.0
    images: Mapping[str, str] | None = None


def write(wanted: Wanted) -> Manifest:
    """Write the archive; it appears only when it is complete.

    Raises:
        UsageError: a result tells times that cannot be.
        EnvironmentFault: no snapshot, no samples in the window, or the file cannot be written.
    """
    target = wanted.output
    try:
        with (
            tempfile.TemporaryDirectory(prefix="agl-archive-", dir=target.parent) as scratch,
            whole_file(target) as partial,
        ):
            stage = Path(scratch)
            manifest = _stage(stage, wanted, wanted.results)
            pack(partial, stage, manifest)
    except OSError as error:
        raise EnvironmentFault(
            f"{target} cannot be written: {error.strerror or error}",
            remedy="check the folder and its free space (df -h)",
        ) from error
    return manifest


def _stage(stage: Path, wanted: Wanted, results: Sequence[tuple[Path, Result]]) -> Manifest:
    snapshot = stage / "snapshot"
    snapshot.mkdir()
    version = build_info(wanted.prometheus)
    with taken(wanted.prometheus, wanted.data, snapshot) as blocks:
        start, end = _window(wanted, [result for _, result in results], blocks)
        kept = [block for block in blocks if block.end >= start and block.start <= end]
        if not kept:
            raise EnvironmentFault(
                f"Prometheus has no samples between {start:.0f} and {end:.0f} (epoch seconds)",
                remedy="choose another --start and --end",
            )
        for block in kept:
            shutil.move(block.folder, stage / DATA / block.folder.name)
    shutil.rmtree(snapshot)
    (stage / DASHBOARDS).mkdir()
    for board in sorted(wanted.dashboards.glob("*.json")):
        shutil.copyfile(board, stage / DASHBOARDS / board.name)
    runs = _results(stage, results)
    return Manifest(
        made=time.time(),
        start=start,
        end=end,
        clock_ahead=wanted.clock_ahead,
        prometheus=version,
        images=dict(wanted.images or {}),
        runs=tuple(runs),
        problems=tuple(_problems(wanted, runs, kept)),
        members={
            str(path.relative_to(stage)): member_of(path)
            for path in sorted(stage.rglob("*"))
            if path.is_file()
        },
    )


def _window(
    wanted: Wanted, results: Sequence[Result], blocks: Sequence[Block]
) -> tuple[float, float]:
    if wanted.window is not None:
        return wanted.window
    if results:
        margin = MARGIN_SECONDS + abs(wanted.clock_ahead)
        return min(r.started for r in results) - margin, max(r.ended for r in results) + margin
    if not blocks:
        raise EnvironmentFault("Prometheus has no samples at all")
    return blocks[0].start, max(block.end for block in blocks)


def _results(stage: Path, results: Sequence[tuple[Path, Result]]) -> list[Run]:
    folder = stage / RESULTS
    folder.mkdir()
    runs: list[Run] = []
    for number, (path, result) in enumerate(results, start=1):
        file = f"{RESULTS}/{number:02d}-{result.kind}.json"
        shutil.copyfile(path, stage / file)
        try:
            run = Run(
                kind=result.kind,
                name=result.name,
                started=result.started,
                ended=result.ended,
                partial=result.partial,
                file=file,
            )
        except ValidationError as error:
            raise UsageError(
                f"{path}: started, ended: {error.errors()[0]['msg']}; leave it out of --results"
            ) from None
        runs.append(run)
    return runs


def _problems(wanted: Wanted, runs: Sequence[Run], kept: Sequence[Block]) -> list[str]:
    found: list[str] = []
    ahead = wanted.clock_ahead
    if abs(ahead) > SKEW_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        found.append(
            f"Prometheus' clock is {abs(ahead):.1f} s {side} this machine's: samples lie that much"
            " beside the results"
        )
    loads = sorted((run for run in runs if run.is_load), key=lambda run: run.started)
    for first, second in pairwise(loads):
        if second.started < first.ended:
            found.append(
                f"{first.kind} {first.name} and {second.kind} {second.name} ran at the same time:"
                " what Prometheus recorded is of both"
            )
    low, high = min(block.start for block in kept), max(block.end for block in kept)
    found += [
        f"{run.kind} {run.name} lies outside of what Prometheus has samples of"
        for run in runs
        if run.ended + ahead < low or run.started + ahead > high
    ]
    found += [f"{run.kind} {run.name} is partial: {run.partial}" for run in runs if run.partial]
    return found


def pack(target: Path, stage: Path, manifest: Manifest) -> None:
    """Write what a folder holds; the manifest first, so that a reader knows what must follow."""
    text = manifest.model_dump_json(indent=1).encode()
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        archive.addfile(_header(NAME, len(text), manifest.made), io.BytesIO(text))
        for name, member in manifest.members.items():
            with (stage / name).open("rb") as file:
                archive.addfile(_header(name, member.size, manifest.made), file)


def _header(name: str, size: int, made: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o644, int(made)
    return header


def images_of(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The images among the bundle's variables."""
    return {name: value for name, value in variables if name.endswith("_IMAGE")}
