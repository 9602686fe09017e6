"""Keeps what Python compiles from the zip files that Ansible sends with each task.

Four hosts share two cores here, and would compile the same fifty modules for each of some 2,000
tasks. What runs is the same.
"""

from __future__ import annotations

import marshal
import os
import zipimport
from types import CodeType

compiled = zipimport._compile_source


def kept(pathname: str, source: bytes) -> CodeType:
    import hashlib  # programs that import from no zip file go without these
    from pathlib import Path

    path = Path("/run/lab-compiled", hashlib.sha256(source).hexdigest())
    try:
        return marshal.loads(path.read_bytes())  # ours
    except OSError:
        code = compiled(pathname, source)
    if os.geteuid() == 0:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(marshal.dumps(code))
        partial.rename(path)
    return code


zipimport._compile_source = kept
