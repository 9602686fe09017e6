#!/usr/bin/python
"""Asks a finished host, and on a control node the whole cluster, whether it is well."""

from __future__ import annotations

import calendar
import json
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: cluster_checks
short_description: Asks a finished host whether it is well
description: >-
  Looks at what runs, not at files. On a control node it asks Prometheus for its targets, plays one
  rollout through the store, which no queue sees, and sends a test alert.
author: agl-stack
options:
  units:
    description: Units of systemd that have to be active.
    type: list
    elements: str
    default: []
  nofile:
    description: Open files that services have to have.
    type: int
    required: true
  gpus:
    description: GPUs that a container has to see.
    type: int
    default: 0
  bundle:
    description: Folder of the bundle on a control node; empty on others.
    type: str
    default: ""
  targets:
    description: Instances that Prometheus has to have up, besides the bundle's own.
    type: list
    elements: str
    default: []
  store:
    description: Address of the store on a control node.
    type: str
    default: ""
  alertmanagers:
    description: Members that Alertmanager's cluster has to have.
    type: int
    default: 1
  prometheus_port:
    description: Port of Prometheus on a control node's loopback.
    type: int
    default: 9090
  alertmanager_port:
    description: Port of Alertmanager on a control node's loopback.
    type: int
    default: 9093
  wait_seconds:
    description: How long targets may take to be scraped for the first time.
    type: int
    default: 90
"""
EXAMPLES = r"""
- cluster_checks:
    units: [docker]
    nofile: 100000
"""
RETURN = r"""
agl_checks:
  description: One entry a check, with name, status (ok, warn, fail), what was found and the fix.
  type: list
  returned: always
"""

OK, WARN, FAIL = "ok", "warn", "fail"
LOOPBACK = "http://127.0.0.1"
TOKEN_FILE = "/run/agl/secrets/api-token"  # noqa: S105  # a path
CERTIFICATE_FILE = "/run/agl/secrets/tls-cert"


def check(name: str, status: str, found: str, fix: str = "") -> dict[str, str]:
    return {"name": name, "status": status, "found": found, "fix": fix}


def judged(name: str, well: bool, found: str, fix: str) -> dict[str, str]:
    return check(name, OK, found) if well else check(name, FAIL, found, fix)


def run(*command: str, seconds: int = 60) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {seconds} s"
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def ask(
    url: str, body: object = None, token: str = "", tls: ssl.SSLContext | None = None
) -> object:
    """The JSON of an answer. Raises OSError when there is none."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  # ours
    with urllib.request.urlopen(request, timeout=20, context=tls) as answer:  # noqa: S310
        text = answer.read()
    return json.loads(text) if text.strip() else None


def units(names: list[str]) -> list[dict[str, str]]:
    found = []
    for name in names:
        _, state = run("systemctl", "show", "-p", "ActiveState", "--value", name)
        fix = f"sudo systemctl status {name}; sudo journalctl -u {name} -n 50"
        found.append(judged(f"unit {name}", state == "active", state or "absent", fix))
    return found


def limit_of(pid: str) -> int:
    try:
        text = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
    except OSError:
        return 0
    match = re.search(r"^Max open files\s+(\d+|unlimited)", text, re.M)
    return 0 if not match else int(match[1]) if match[1].isdigit() else 1 << 30


def limits(names: list[str], wanted: int, containers: list[str]) -> list[dict[str, str]]:
    """Open files inside the running services: what the process has, not what a file says."""
    pids = {}
    for name in set(names) & {"prometheus-node-exporter", "docker"}:
        pids[name] = run("systemctl", "show", "-p", "MainPID", "--value", name)[1]
    for name in containers:
        pids[name] = run("docker", "inspect", "-f", "{{.State.Pid}}", name)[1]
    found = []
    for name, pid in sorted(pids.items()):
        have = limit_of(pid)
        # The daemon's is the most that a container can have, so it may be higher.
        well = have >= wanted if name == "docker" else have == wanted
        fix = "scripts/cluster apply --limit HOST, then restart the service"
        found.append(judged("nofile", well, f"{name}: {have} (wanted {wanted})", fix))
    return found


