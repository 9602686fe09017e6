"""What a serving process spares the collector."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from processes import environment


def test_old_objects_are_set_aside_and_young_cycles_still_freed() -> None:
    code = """
    import gc, weakref
    from agl.utils.garbage import spare_old_objects

    class Node: pass

    spare_old_objects()
    spare_old_objects()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    assert len(gc.callbacks) == 1, gc.callbacks

    node = Node()
    node.me = node
    gone = weakref.ref(node)
    del node
    kept = [[] for _ in range(400_000)]
    assert gone() is None, "a young cycle was not freed"
    assert gc.get_freeze_count() > frozen + 200_000, "what stays is not set aside"

    old = Node()
    gc.freeze()
    gone = weakref.ref(old)
    del old
    assert gone() is None, "an old object outlives its last reference"
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
