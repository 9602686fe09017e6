"""Collects what every host found and lost, for the table that scripts/cluster prints at the end.

Writes JSON to the file named by AGL_CLUSTER_REPORT; without the variable it does nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: cluster_report
type: aggregate
short_description: Writes checks, failures and lost hosts to a file
description: Takes over lists agl_checks of results, facts NAME_checks, and failures.
options: {}
"""

CENSORED = "the task's output is secret (no_log)"


class CallbackModule(CallbackBase):
    """One entry a host: its checks in the order they were made, failures, and its counts."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "cluster_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.target = os.environ.get("AGL_CLUSTER_REPORT", "")
        self.hosts: dict[str, dict[str, Any]] = {}
        self.changed: list[str] = []

    def host(self, name: str) -> dict[str, Any]:
        fresh = {"checks": [], "failures": [], "unreachable": ""}
        return self.hosts.setdefault(name, fresh)

    def take(self, result: Any) -> None:
        facts = result.result.get("ansible_facts") or {}
        lists = [result.result.get("agl_checks")]
        lists += [value for name, value in facts.items() if name.endswith("_checks")]
        for found in lists:
            if isinstance(found, list):
                self.host(result.host.get_name())["checks"] += found

    @staticmethod
    def said(result: dict[str, Any]) -> str:
        """The message of a failure; of a command that is its last words."""
        message = str(result.get("msg", ""))
        lines = str(result.get("stderr") or "").strip().splitlines()
        return f"{message}: {lines[-1]}" if lines and "return code" in message else message

    def v2_runner_on_ok(self, result: Any) -> None:
        self.take(result)
        if result.result.get("changed"):
            self.changed.append(f"{result.host.get_name()}: {result.task.get_name()}")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self.take(result)
        if ignore_errors:
            return
        said = CENSORED if result.result.get("censored") else self.said(result.result)
        entry = {"task": result.task.get_name(), "message": " ".join(said.split())[:500]}
        self.host(result.host.get_name())["failures"].append(entry)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        said = " ".join(str(result.result.get("msg", "")).split())
        self.host(result.host.get_name())["unreachable"] = said[:500] or "no answer"

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self.target:
            return
        for name in stats.processed:
            self.host(name)["stats"] = stats.summarize(name)
        document = {"hosts": self.hosts, "changed": self.changed}
        Path(self.target).write_text(json.dumps(document), encoding="utf-8")
