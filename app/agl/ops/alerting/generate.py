"""Renew what is made from alerts and tables: documents, and the rules of ``prometheus/data``.

``python -m agl.ops.alerting.generate`` writes the files; with ``--check`` it writes nothing and
exits with 1, showing the difference, when a file is not what it is made from.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from agl.errors import AglError
from agl.ops.alerting.docs import render_alerts
from agl.ops.alerting.rules import load_alerts
from agl.ops.alerting.slo import slo_rules
from agl.ops.alerting.tables import render_rules, xid_document


def render_all(root: Path) -> dict[Path, str]:
    """Path -> text of every generated file of the repository at ``root``.

    Raises:
        EnvironmentFault: a rule file or a table is not what it should be.
    """
    prometheus = root / "prometheus"
    files = {prometheus / "rules" / n: t for n, t in render_rules(prometheus / "data").items()}
    files[prometheus / "rules" / "slo.yml"] = slo_rules(prometheus / "data" / "slo.yml")
    files[root / "docs" / "xid.md"] = xid_document(prometheus / "data" / "xid.yml")
    files[root / "docs" / "alerts.md"] = render_alerts(load_alerts(prometheus / "alerts"))
    return files


def difference(path: Path, wanted: str) -> str:
    """Return a unified diff from the file at ``path`` to ``wanted``; "" when equal."""
    found = path.read_text("utf-8") if path.exists() else ""
    return "".join(
        difflib.unified_diff(
            found.splitlines(keepends=True),
            wanted.splitlines(keepends=True),
            fromfile=str(path),
            tofile=f"{path.name} (generated)",
        )
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0 when written or equal, 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="scripts/generate", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(argv)
    try:
        files = render_all(options.root)
    except AglError as error:
        print(f"scripts/generate: {error}", file=sys.stderr)
        return 1
    if options.check:
        return _check(files)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(f"generated {path}")
    return 0


def _check(files: dict[Path, str]) -> int:
    changes = "".join(difference(path, text) for path, text in files.items())
    if not changes:
        return 0
    sys.stdout.write(changes)
    print("scripts/generate: generated files differ - run scripts/generate", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
