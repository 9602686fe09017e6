"""Processors that may be used: affinity, and quotas of both kinds of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agl.utils.cgroup import memory_limit, usable_processors


def cgroups(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        file = root / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    own = root / "cgroup"
    own.write_text(membership)
    return root / "fs", own


V2 = "0::/system.slice/agl\n"
V1 = "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        (V2, {}, 8),
        (V2, {"system.slice/agl/cpu.max": "max 100000"}, 8),
        (V2, {"system.slice/agl/cpu.max": "300000 100000"}, 3),
        (V2, {"system.slice/agl/cpu.max": "390000 100000"}, 3),
        (V2, {"system.slice/agl/cpu.max": "50000 100000"}, 1),
        (V2, {"system.slice/agl/cpu.max": "nonsense"}, 8),
        (V2, {"system.slice/cpu.max": "200000 100000", "system.slice/agl/cpu.max": "max 1"}, 2),
        (V2, {"system.slice/agl/cpu.max": "1600000 100000"}, 8),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/../../host/path\n", {"cpu.max": "400000 100000"}, 4),
        (
            V1,
            {
                "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000",
                "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "500000", "cpu/cpu.cfs_period_us": "100000"}, 5),
        (
            V1,
            {
                "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
            },
            8,
        ),
    ],
)
def test_the_smallest_of_affinity_and_quotas(
    membership: str,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_processors(*cgroups(tmp_path, membership, files)) == expected


def test_without_cgroups(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        (V2, {}, None),
        (V2, {"system.slice/agl/memory.max": "max"}, None),
        (V2, {"system.slice/agl/memory.max": "4294967296"}, 4 << 30),
        (V2, {"system.slice/memory.max": "1000", "system.slice/agl/memory.max": "2000"}, 1000),
        ("0::/../../host/path\n", {"memory.max": "512"}, 512),
        (V1, {"memory/docker/x/memory.limit_in_bytes": "4294967296"}, 4 << 30),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_smallest_memory_limit_of_all_cgroups(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int | None
) -> None:
    assert memory_limit(*cgroups(tmp_path, membership, files)) == expected
