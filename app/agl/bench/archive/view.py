"""What an unpacked archive needs to be looked at: boards at its time, marks, configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agl.bench.archive.manifest import DASHBOARDS, Manifest, Run
from agl.errors import EnvironmentFault
from agl.ops.shapes import items, mapping

MARK = "agl_bench_run"
"""A series that is 1 while a run went on and 0 after it, which the boards' annotations ask for."""

MARKS, CONFIG, PROVISIONING = "marks.om", "prometheus.yml", "grafana"
_BOARDS_OF_BUNDLE = "/etc/agl/grafana/dashboards"
_BOARDS_OF_VIEWER = f"/run/agl/archive/{DASHBOARDS}"
_STEP, _LONGEST_STEP, _USUAL_MARKS = 5, 240, 10_000
"""Seconds between samples: few for a run of hours, and below the 5 minutes that Prometheus looks
back for one of months."""

_ANNOTATION = {
    "builtIn": 0,
    "datasource": {"type": "prometheus", "uid": "$datasource"},
    "enable": True,
    "expr": f"max by (run) ({MARK}) == 1",
    "hide": False,
    "iconColor": "blue",
    "name": "Benchmark runs",
    "textFormat": "",
    "titleFormat": "{{run}}",
    "useValueForTime": False,
}
_NO_SCRAPES = "# What an archive was opened with: nothing is scraped.\nglobal: {}\n"


def prepare(folder: Path, manifest: Manifest, provisioning: Path) -> None:
    """Add to an unpacked archive what its viewer reads; ``provisioning`` is Grafana's, as it is in
    the bundle. Raises EnvironmentFault when a dashboard is none."""
    for path in sorted((folder / DASHBOARDS).glob("*.json")):
        try:
            board = mapping(json.loads(path.read_bytes()))
        except (ValueError, RecursionError) as error:
            raise EnvironmentFault(f"{path.name} of the archive is no dashboard: {error}") from None
        path.write_text(json.dumps(at_its_time(board, manifest), indent=1))
    _write(folder / CONFIG, _NO_SCRAPES)
    _write(folder / MARKS, marks(manifest))
    for path in provisioning.rglob("*.yml"):
        target = folder / PROVISIONING / path.relative_to(provisioning)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)
        _write(target, path.read_text().replace(_BOARDS_OF_BUNDLE, _BOARDS_OF_VIEWER))
    (folder / PROVISIONING).chmod(0o755)


def at_its_time(board: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """A dashboard that opens at the archive's window, stands still, and shows the runs."""
    listed = items(mapping(board.get("annotations")).get("list"))
    others = [one for one in listed if one.get("name") != _ANNOTATION["name"]]
    ahead = manifest.clock_ahead
    return {
        **board,
        "time": {
            "from": _milliseconds(manifest.start + ahead),
            "to": _milliseconds(manifest.end + ahead),
        },
        "refresh": "",
        "annotations": {"list": [*others, _ANNOTATION]},
    }


def marks(manifest: Manifest) -> str:
    """The runs as OpenMetrics text with times, in Prometheus' clock; empty when there are none."""
    runs = [run for run in manifest.runs if run.is_load]
    if not runs:
        return ""
    lines = [f"# HELP {MARK} 1 while a run went on.", f"# TYPE {MARK} gauge"]
    for number, run in enumerate(runs, start=1):
        labels = f'run="{_label(number, run)}"'
        first, last = (round(t + manifest.clock_ahead) for t in (run.started, run.ended))
        step = min(max(_STEP, (last - first) // _USUAL_MARKS), _LONGEST_STEP)
        lines += [f"{MARK}{{{labels}}} 1 {moment}" for moment in range(first, last, step)]
        last = max(last, first + 1)
        lines += [f"{MARK}{{{labels}}} 1 {last}", f"{MARK}{{{labels}}} 0 {last + 1}"]
    return "\n".join([*lines, "# EOF", ""])


def _label(number: int, run: Run) -> str:
    text = f"{number}: {run.kind} {run.name}" + (" (partial)" if run.partial else "")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)