def gpus(promised: int) -> list[dict[str, str]]:
    code, text = run("docker", "exec", "dcgm-exporter", "nvidia-smi", "--list-gpus")
    seen = len(re.findall(r"^GPU \d+", text, re.M)) if code == 0 else 0
    found = f"a container sees {seen} of {promised}" if code == 0 else text[:200]
    fix = "nvidia-smi on the host; then sudo systemctl restart dcgm-exporter"
    checks = [judged("gpus", seen == promised, found, fix)]
    code, text = run("docker", "exec", "dcgm-exporter", "dcgmi", "diag", "-r", "1", seconds=300)
    if code in (126, 127) or "executable file not found" in text:
        code, text = run("dcgmi", "diag", "-r", "1", seconds=300)
    last = text.splitlines()[-1][:200] if text else ""
    well = code == 0 and not re.search(r"\bFail\b", text)
    fix = "dcgmi diag -r 2 on the drained host says more"
    if code == 127:
        checks.append(check("dcgmi diag", WARN, "dcgmi is neither on the host nor in the image"))
    else:
        checks.append(judged("dcgmi diag", well, "level 1 passes" if well else last, fix))
    return checks


def scraped_since(target: dict, began: float) -> bool:
    """Whether Prometheus has looked at a target since ``began`` (seconds since the epoch)."""
    at = time.strptime(target["lastScrape"][:19], "%Y-%m-%dT%H:%M:%S")
    return calendar.timegm(at) >= int(began)


def targets(prometheus: str, wanted: list[str], wait_seconds: int) -> list[dict[str, str]]:
    """Each has to be up as of now: what an earlier scrape found may be over."""
    began, end = time.time(), time.monotonic() + wait_seconds
    while True:
        try:
            answer = ask(f"{prometheus}/api/v1/targets?state=active")
        except OSError as error:
            answer, said = None, str(error)
        if answer:
            active = {t["labels"].get("instance", ""): t for t in answer["data"]["activeTargets"]}
            down = {
                name: t
                for name, t in active.items()
                if t["health"] != "up" or not scraped_since(t, began)
            }
            missing = [name for name in wanted if name not in active]
            if not down and not missing:
                return [check("targets", OK, f"{len(active)} up")]
        if time.monotonic() > end:
            break
        time.sleep(3)
    if not answer:
        return [check("targets", FAIL, f"Prometheus: {said}", "scripts/status on the control node")]
    found = []
    for name, target in sorted(down.items()):
        why = target.get("lastError") or "not scraped since this began"
        found.append(check("targets", FAIL, f"{name}: {why}", f"curl -s {target['scrapeUrl']}"))
    fix = "scripts/cluster apply (it writes the targets)"
    found += [check("targets", FAIL, f"{name}: not known", fix) for name in missing]
    return found


def trusting_its_own() -> ssl.SSLContext:
    """Trusts the certificate that the store was given, whoever issued it and for whatever name."""
    code, certificate = run("docker", "exec", "agl-app-1", "cat", CERTIFICATE_FILE)
    if code != 0:
        raise OSError(certificate[:200])
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False
    context.verify_flags |= 0x80000  # X509_V_FLAG_PARTIAL_CHAIN, which Python names from 3.10 on
    return context


def rollout(store: str) -> list[dict[str, str]]:
    """One rollout from start to end. It is never queued, so no runner gets it."""
    code, token = run("docker", "exec", "agl-app-1", "cat", TOKEN_FILE)
    fix = "docker logs agl-app-1 on the control node"
    if code != 0:
        return [check("rollout", FAIL, token[:200], fix)]
    root = f"{store}/v1/agl/rollouts"
    try:
        tls = trusting_its_own() if store.startswith("https:") else None
        started = ask(root, {"input": {"probe": "verify"}, "mode": "test"}, token, tls)
        one = f"{root}/{started['rollout_id']}"
        ask(f"{one}/attempts/latest", {"status": "succeeded"}, token, tls)
        status = ask(one, token=token, tls=tls)["status"]
    except (OSError, KeyError, TypeError) as error:
        return [check("rollout", FAIL, f"{store}: {error}", fix)]
    return [judged("rollout", status == "succeeded", f"{started['rollout_id']}: {status}", fix)]


