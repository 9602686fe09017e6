"""Rules and configuration for a drill's own Prometheus, with windows shortened by a factor.

The text of the real files is changed, not a copy of it kept: what is drilled is what is shipped.
Numbers that an expression compares with are left alone, so a condition on an age keeps its age.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops.init_bundle import make_folder, write_atomically

MINIMUM_RANGE = 4.0
"""Seconds: a range holds at least three scrapes, so that a late one does not matter."""
MINIMUM_INTERVAL = 1.0
NODE = "drill-node"
"""Label ``host`` of the host that only drills have, and name of its container."""
PORT = 9095

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = r"(?:\d+(?:ms|[smhdw]))+"
_HOLD = re.compile(rf"^(\s*(?:for|keep_firing_for):\s*)({_DURATION})\s*$", re.MULTILINE)
_INTERVAL = re.compile(
    rf"^(\s*(?:interval|scrape_interval|evaluation_interval|scrape_timeout):\s*)({_DURATION})\s*$",
    re.MULTILINE,
)
_RANGE = re.compile(rf"\[({_DURATION})(?::({_DURATION}))?\]")
_OFFSET = re.compile(rf"(\boffset\s+-?)({_DURATION})")
_ALERTING = re.compile(r"^alerting:\n", re.MULTILINE)


@dataclass(frozen=True)
class Scale:
    """By how much a drill's windows are shorter, and the drill's name for its alerts."""

    speed: float
    name: str


def seconds(text: str) -> float:
    """A duration as Prometheus writes it."""
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdw])", text))


def duration(value: float) -> str:
    """Seconds as Prometheus writes them."""
    return f"{round(value * 1000)}ms"


def scaled_rules(text: str, speed: float) -> str:
    """A rule file whose ranges, offsets and holding times are ``speed`` times shorter."""

    def short(match: re.Match[str], minimum: float = 0.0) -> str:
        return match[1] + duration(max(seconds(match[2]) / speed, minimum))

    def window(match: re.Match[str]) -> str:
        length = duration(max(seconds(match[1]) / speed, MINIMUM_RANGE))
        step = f":{duration(max(seconds(match[2]) / speed, MINIMUM_INTERVAL))}" if match[2] else ""
        return f"[{length}{step}]"

    text = _HOLD.sub(short, text)
    text = _INTERVAL.sub(lambda match: short(match, MINIMUM_INTERVAL), text)
    return _OFFSET.sub(short, _RANGE.sub(window, text))


def scaled_config(text: str, scale: Scale) -> str:
    """Prometheus' own file: it looks more often, at one more host, and marks its alerts.

    Raises EnvironmentFault when the file has no section ``alerting``.
    """

    def often(match: re.Match[str]) -> str:
        return match[1] + duration(max(seconds(match[2]) / scale.speed, MINIMUM_INTERVAL))

    text, found = _ALERTING.subn(lambda _: _marked(scale.name), _INTERVAL.sub(often, text))
    if found != 1:
        raise EnvironmentFault("Prometheus' file has no section alerting, so nobody is told")
    return text.rstrip("\n") + "\n" + _job("node") + _job("dcgm")


def _marked(name: str) -> str:
    return f"""\
alerting:
  alert_relabel_configs:
    - target_label: drill
      replacement: "{name}"
    - source_labels: [deployment]
      regex: (.*)
      target_label: deployment
      replacement: "${{1}}-drill-{name}"
"""


def _job(job: str) -> str:
    return f"""
  - job_name: drill-{job}
    static_configs:
      - targets: ["{NODE}:{PORT}"]
        labels:
          job: {job}
          host: {NODE}
"""


def render_scaled(source: Path, config: str, target: Path, scale: Scale) -> None:
    """Write ``target`` from the rendered folder ``source`` of Prometheus' files.

    Args:
        config: Name of Prometheus' own file in ``source``; it becomes ``prometheus.yml``.
    """
    wanted = {"prometheus.yml": scaled_config((source / config).read_text("utf-8"), scale)}
    for folder in ("rules", "alerts"):
        for path in sorted((source / folder).glob("*.yml")):
            wanted[f"{folder}/{path.name}"] = scaled_rules(path.read_text("utf-8"), scale.speed)
    for name, text in wanted.items():
        make_folder((target / name).parent, below=target)
        write_atomically(target / name, text.encode(), mode=0o644)
    for path in target.rglob("*.yml"):
        if path.relative_to(target).as_posix() not in wanted:
            path.unlink()
