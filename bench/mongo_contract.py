"""The contract of the store on MongoDB, whole: in process and over several server processes.

``./scripts/test`` runs it at reduced scale, on the stand-in from PyPI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.servers import ROOT

_COUNTS = ("tests", "failures", "errors", "skipped")


def contract() -> dict[str, Any]:
    """Run it on the server that the environment chooses; its log goes to standard error.

    Raises:
        RuntimeError: it could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/contract", "-k", "mongo", "-q"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
        environment = {**os.environ, "AGL_TEST_PROCESSES": "all"}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
        if not report.exists():
            raise RuntimeError("the contract suite did not run; see above")
        suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314 - ours
        if suite is None or suite.get("tests") == "0":
            raise RuntimeError("the contract suite has no tests for MongoDB")
        counts = {name: int(suite.get(name, "0")) for name in _COUNTS}
        counts["passed"] = counts.pop("tests") - sum(counts[name] for name in _COUNTS[1:])
        return {**counts, "seconds": round(float(suite.get("time", "0")))}


def is_kept(found: dict[str, Any]) -> bool:
    """Whether nothing of it failed."""
    return not (found.get("failures") or found.get("errors"))