def notifications(alertmanager: str) -> tuple[float, float]:
    """How many notifications Alertmanager has sent, and how many of them failed."""
    request = urllib.request.urlopen(f"{alertmanager}/metrics", timeout=20)  # noqa: S310
    with request as answer:
        text = answer.read().decode()
    sums = []
    for name in ("alertmanager_notifications_total", "alertmanager_notifications_failed_total"):
        values = re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.M)
        sums.append(sum(map(float, values)))
    return sums[0], sums[1]


def cluster_of_alertmanagers(
    alertmanager: str, wanted: int, wait_seconds: int
) -> list[dict[str, str]]:
    """Whether the Alertmanagers of all control nodes see each other; alone there is no cluster."""
    end = time.monotonic() + wait_seconds
    fix = "let the control nodes reach each other's ports 9093 and 9094 (TCP and UDP)"
    while True:
        try:
            members = len(ask(f"{alertmanager}/api/v2/status")["cluster"].get("peers", ()))
            found = f"{members} of {wanted} see each other"
        except OSError as error:
            members, found = 0, str(error)
        if members == wanted or time.monotonic() > end:
            return [judged("alertmanagers", members == wanted, found, fix)]
        time.sleep(3)


def test_alert(alertmanager: str, wait_seconds: int) -> list[dict[str, str]]:
    if run("docker", "inspect", "agl-alertmanager-1")[0] != 0:
        return [check("test alert", WARN, "this release has no Alertmanager")]
    alert = {
        "labels": {
            "alertname": "ClusterVerify",
            "severity": "critical",
            "host": "verify",
            "run": str(int(time.time())),
        },
        "annotations": {"summary": "A test of scripts/cluster verify; nothing is wrong."},
    }
    try:
        before, failed_before = notifications(alertmanager)
        ask(f"{alertmanager}/api/v2/alerts", [alert])
        end = time.monotonic() + wait_seconds
        while time.monotonic() < end:
            sent, failed = notifications(alertmanager)
            if failed > failed_before:
                fix = "docker logs agl-alertmanager-1 names the receiver"
                return [check("test alert", FAIL, "the receiver did not take it", fix)]
            if sent > before:
                return [check("test alert", OK, "the receiver took it")]
            time.sleep(2)
    except OSError as error:
        fix = "docker logs agl-alertmanager-1"
        return [check("test alert", FAIL, str(error), fix)]
    fix = "nobody is paged: set alertmanager_settings or alertmanager_secrets (docs/cluster.md)"
    return [check("test alert", FAIL, "no receiver was told", fix)]


def main() -> None:
    spec = {
        "units": {"type": "list", "elements": "str", "default": []},
        "nofile": {"type": "int", "required": True},
        "gpus": {"type": "int", "default": 0},
        "bundle": {"type": "str", "default": ""},
        "targets": {"type": "list", "elements": "str", "default": []},
        "store": {"type": "str", "default": ""},
        "alertmanagers": {"type": "int", "default": 1},
        "prometheus_port": {"type": "int", "default": 9090},
        "alertmanager_port": {"type": "int", "default": 9093},
        "wait_seconds": {"type": "int", "default": 90},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    given = module.params
    containers = ["agl-app-1", "agl-prometheus-1"] if given["bundle"] else []
    found = units(given["units"]) + limits(given["units"], given["nofile"], containers)
    if given["gpus"]:
        found += gpus(given["gpus"])
    if given["bundle"]:
        prometheus = f"{LOOPBACK}:{given['prometheus_port']}"
        alertmanager = f"{LOOPBACK}:{given['alertmanager_port']}"
        found += targets(prometheus, given["targets"], given["wait_seconds"])
        found += rollout(given["store"])
        if given["alertmanagers"] > 1:
            members = given["alertmanagers"]
            found += cluster_of_alertmanagers(alertmanager, members, given["wait_seconds"])
        found += test_alert(alertmanager, given["wait_seconds"])
    module.exit_json(changed=False, agl_checks=found)


if __name__ == "__main__":
    main()
