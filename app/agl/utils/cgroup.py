"""What this process may really use of the machine: affinity, and the limits of its cgroups."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")
_NO_LIMIT_V1 = 1 << 60
"""Version 1 says "no limit" with the largest multiple of a page."""

_LimitOf = Callable[[Path], float | None]


def usable_processors(root: Path = CGROUP_ROOT, membership: Path = PROC_CGROUP) -> int:
    """Processors that can be kept busy, 1 at least; a quota of 1.5 counts as 1.

    Args:
        root: Where the cgroup file systems are mounted.
        membership: ``/proc/self/cgroup``: the cgroups of this process.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    quotas = _limits(root, membership, ("cpu,cpuacct", "cpu"), _quota_v2, _quota_v1)
    return max(1, math.floor(min([allowed, *quotas])))


def memory_limit(root: Path = CGROUP_ROOT, membership: Path = PROC_CGROUP) -> int | None:
    """Bytes at which a cgroup above this process ends it; ``None`` when there is no limit.

    Args:
        root: Where the cgroup file systems are mounted.
        membership: ``/proc/self/cgroup``: the cgroups of this process.
    """
    limits = _limits(root, membership, ("memory",), _memory_v2, _memory_v1)
    return int(smallest) if (smallest := min(limits, default=None)) is not None else None


def _limits(
    root: Path, membership: Path, mounts: Sequence[str], of_v2: _LimitOf, of_v1: _LimitOf
) -> Iterator[float]:
    """The limit of each cgroup above this process that has one.

    Args:
        mounts: Below ``root``, where version 1 has the controller; the last is its name.
    """
    try:
        lines = membership.read_text("ascii", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _upwards(root, path, of_v2)
        elif mounts[-1] in controllers.split(","):
            for mount in mounts:
                yield from _upwards(root / mount, path, of_v1)


def _upwards(mount: Path, path: str, limit_of: _LimitOf) -> Iterator[float]:
    """In a container the path may be the host's and lead nowhere: the mount itself is looked at."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        limit = limit_of(folder)
        if limit is not None:
            yield limit
        if folder == mount:
            return


def _quota_v2(folder: Path) -> float | None:
    return _ratio(*_numbers(folder / "cpu.max", 2))


def _quota_v1(folder: Path) -> float | None:
    return _ratio(
        *_numbers(folder / "cpu.cfs_quota_us", 1), *_numbers(folder / "cpu.cfs_period_us", 1)
    )


def _memory_v2(folder: Path) -> float | None:
    return next(iter(_numbers(folder / "memory.max", 1)), None)


def _memory_v1(folder: Path) -> float | None:
    limit = next(iter(_numbers(folder / "memory.limit_in_bytes", 1)), None)
    return None if limit is None or limit >= _NO_LIMIT_V1 else limit


def _ratio(quota: int = 0, period: int = 0) -> float | None:
    return quota / period if quota > 0 and period > 0 else None


def _numbers(file: Path, count: int) -> list[int]:
    try:
        return [int(word) for word in file.read_text("ascii").split()][:count]
    except (OSError, ValueError):  # not there, or "max": no quota
        return []
