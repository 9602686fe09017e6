"""The inventory as Ansible reads it, and what can be wrong with it before any host is asked."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError
from agl.ops.cluster.report import FAIL, OK, WARN, Check

GROUPS = ("control", "gpu_nodes", "cpu_nodes")
_OF_A_REPLICA_SET = ("mongodb_keyfile", "mongodb_passwords")
_VAULT = (
    ".cache/cluster-venv/bin/ansible-vault create"
    " ansible/inventory/site/group_vars/all/vault.yml (docs/scaling.md)"
)
_SHARED = frozenset(
    {"agl_address", "agl_gpus", "agl_images", "agl_mode", "agl_nofile", "agl_serial"}
)
_BUILT_IN = frozenset({"all", "ungrouped"})


@dataclass(frozen=True)
class Inventory:
    """Hosts of every group, and each host's variables."""

    groups: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])

    @property
    def hosts(self) -> list[str]:
        return sorted({host for hosts in self.groups.values() for host in hosts})

    def address(self, host: str) -> str:
        """Where Ansible connects to, with the port."""
        known = self.variables.get(host, {})
        return f"{known.get('ansible_host', host)}:{known.get('ansible_port', 22)}"

    def shown(self, host: str) -> str:
        """The address that others reach ``host`` under, if it has one that is no template."""
        address = str(self.variables.get(host, {}).get("agl_address", ""))
        return "" if "{{" in address else address

    def connection(self, host: str) -> str:
        """The ssh command a person would type for ``host``."""
        known = self.variables.get(host, {})
        port = f" -p {known['ansible_port']}" if "ansible_port" in known else ""
        user = f"{known['ansible_user']}@" if "ansible_user" in known else ""
        return f"ssh{port} {user}{known.get('ansible_host', host)}"


