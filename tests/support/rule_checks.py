"""What the tests ask of alerts: which series and labels an expression reads, and what a runbook
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from agl.utils.metrics_catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "prometheus" / "alerts"
RULES = ROOT / "prometheus" / "rules"
RULE_TESTS = ROOT / "prometheus" / "tests"
RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "On the dashboard")
_CHILDREN = ("lhs", "rhs", "expr", "vector_selector", "param")
_ONCE = r"max\s+without\s*\(\s*instance[^)]*\)\s*\(\s*[\w(]*$"
_HISTOGRAM_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def known_series() -> dict[str, set[str]]:
    """Every series that something we scrape serves, with its labels and those of all targets."""
    known: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests" / "support" / "series").glob("*.yml")):
        for name, labels in yaml.safe_load(path.read_text()).items():
            known.setdefault(name, set()).update(labels)
    for row in CATALOGUE.values():
        known.setdefault(row.series, set()).update(row.label_names)
    everywhere = known.pop("*")
    return {name: labels | everywhere for name, labels in known.items()}


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The series an expression reads, each with the labels it selects by.

    Raises:
        ValueError: the expression cannot be parsed.
    """
    yield from _selectors(promql_parser.parse(expression))


def _selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    if isinstance(node, promql_parser.VectorSelector):
        labels = {matcher.name for matcher in node.matchers.matchers}
        name = node.name
        if name is None:
            raise ValueError(f"a selector without a metric name: {node.prettify()}")
        yield name, labels - {"__name__"}
        return
    for child in _CHILDREN:
        value = getattr(node, child, None)
        if isinstance(value, promql_parser.Expr | promql_parser.VectorSelector):
            yield from _selectors(value)
    for argument in getattr(node, "args", None) or []:
        yield from _selectors(argument)


def state_series_not_taken_once(expression: str) -> list[str]:
    """Store-wide series (``agl_state_*``) that do not stand in ``max without (instance) (...)``.

    Every exporter serves the same values, so a sum would count each store host once more.
    """
    return [
        found.group()
        for found in re.finditer(r"agl_state_\w+", expression)
        if not re.search(_ONCE, expression[: found.start()])
    ]


def grouping_labels(expression: str) -> set[str]:
    """Labels named by ``by``, ``without``, ``on``, ``ignoring`` and ``group_left``."""
    found: set[str] = set()
    for labels in re.findall(
        r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", expression
    ):
        found.update(label.strip() for label in labels.split(",") if label.strip())
    return found


def given_labels(expression: str) -> set[str]:
    """Labels that ``label_replace`` gives to series."""
    return set(re.findall(r',\s*"(\w+)",\s*"[^"]*",\s*"[^"]*",\s*"[^"]*"\s*\)', expression))


def recorded_labels(name: str, recorded: dict[str, str]) -> set[str]:
    """Labels that a recorded series may have because its expression names or gives them."""
    expression = recorded[name]
    found = grouping_labels(expression) | given_labels(expression)
    for series, labels in selectors(expression):
        found |= labels
        if series in recorded:
            found |= recorded_labels(series, recorded)
    return found


def base_name(series: str) -> str:
    """The metric a histogram's or summary's series belongs to."""
    return _HISTOGRAM_SUFFIX.sub("", series)


def rule_tests() -> dict[str, list[dict[str, Any]]]:
    """The promtool checks of each alert: what is expected at each instant looked at."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RULE_TESTS.glob("*.yml")):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for check in test.get("alert_rule_test", []):
                checks.setdefault(check["alertname"], []).append(check)
    return checks


def commands(runbook: str) -> Iterator[str]:
    """The lines of a runbook's ``sh`` blocks, continued lines joined, comments left out."""
    for block in re.findall(r"```sh\n(.*?)```", runbook, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


def queries(runbook: str) -> Iterator[str]:
    """The expressions of a runbook's ``promql`` blocks, one a line."""
    for block in re.findall(r"```promql\n(.*?)```", runbook, re.DOTALL):
        yield from filter(None, map(str.strip, block.splitlines()))


def links(text: str) -> Iterator[str]:
    """Targets of the Markdown links."""
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def panels_named(text: str) -> Iterator[tuple[str, str]]:
    """``[Title](/d/uid)`` links: the title a reader is sent to, and the board."""
    yield from re.findall(r"\[([^\]]+)\]\(/d/([a-z0-9-]+)[^)]*\)", text)
