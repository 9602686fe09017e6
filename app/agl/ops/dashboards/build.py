"""Render every board to the JSON that Grafana provisions.

``python -m agl.ops.dashboards.build --output grafana/dashboards`` writes the files; with
``--check`` it writes nothing and exits with 1, showing the difference, when a file is not what the
code says.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from agl.ops.dashboards import mongo, store

BOARDS: Mapping[str, Callable[[], Dashboard]] = {store.UID: store.build, mongo.UID: mongo.build}


def render(board: Dashboard) -> str:
    """Return a board as stable JSON text: keys sorted, two spaces, one newline at the end."""
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def render_all() -> dict[str, str]:
    """Return file name -> text of every board, in the order of their uids."""
    return {f"{uid}.json": render(BOARDS[uid]()) for uid in sorted(BOARDS)}


def difference(folder: Path) -> str:
    """Return a unified diff from the files in ``folder`` to what the code says; "" when equal."""
    chunks: list[str] = []
    for name, wanted in render_all().items():
        path = folder / name
        found = path.read_text("utf-8") if path.exists() else ""
        chunks += difflib.unified_diff(
            found.splitlines(keepends=True),
            wanted.splitlines(keepends=True),
            fromfile=str(path),
            tofile=f"{name} (generated)",
        )
    return "".join(chunks)


def write(folder: Path) -> list[Path]:
    """Write every board into ``folder`` and return the files, changed or not."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, text in render_all().items():
        path = folder / name
        path.write_text(text, "utf-8")
        written.append(path)
    return written


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0 when written or equal, 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(argv)
    if not options.check:
        for path in write(options.output):
            print(f"generated {path}")
        return 0
    changes = difference(options.output)
    if not changes:
        return 0
    sys.stdout.write(changes)
    print("scripts/generate: generated files differ - run scripts/generate", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