def read_inventory(program: Path, path: Path, arguments: list[str], config: Path) -> Inventory:
    """What ``ansible-inventory`` makes of ``path``, with the settings of ``config``.

    Raises UsageError when there is no such path, EnvironmentFault when Ansible cannot read it.
    """
    if not path.exists():
        raise UsageError(
            f"there is no inventory {path} - begin with:"
            " cp -r ansible/inventory/example ansible/inventory/site"
        )
    command = [str(program), "--list", "--inventory", str(path), *arguments]
    environment = {**process_environment(), "ANSIBLE_CONFIG": str(config)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise EnvironmentFault(
            f"the inventory {path} cannot be read: {' '.join(said[:3])[:400]}",
            remedy="correct that file (a vault needs --ask-vault-pass or --vault-password-file)",
        )
    return parse(json.loads(done.stdout))


def parse(document: Mapping[str, Any]) -> Inventory:
    """The output of ``ansible-inventory --list``; groups hold the hosts of their children too."""
    own = {name: body for name, body in document.items() if name != "_meta"}

    def members(name: str) -> set[str]:
        body = own.get(name, {})
        below = (members(child) for child in body.get("children", ()))
        return set(body.get("hosts", ())).union(*below)

    named = {*own, *(child for body in own.values() for child in body.get("children", ()))}
    groups = {name: tuple(sorted(members(name))) for name in sorted(named)}
    meta = cast("Mapping[str, Any]", document.get("_meta", {}))
    return Inventory(groups, meta.get("hostvars", {}))


def judge(inventory: Inventory) -> list[Check]:
    """Everything that shows in the inventory itself."""
    return [
        *_groups(inventory),
        *_control(inventory),
        *_shared_secrets(inventory),
        *_places(inventory),
        *_addresses(inventory),
        *_gpus(inventory),
        *_drivers(inventory),
    ]


def shadowed(path: Path) -> list[Check]:
    """Files of variables that Ansible passes over for a folder of the same name beside them."""
    folder = path if path.is_dir() else path.parent
    return [
        Check(
            "variables",
            FAIL,
            f"Ansible does not read {file.name}, because there is {place.name}/{file.stem}/",
            f"mv {file} {file.with_suffix('')}/",
        )
        for place in (folder / "group_vars", folder / "host_vars")
        for file in sorted(place.glob("*.y*ml"))
        if file.with_suffix("").is_dir()
    ]


def variables_of(roles: Path) -> frozenset[str]:
    """The names that the roles in this folder take, and those that several of them share."""
    texts = [path.read_text() for path in sorted(roles.glob("*/defaults/main.yml"))]
    return _SHARED.union(*(re.findall(r"^(\w+):", text, re.M) for text in texts))


def misspelt(inventory: Inventory, known: frozenset[str]) -> list[Check]:
    """Variables that no role takes, and that look much like one that a role does take."""
    prefixes = tuple({name.partition("_")[0] + "_" for name in known})
    given = {name for variables in inventory.variables.values() for name in variables}
    found: list[Check] = []
    for name in sorted(given - known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near and name.startswith(prefixes):
            fix = f"did you mean {near[0]}?"
            found.append(Check("variables", WARN, f"no role takes {name}", fix))
    return found


def _groups(inventory: Inventory) -> Iterator[Check]:
    unknown = [
        name
        for name in inventory.groups
        if name not in _BUILT_IN and name not in GROUPS and not _below(inventory, name)
    ]
    for name in unknown:
        near = difflib.get_close_matches(name, GROUPS, n=1, cutoff=0.6)
        if near:
            yield Check(
                "groups", FAIL, f"group {name!r} is not known", f"did you mean {near[0]}? Rename it"
            )
        else:
            yield Check("groups", WARN, f"group {name!r} gets no role", f"known: {_known()}")
    left = sorted(set(inventory.groups.get("ungrouped", ())))
    if left:
        fix = f"put them into one of: {_known()}"
        yield Check("groups", FAIL, f"hosts in no group: {', '.join(left)}", fix)
    if not unknown and not left:
        counts = ", ".join(f"{len(inventory.groups.get(name, ()))} {name}" for name in GROUPS)
        yield Check("groups", OK, counts)


def _below(inventory: Inventory, name: str) -> bool:
    """Whether a group of the user's own only sorts hosts that a known group has."""
    known = {host for group in GROUPS for host in inventory.groups.get(group, ())}
    return bool(inventory.groups[name]) and known.issuperset(inventory.groups[name])


def _known() -> str:
    return ", ".join(GROUPS)


def _control(inventory: Inventory) -> Iterator[Check]:
    hosts = inventory.groups.get("control", ())
    if not hosts:
        yield Check("control", FAIL, "no control node", "put one host into the group control")
        return
    external = inventory.variables.get(hosts[0], {}).get("mongodb_mode") == "external"
    if len(hosts) % 2 == 0 and not external:
        found = f"{len(hosts)} control nodes; MongoDB needs an odd number of voters"
        yield Check("control", FAIL, found, "add or remove one, or set mongodb_mode: external")
    else:
        yield Check("control", OK, ", ".join(hosts))


def _shared_secrets(inventory: Inventory) -> Iterator[Check]:
    """What several control nodes have to be told alike, since each would make its own."""
    hosts = inventory.groups.get("control", ())
    for host in hosts if len(hosts) > 1 else ():
        known = inventory.variables.get(host, {})
        missing: list[str] = []
        if "api-token" not in known.get("store_secrets", ()):
            missing.append("store_secrets.api-token")
        if known.get("mongodb_mode", "replica_set") == "replica_set":
            missing += [name for name in _OF_A_REPLICA_SET if name not in known]
        if missing:
            found = f"{host} is not given {', '.join(missing)}, which all control nodes share"
            yield Check("secrets", FAIL, found, f"put them into a vault: {_VAULT}")


def _places(inventory: Inventory) -> Iterator[Check]:
    both = sorted(
        set(inventory.groups.get("gpu_nodes", ())) & set(inventory.groups.get("cpu_nodes", ()))
    )
    if both:
        found = f"in gpu_nodes and in cpu_nodes: {', '.join(both)}"
        yield Check("groups", FAIL, found, "leave each host in one of them")


def _addresses(inventory: Inventory) -> Iterator[Check]:
    holders, shown = _by(inventory.hosts, inventory.address), _by(inventory.hosts, inventory.shown)
    twice = {address: hosts for address, hosts in holders.items() if len(hosts) > 1}
    for address, hosts in twice.items():
        found = f"{' and '.join(hosts)} are the same machine, {address}"
        yield Check("addresses", FAIL, found, "give each its own ansible_host, or drop one")
    targets = {address: hosts for address, hosts in shown.items() if address and len(hosts) > 1}
    for address, hosts in targets.items():
        found = f"{' and '.join(hosts)} would be one target, {address}"
        yield Check("addresses", FAIL, found, "give each its own agl_address")
    if not twice and not targets:
        yield Check("addresses", OK, f"{len(holders)} different")


def _by(hosts: list[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        found[key(host)].append(host)
    return found


def _gpus(inventory: Inventory) -> Iterator[Check]:
    for host in inventory.groups.get("gpu_nodes", ()):
        promised = inventory.variables.get(host, {}).get("agl_gpus")
        if not isinstance(promised, int) or promised < 1:
            found = f"{host}: agl_gpus is {promised!r}"
            fix = "set agl_gpus to the number of its NVIDIA devices, or move it to cpu_nodes"
            yield Check("gpus", FAIL, found, fix)


def _drivers(inventory: Inventory) -> Iterator[Check]:
    """Distributions have no ``cuda-drivers-...``: without a repository few hosts can get it."""
    wanting = [
        host
        for host in inventory.groups.get("gpu_nodes", ())
        for known in [inventory.variables.get(host, {})]
        if not known.get("nvidia_driver_repository") and "nvidia_driver_packages" not in known
    ]
    if wanting:
        found = f"{', '.join(wanting)}: nvidia_driver_repository is not set"
        fix = "set it and nvidia_driver_key, unless the hosts' own package lists have the driver"
        yield Check("driver", WARN, found, fix)
