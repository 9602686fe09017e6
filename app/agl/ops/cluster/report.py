"""What a run of Ansible found on every host: the table for people, the JSON, the exit status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK, WARN, FAIL = "ok", "warn", "fail"
_MARKS = {OK: "ok  ", WARN: "warn", FAIL: "FAIL"}
_SUDO = re.compile(r"incorrect sudo password|sudo: a password is required|Incorrect become", re.I)


@dataclass(frozen=True)
class Check:
    """One check: its name, ok, warn or fail, what was found, and what to do about it."""

    name: str
    status: str
    found: str
    fix: str = ""


@dataclass
class HostReport:
    """One host: its checks, and whether it was lost."""

    name: str
    checks: list[Check] = field(default_factory=list["Check"])
    changed: int = 0

    @property
    def wrong(self) -> list[Check]:
        return [check for check in self.checks if check.status == FAIL]


def read_report(document: Mapping[str, Any], connections: Mapping[str, str]) -> list[HostReport]:
    """The hosts of a report of the callback plugin, by name.

    ``connections`` has the ssh command of each host, for the fixes. A failed task counts as a
    failed check, unless it is the one that sums up failed checks.
    """
    reports: list[HostReport] = []
    for name, body in sorted(document.get("hosts", {}).items()):
        checks = [Check(**check) for check in body["checks"]]
        if body["unreachable"]:
            checks.append(_unreachable(body["unreachable"], connections.get(name, f"ssh {name}")))
        failed = any(check.status == FAIL for check in checks)
        checks += [
            _failure(failure)
            for failure in body["failures"]
            if not (failed and failure["message"].startswith("left out: "))
        ]
        fixed = [_for_host(check, name) for check in checks]
        reports.append(HostReport(name, fixed, body.get("stats", {}).get("changed", 0)))
    return [report for report in reports if report.checks or report.name != "localhost"]


def _unreachable(said: str, connection: str) -> Check:
    # A password that is asked for in vain ends as a time-out or as an unreachable host.
    if _SUDO.search(said):
        return _become()
    return Check("reachable", FAIL, said, f"{connection} true")


def _failure(failure: Mapping[str, str]) -> Check:
    if _SUDO.search(failure["message"]):
        return _become()
    if failure["task"].endswith("Read facts") and "Timed out" in failure["message"]:
        fix = "a hanging mount or driver makes facts hang: df, nvidia-smi and dmesg on HOST"
        return Check("facts", FAIL, failure["message"], fix)
    return Check(failure["task"], FAIL, failure["message"], "see the output above")


def _become() -> Check:
    found = "the password for sudo is missing or wrong"
    return Check("root", FAIL, found, "run it again with --ask-become-pass")


def _for_host(check: Check, host: str) -> Check:
    return Check(check.name, check.status, check.found, check.fix.replace("HOST", host))


def render(controller: Iterable[Check], hosts: Iterable[HostReport]) -> str:
    """A table: what this machine and each host show; a fix stands below its check."""
    rows = [("inventory", check) for check in controller]
    rows += [(host.name, check) for host in hosts for check in host.checks]
    widths = [max((len(text) for text in column), default=0) for column in _columns(rows)]
    lines: list[str] = []
    for host, check in rows:
        start = f"  {_MARKS[check.status]}  {host:<{widths[0]}}  {check.name:<{widths[1]}}  "
        lines.append(f"{start}{check.found}".rstrip())
        if check.fix and check.status != OK:
            lines.append(f"{' ' * (widths[0] + 8)}  {' ' * widths[1]}fix: {check.fix}")
    return "\n".join(lines)


def _columns(rows: list[tuple[str, Check]]) -> tuple[list[str], list[str]]:
    return [host for host, _ in rows], [check.name for _, check in rows]


def as_json(
    controller: Iterable[Check], hosts: Iterable[HostReport], changed: list[str]
) -> dict[str, Any]:
    """The same as one object."""
    return {
        "inventory": [asdict(check) for check in controller],
        "hosts": {host.name: [asdict(check) for check in host.checks] for host in hosts},
        "changed": changed,
    }


def verdict(controller: Iterable[Check], hosts: list[HostReport]) -> tuple[bool, str]:
    """Whether nothing failed, and the closing line."""
    wrong = [check.name for check in controller if check.status == FAIL]
    sick = [host.name for host in hosts if host.wrong]
    if not wrong and not sick:
        return True, f"{len(hosts)} hosts, nothing is in the way"
    where = ([f"the inventory ({', '.join(sorted(set(wrong)))})"] if wrong else []) + sick
    return False, f"not well: {', '.join(where)}"
