"""``scripts/cluster``: Ansible with checks before it and a table after it."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agl.config import process_environment
from agl.errors import AglError, EnvironmentFault, UsageError
from agl.ops.cluster.inventory import (
    Inventory,
    judge,
    misspelt,
    read_inventory,
    shadowed,
    variables_of,
)
from agl.ops.cluster.release import make_release
from agl.ops.cluster.report import FAIL, Check, HostReport, as_json, read_report, render, verdict
from agl.ops.options import LineParser

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "ansible"
CONFIG = FOLDER / "ansible.cfg"
PLAYBOOKS = {
    "doctor": "doctor.yml",
    "apply": "site.yml",
    "verify": "verify.yml",
    "upgrade": "upgrade.yml",
    "drain": "drain.yml",
    "undrain": "undrain.yml",
    "backup": "backup.yml",
    "restore": "restore.yml",
}
COMMANDS = """commands:
  doctor    is everything ready? Changes nothing
  apply     make the machines what the inventory says
  verify    ask the running cluster whether it is well
  upgrade   new versions, host by host, each drained first
  drain     GPU work off the hosts of --limit; undrain lets it in again
  backup    what the store holds, to .cache/cluster/backups (-e agl_backup_to=FOLDER)
  restore   a backup into the store: -e agl_backup=FILE
"""
# Commands that every host takes part in.
EVERY_HOST = frozenset({"doctor", "apply", "verify", "upgrade"})
# Commands that nobody means for every GPU node because a word was forgotten.
ONLY_LIMITED = frozenset({"drain", "undrain"})
# With these ansible-playbook asks no host, so there is nothing to report.
SHOWS = frozenset({"--list-hosts", "--list-tasks", "--list-tags", "--syntax-check"})


def main(argv: list[str]) -> int:
    """0 when all is well, 1 when a check or host failed, 2 for a wrong call."""
    try:
        return _run(*_parse(argv))
    except AglError as error:
        print(f"scripts/cluster: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = LineParser(
        prog="scripts/cluster",
        description="Machines of an inventory into a cluster. What is not listed here goes to\n"
        "ansible-playbook: --limit, --check, --diff, --ask-become-pass, --ask-vault-pass, -e ...",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=sorted(PLAYBOOKS))
    parser.add_argument(
        "-i",
        "--inventory",
        type=Path,
        default=Path(process_environment().get("AGL_INVENTORY", FOLDER / "inventory" / "site")),
        metavar="PATH",
        help="folder or file (default: ansible/inventory/site)",
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="archive of `agl stack images save`"
    )
    options, extra = parser.parse_known_args(argv)
    return options, [argument for argument in extra if argument != "--"]


def _run(options: argparse.Namespace, extra: list[str]) -> int:
    if options.command in ONLY_LIMITED and not _limited(extra):
        raise UsageError(
            f"{options.command} needs --limit HOST (every GPU node at once: --limit gpu_nodes)"
        )
    inventory_path = options.inventory.resolve()
    tools = Path(sys.executable).parent
    inventory = read_inventory(
        tools / "ansible-inventory", inventory_path, _of_variables(extra), CONFIG
    )
    controller = [
        *judge(inventory),
        *shadowed(inventory_path),
        *misspelt(inventory, variables_of(FOLDER / "roles")),
    ]
    if any(check.status == FAIL for check in controller) and options.command != "doctor":
        return _finish(options, controller, [], {})
    variables = _variables(options, inventory_path)
    command = [str(tools / "ansible-playbook"), "--inventory", str(inventory_path)]
    command += ["--extra-vars", json.dumps(variables), *extra]
    command.append(str(FOLDER / PLAYBOOKS[options.command]))
    if options.command == "doctor":
        command.append("--check")
    if SHOWS.intersection(extra):
        return 1 if subprocess.run(command, env=_environment(), check=False).returncode else 0
    code, document = _ansible(command, quiet=options.json or options.command == "doctor")
    connections = {host: inventory.connection(host) for host in inventory.hosts}
    hosts = read_report(document, connections)
    if options.command in EVERY_HOST:
        hosts += _unheard(inventory, hosts, extra)
    status = _finish(options, controller, hosts, document)
    return status or (1 if code else 0)


def _of_variables(extra: list[str]) -> list[str]:
    """The arguments that say what variables there are: vaults with their passwords, and ``-e``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags = ("-J", "--ask-vault-pass", "--ask-vault-password")
    parser.add_argument(*flags, action="append_const", const="--ask-vault-pass", dest="ask")
    for name, *others in (
        ("--vault-password-file", "--vault-pass-file"),
        ("--vault-id",),
        ("--extra-vars", "-e"),
    ):
        parser.add_argument(name, *others, action="append", default=[], dest=name)
    known = vars(parser.parse_known_args(extra)[0])
    asked: list[str] = known.pop("ask") or []
    return asked + [f"{name}={value}" for name, values in known.items() for value in values]


def _variables(options: argparse.Namespace, inventory: Path) -> dict[str, str]:
    """What the playbooks are told of this clone."""
    variables: dict[str, str] = {"agl_release": _fingerprint(inventory)}
    if options.command in {"apply", "upgrade", "restore"}:
        archive = make_release(ROOT, ROOT / ".cache" / "cluster" / "release.tar")
        variables["agl_archive"] = str(archive)
    if options.images:
        if not options.images.is_file():
            raise UsageError(f"there is no file {options.images}")
        variables["agl_images"] = str(options.images.resolve())
    return variables


def _fingerprint(inventory: Path) -> str:
    """Changes whenever a role or the inventory does: hosts keep the one they were finished with."""
    digest = hashlib.sha256()
    for base in (FOLDER / "roles", FOLDER / "library", inventory):
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.is_file():
                digest.update(f"{path.relative_to(base)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _ansible(command: list[str], *, quiet: bool) -> tuple[int, dict[str, Any]]:
    """Exit status and report of a run. Its own output is shown when it ends without a report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {**_environment(), "AGL_CLUSTER_REPORT": str(report)}
        said = subprocess.PIPE if quiet else None
        done = subprocess.run(
            command, env=environment, stdout=said, stderr=said, text=True, check=False
        )
        if report.is_file():
            return done.returncode, json.loads(report.read_text())
        if quiet:
            print(done.stdout, done.stderr, file=sys.stderr)
        raise EnvironmentFault("ansible-playbook ended without a report (see above)")


def _environment() -> dict[str, str]:
    """Ansible runs where it is called, so that files named after ``-e`` and the like are found."""
    return {**process_environment(), "ANSIBLE_CONFIG": str(CONFIG)}


def _limited(extra: list[str]) -> bool:
    return any(argument.startswith(("-l", "--limit")) for argument in extra)


def _unheard(inventory: Inventory, hosts: list[HostReport], extra: list[str]) -> list[HostReport]:
    """Hosts that nothing was heard of, when the run was not limited to some."""
    if _limited(extra):
        return []
    heard = {host.name for host in hosts}
    fix = "see the output above"
    missing = [host for host in inventory.hosts if host not in heard]
    return [HostReport(host, [Check("reached", FAIL, "not asked", fix)]) for host in missing]


def _finish(
    options: argparse.Namespace,
    controller: list[Check],
    hosts: list[HostReport],
    document: dict[str, Any],
) -> int:
    well, line = verdict(controller, hosts)
    changed: list[str] = document.get("changed", [])
    if options.json:
        print(json.dumps(as_json(controller, hosts, changed), indent=2))
    else:
        print(render(controller, hosts))
        print(f"\n{line}; {sum(host.changed for host in hosts)} tasks changed something")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
