"""The certificate of a store that serves HTTPS, and its key: looked at by the preflight.

Uses the standard library alone and runs on Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agl.errors import EnvironmentFault
from agl.utils.certificate import Names, check_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agl.ops.preflight_mongo import Finding

NAMES = Names("AGL_TLS_CERT", "AGL_TLS_KEY")


def check_pair(get: Callable[[str, str], str], folder: Path) -> Iterator[Finding]:
    """A file that only root can read is left to the ``init`` service, which is root.

    Args:
        get: The value of a variable, or the default given with its name.
        folder: The Compose files' folder, in which relative paths begin.
    """
    given = {name: get(name, "") for name in NAMES}
    if given[NAMES.key] and not given[NAMES.cert]:
        yield NAMES.key, "fail", "set without AGL_TLS_CERT", "export AGL_TLS_CERT=/path/cert.pem"
        return
    files: dict[str, Path | None] = {}
    for name, value in given.items():
        if value and not value.startswith(("/", "./", "../", "~/")):
            found = f"Compose takes {value!r} for the name of a volume"
            yield name, "fail", found, f"export {name}=./{value}   (from compose/), or a full path"
            return
        files[name] = folder / Path(value).expanduser() if value else None
    cert, key = files[NAMES.cert], files[NAMES.key]
    if not all(_readable(file) for file in (cert, key) if file):
        return
    try:
        check_certificate(cert, key, NAMES)
    except EnvironmentFault as fault:
        name, _, found = fault.message.partition(": ")
        yield name, "fail", found, fault.remedy
    else:
        if cert:
            yield NAMES.cert, "ok", "a certificate with its key: HTTPS", ""


def _readable(file: Path) -> bool:
    """Also where there is none, which is told otherwise."""
    try:
        file.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return os.access(file, os.R_OK)
