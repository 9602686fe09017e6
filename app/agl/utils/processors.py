"""How many processors this process may really use: affinity, and the quota of its cgroups."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")

_QuotaOf = Callable[[Path], float | None]


def usable_processors(root: Path = CGROUP_ROOT, membership: Path = PROC_CGROUP) -> int:
    """Processors that can be kept busy, 1 at least; a quota of 1.5 counts as 1.

    Args:
        root: Where the cgroup file systems are mounted.
        membership: ``/proc/self/cgroup``: the cgroups of this process.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    return max(1, math.floor(min([allowed, *_quotas(root, membership)])))


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    """The quota of each cgroup above this process that has one, in processors."""
    try:
        lines = membership.read_text("ascii", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _upwards(root, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in ("cpu,cpuacct", "cpu"):
                yield from _upwards(root / mount, path, _quota_v1)


def _upwards(mount: Path, path: str, quota_of: _QuotaOf) -> Iterator[float]:
    """In a container the path may be the host's and lead nowhere: the mount itself is looked at."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        quota = quota_of(folder)
        if quota is not None:
            yield quota
        if folder == mount:
            return


def _quota_v2(folder: Path) -> float | None:
    return _ratio(*_numbers(folder / "cpu.max", 2))


def _quota_v1(folder: Path) -> float | None:
    return _ratio(
        *_numbers(folder / "cpu.cfs_quota_us", 1), *_numbers(folder / "cpu.cfs_period_us", 1)
    )


def _ratio(quota: int = 0, period: int = 0) -> float | None:
    return quota / period if quota > 0 and period > 0 else None


def _numbers(file: Path, count: int) -> list[int]:
    try:
        return [int(word) for word in file.read_text("ascii").split()][:count]
    except (OSError, ValueError):  # not there, or "max": no quota
        return []
