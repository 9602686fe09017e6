"""What the bundle on MongoDB needs beyond the other: looked at by the preflight.

Uses the standard library alone and runs on Python 3.9.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Finding = tuple[str, str, str, str]
    """Name, status (ok, warn, fail), what was found, the fix."""

MONGO_MEMORY = (("AGL_MONGO_MEMORY", "4g"), ("AGL_MONGODB_EXPORTER_MEMORY", "256m"))
MONGO_UID = 999
SMALLEST_CACHE = 0.25
_BESIDE_CACHE = 0.5
MOST_WORKERS = 512
"""As ``agl.config`` has it."""

CPU_FLAG = {"x86_64": "avx", "aarch64": "atomics"}
_URI = re.compile(r"mongodb(\+srv)?://\S+")
_LOOPBACK = re.compile(r"(//|@|,)(localhost|127\.[0-9.]+|\[::1\])([:/,?]|$)")
_BAD_IN_DATABASE = re.compile(r"[/\\. \"$*<>:|?\0]")
_OF_MONGODB = ("admin", "config", "local")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_external(get: Callable[[str, str], str]) -> Iterator[Finding]:
    """The connection string of a MongoDB of one's own; it may hold a password and is not shown."""
    uri = get("AGL_MONGO_URI", "")
    if uri and not _URI.fullmatch(uri):
        fix = "export AGL_MONGO_URI=mongodb://user:password@host:27017/?replicaSet=rs0"
        yield "AGL_MONGO_URI", "fail", "does not start with mongodb:// or mongodb+srv://", fix
    elif _LOOPBACK.search(uri):
        found = "names a loopback address, which inside of the container is its own"
        yield (
            "AGL_MONGO_URI",
            "fail",
            found,
            "name an address that containers reach",
        )
    elif uri:
        yield "AGL_MONGO_URI", "ok", "a MongoDB of your own; the container is left out", ""


def check_database(get: Callable[[str, str], str]) -> Iterator[Finding]:
    name = get("AGL_MONGO_DATABASE", "agentlightning")
    if name in _OF_MONGODB or _BAD_IN_DATABASE.search(name) or len(name.encode()) > 63:
        found = f"{name!r} cannot be the name of the store's database"
        yield "AGL_MONGO_DATABASE", "fail", found, "export AGL_MONGO_DATABASE=agentlightning"


def check_workers(get: Callable[[str, str], str]) -> Iterator[Finding]:
    workers = get("AGL_N_WORKERS", "auto")
    number = re.fullmatch(r"[1-9][0-9]{0,3}", workers)
    if workers != "auto" and (number is None or int(workers) > MOST_WORKERS):
        found = f"{workers!r} is neither auto nor a number of processes from 1 to {MOST_WORKERS}"
        yield "AGL_N_WORKERS", "fail", found, "export AGL_N_WORKERS=auto"


def check_processor(architecture: str, cpuinfo: str) -> Iterator[Finding]:
    """MongoDB 5.0 and later end with an illegal instruction on older processors."""
    flag = CPU_FLAG.get(architecture)
    if flag is None:
        return
    if re.search(rf"^(flags|Features)\s*:.*\b{flag}\b", cpuinfo, re.MULTILINE):
        yield "processor", "ok", f"has {flag}, which MongoDB needs", ""
    else:
        fix = "use a newer machine, or a MongoDB elsewhere: export AGL_MONGO_URI=mongodb://..."
        yield "processor", "fail", f"has no {flag}, which MongoDB needs", fix


def check_data(get: Callable[[str, str], str]) -> Iterator[Finding]:
    """A folder that does not exist would be made by Docker, for root alone."""
    place = get("AGL_MONGO_DATA", "mongo-data")
    if _VOLUME.fullmatch(place):
        return
    folder = Path(place)
    make = f"sudo install -d -o {MONGO_UID} -g {MONGO_UID} -m 0700 {place}"
    if not folder.is_absolute():
        found = f"{place!r} is neither a volume's name nor an absolute path"
        yield "AGL_MONGO_DATA", "fail", found, "export AGL_MONGO_DATA=mongo-data"
    elif not folder.is_dir():
        yield "AGL_MONGO_DATA", "fail", f"there is no folder {place}", make
    elif folder.stat().st_uid != MONGO_UID:
        found = f"{place} does not belong to uid {MONGO_UID}, which MongoDB runs as"
        yield "AGL_MONGO_DATA", "fail", found, f"sudo chown -R {MONGO_UID}:{MONGO_UID} {place}"
    else:
        yield "AGL_MONGO_DATA", "ok", place, ""


def check_cache(get: Callable[[str, str], str], limit: int) -> Iterator[Finding]:
    """The cache against the memory limit in bytes (0: not known)."""
    raw = get("AGL_MONGO_CACHE_GB", "1.5")
    cache = float(raw) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", raw) else 0.0
    advised = max(SMALLEST_CACHE, (limit / (1 << 30) - 1) / 2)
    fix = f"export AGL_MONGO_CACHE_GB={advised:.2f}"
    if limit and limit < (SMALLEST_CACHE + _BESIDE_CACHE) * (1 << 30):
        found = f"{limit >> 20} MiB is too little for the smallest cache and what is beside it"
        yield "AGL_MONGO_MEMORY", "fail", found, "export AGL_MONGO_MEMORY=4g"
        return
    if cache < SMALLEST_CACHE:
        found = f"{raw!r} is not a number of GB of at least {SMALLEST_CACHE}"
        yield "AGL_MONGO_CACHE_GB", "fail", found, fix
    elif limit and (cache + _BESIDE_CACHE) * (1 << 30) > limit:
        found = f"{raw} GB does not fit into AGL_MONGO_MEMORY, {limit >> 20} MiB"
        yield "AGL_MONGO_CACHE_GB", "fail", found, fix
    elif limit and cache > advised:
        found = f"{raw} GB is more than half of what AGL_MONGO_MEMORY is above 1 GB"
        yield "AGL_MONGO_CACHE_GB", "warn", found, fix


def cpuinfo() -> str:
    """What the kernel tells of the processors; empty where it does not."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return ""


def check_container(
    get: Callable[[str, str], str], *, limit: int, local: bool, lab: bool
) -> Iterator[Finding]:
    """What matters when MongoDB runs as a container of the bundle."""
    yield from check_cache(get, limit)
    if local and not lab:
        yield from check_processor(os.uname().machine, cpuinfo())
        yield from check_data(get)
