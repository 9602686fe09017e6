"""Render every board to the JSON that Grafana provisions.

``python -m agl.ops.dashboards.build --output grafana/dashboards`` writes the files, with the
thresholds of ``prometheus/alerts``, and takes away those of boards that are no more; with
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

from agl.errors import AglError
from agl.ops.alerting.rules import load_alerts
from agl.ops.dashboards import (
    gpu,
    mongodb,
    monitoring,
    node,
    overview,
    rollouts,
    store,
    training,
)
from agl.ops.dashboards.thresholds import Alerts

BOARDS: Mapping[str, Callable[[Alerts], Dashboard]] = {
    module.UID: module.build
    for module in (overview, store, rollouts, mongodb, node, gpu, training, monitoring)
}


def render(board: Dashboard) -> str:
    """Return a board as stable JSON text: keys sorted, two spaces, one newline at the end."""
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def render_all(alerts: Alerts) -> dict[str, str]:
    """Return file name -> text of every board, in the order of their uids.

    Raises:
        EnvironmentFault: a board names an alert that does not exist.
    """
    return {f"{uid}.json": render(BOARDS[uid](alerts)) for uid in sorted(BOARDS)}


def difference(folder: Path, alerts: Alerts) -> str:
    """Return a unified diff from the files in ``folder`` to what the code says; "" when equal."""
    texts = {**dict.fromkeys(_left_over(folder), ""), **render_all(alerts)}
    chunks: list[str] = []
    for name, wanted in texts.items():
        path = folder / name
        found = path.read_text("utf-8") if path.exists() else ""
        chunks += difflib.unified_diff(
            found.splitlines(keepends=True),
            wanted.splitlines(keepends=True),
            fromfile=str(path),
            tofile=f"{name} (generated)",
        )
    return "".join(chunks)


def write(folder: Path, alerts: Alerts) -> list[Path]:
    """Write every board into ``folder`` and return the files, changed or not."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, text in render_all(alerts).items():
        path = folder / name
        path.write_text(text, "utf-8")
        written.append(path)
    for name in _left_over(folder):
        (folder / name).unlink()
    return written


def _left_over(folder: Path) -> list[str]:
    """Our files in ``folder`` of which there is no board any more."""
    names = (path.name for path in sorted(folder.glob("agl-*.json")))
    return [name for name in names if name.removesuffix(".json") not in BOARDS]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0 when written or equal, 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--alerts", type=Path, default=Path("prometheus/alerts"), metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(argv)
    try:
        return _run(options.output, Alerts(load_alerts(options.alerts)), check=options.check)
    except AglError as error:
        print(f"scripts/generate: {error}", file=sys.stderr)
        return 1


def _run(folder: Path, alerts: Alerts, *, check: bool) -> int:
    if not check:
        for path in write(folder, alerts):
            print(f"generated {path}")
        return 0
    changes = difference(folder, alerts)
    if not changes:
        return 0
    sys.stdout.write(changes)
    print("scripts/generate: generated files differ - run scripts/generate", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
