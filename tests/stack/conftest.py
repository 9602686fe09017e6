"""One running bundle for all stack tests: a clone of the tree, brought up by its own scripts/up.

The clone lies in a path with a space and was made with umask 077, as a careful user's may be.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from bundle import ROOT, VARIABLES, Stack, clone_to, leftovers, lend_environment


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = clone_to(tmp_path_factory.mktemp("stack") / "a clone with spaces")
    lend_environment(root)
    images = ROOT / "compose" / ".env.images"
    if images.is_file():  # made by scripts/images, which scripts/test has run
        shutil.copyfile(images, root / "compose" / ".env.images")
    running = Stack(root, {**os.environ, **VARIABLES})
    try:
        running.script("up", "--yes")
        yield running
    finally:
        running.script("down", "--volumes")
    assert leftovers(running.project) == {"containers": [], "volumes": [], "networks": []}
