#!/usr/bin/python
"""Looks whether a host is ready for the roles; changes nothing."""

# The module runs on the hosts, with whatever Python they have (3.9 or newer).
from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: host_checks
short_description: Looks whether a host is ready for the roles
description: Reads the host and judges what it finds against what the inventory promises.
author: agl-stack
options:
  systems:
    description: Supported systems, as ID and VERSION_ID of os-release with a blank between.
    type: list
    elements: str
    required: true
  architectures:
    description: Supported machines, as uname names them.
    type: list
    elements: str
    required: true
  disk_gb:
    description: Free space that is needed on the file system of each path.
    type: dict
    default: {}
  nofile:
    description: Open files that every service is to have.
    type: int
    required: true
  ports:
    description: Ports of services, with the processes that may hold each and its groups.
    type: list
    elements: dict
    default: []
  groups:
    description: Groups of the host; only their ports are looked at.
    type: list
    elements: str
    default: []
  docker:
    description: Whether the host gets, or has, Docker.
    type: bool
    default: false
  docker_source:
    description: Where Docker is to come from where there is none (distribution, docker).
    type: str
    default: distribution
  docker_runtime:
    description: Whether daemon.json has to name the NVIDIA runtime.
    type: bool
    default: false
  gpus:
    description: NVIDIA devices that the inventory promises.
    type: int
    default: 0
  pci_path:
    description: Where the kernel lists PCI devices.
    type: path
    default: /sys/bus/pci/devices
  packages:
    description: Packages that disturb GPU work; names, and their version as a shell pattern.
    type: list
    elements: dict
    default: []
  release:
    description: Fingerprint of roles and inventory; a host finished with it will not change.
    type: str
    default: ""
  drain:
    description: Whether this run drains a host before it changes it.
    type: bool
    default: false
  only_gpu_work:
    description: Look at nothing but what uses the GPUs.
    type: bool
    default: false
"""
EXAMPLES = r"""
- host_checks:
    systems: [debian 13]
    architectures: [x86_64]
    nofile: 100000
"""
RETURN = r"""
agl_checks:
  description: One entry a check, with name, status (ok, warn, fail), what was found and the fix.
  type: list
  returned: always
gpu_work:
  description: Processes and containers that use the GPUs.
  type: list
  returned: always
host_time:
  description: The host's clock when the checks ended, in seconds since 1970.
  type: float
  returned: always
"""

OK, WARN, FAIL = "ok", "warn", "fail"
DAEMON_JSON = Path("/etc/docker/daemon.json")
OLDEST_DOCKER = (20, 10)
DEBIAN_12 = ("debian", "12")
SAFE_TOOLKIT = (1, 18, 1)
FINISHED = Path("/etc/agl/finished")
CAP_SYS_RESOURCE = 24
FS_IOC_GETFLAGS, FS_IMMUTABLE = 0x80086601, 0x10
TCP_LISTEN = "0A"
VENDOR_NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"


def check(name: str, status: str, found: str, fix: str = "") -> dict[str, str]:
    return {"name": name, "status": status, "found": found, "fix": fix}


def run(*command: str, seconds: int = 20) -> tuple[int, str]:
    """Exit status and output; 127 when there is no such program, 124 when it does not end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        return 127, ""
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout.strip()


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def system(systems: list[str], architectures: list[str]) -> list[dict[str, str]]:
    fields = os_release()
    version = fields.get("VERSION_ID", "")
    names = {f"{fields.get('ID')} {version}", f"{fields.get('ID')} {version.split('.')[0]}"}
    if "rhel" in fields.get("ID_LIKE", "").split() or fields.get("ID") == "rhel":
        names.add(f"rhel {version.split('.')[0]}")
    pretty, machine = fields.get("PRETTY_NAME", "unknown system"), os.uname().machine
    found = []
    if names.isdisjoint(systems):
        fix = f"install one of: {', '.join(systems)}"
        found.append(check("system", FAIL, f"{pretty} is not supported", fix))
    else:
        found.append(check("system", OK, pretty))
    if machine not in architectures:
        fix = f"take this host out of the inventory (supported: {', '.join(architectures)})"
        found.append(check("architecture", FAIL, f"{machine} is not supported", fix))
    return found


def privileges() -> list[dict[str, str]]:
    if os.geteuid() == 0:
        return [check("root", OK, "yes")]
    return [check("root", FAIL, "tasks do not run as root", "set ansible_become: true")]


def packages_whole() -> list[dict[str, str]]:
    code, output = run("dpkg", "--audit")
    if code == 127 or not output:
        return []
    broken = re.findall(r"^ (\S+)", output, re.M)
    return [
        check(
            "packages",
            FAIL,
            f"an earlier installation did not end: {', '.join(broken[:5])}",
            "sudo dpkg --configure -a && sudo apt-get -f install",
        )
    ]


def disks(wanted: dict[str, int]) -> list[dict[str, str]]:
    found = []
    for name, gigabytes in wanted.items():
        path = next(p for p in (Path(name), *Path(name).parents) if p.exists())
        free = shutil.disk_usage(path).free / 1e9
        text = f"{free:.1f} GB free for {name}"
        if free < float(gigabytes):
            fix = f"make room on the file system of {path}, or lower preflight_disk_gb"
            found.append(check("disk", FAIL, f"{text}; {gigabytes} GB needed", fix))
        else:
            found.append(check("disk", OK, text))
    return found


def nofile(wanted: int) -> list[dict[str, str]]:
    limits = re.search(r"^Max open files\s+\S+\s+(\S+)", read(Path("/proc/1/limits")), re.M)
    bounding = re.search(r"^CapBnd:\s+(\S+)", read(Path("/proc/1/status")), re.M)
    may_raise = bool(bounding) and bool(int(bounding[1], 16) >> CAP_SYS_RESOURCE & 1)
    ceiling = int(read(Path("/proc/sys/fs/nr_open")) or 1 << 20)
    if not may_raise and limits and limits[1].isdigit():
        ceiling = min(ceiling, int(limits[1]))
    if wanted > ceiling:
        fix = f"set agl_nofile: {ceiling} for this host, or raise the limit"
        if may_raise:
            fix = f"sudo sysctl fs.nr_open={wanted}"
        return [check("nofile", FAIL, f"{wanted} is above the hard limit {ceiling}", fix)]
    return [check("nofile", OK, f"{wanted} (hard limit {ceiling})")]


def listeners() -> dict[int, str]:
    """Listening TCP ports and the inode of a socket on each."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in read(Path("/proc/net") / name).splitlines()[1:]:
            fields = line.split()
            if fields[3] == TCP_LISTEN:
                found[int(fields[1].rsplit(":", 1)[1], 16)] = fields[9]
    return found


def holder(inode: str) -> str:
    """Name of a process that has this socket; processes and descriptors may end meanwhile."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            descriptors = list(folder.iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            with suppress(OSError):
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return read(folder.parent / "comm").strip()
    return ""


def ports(wanted: list[dict]) -> list[dict[str, str]]:
    taken, found = listeners(), []
    for entry in wanted:
        port = int(entry["port"])
        who = holder(taken[port]) if port in taken else ""
        if who and not any(who.startswith(name[:15]) for name in entry["by"]):
            fix = f"stop it (sudo ss -lptn 'sport = :{port}'), or set {entry['variable']}"
            found.append(check("port", FAIL, f"{port} is in use by {who}", fix))
    return found or [check("ports", OK, f"{len(wanted)} free or ours")]


def os_release() -> dict[str, str]:
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read(Path("/etc/os-release")), re.M))


def without_compose(status: str, found: str, fix: str, source: str) -> list[dict[str, str]]:
    """What is to be said of a host that gets Compose 2 by ``source``."""
    fields = os_release()
    if source == "distribution" and (fields.get("ID"), fields.get("VERSION_ID")) == DEBIAN_12:
        found += ", and Debian 12 has no Compose 2"
        return [check("docker", FAIL, found, "set docker_source: docker")]
    return [check("docker", status, found, fix)]


def docker_engine(source: str) -> list[dict[str, str]]:
    code, version = run("docker", "version", "--format", "{{.Server.Version}}")
    if code == 127:
        return without_compose(OK, "not there yet", "", source)
    if code != 0 or not version:
        return [
            check(
                "docker",
                FAIL,
                "it is there, and its daemon does not answer",
                "sudo systemctl status docker; sudo journalctl -u docker -n 50",
            )
        ]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_DOCKER:
        fix = "remove it and its repository (/etc/apt/sources.list.d), then apply again"
        return [check("docker", FAIL, f"{version} is too old (20.10 or newer)", fix)]
    code, compose = run("docker", "compose", "version", "--short")
    if code != 0:
        found = f"{version} without Compose 2"
        return without_compose(WARN, found, "apply installs its plugin", source)
    return [check("docker", OK, f"{version}, Compose {compose}")]


def unchangeable(path: Path) -> str:
    """Why root cannot write to ``path``; empty when it can."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    descriptor = os.open(path, os.O_RDONLY)
    try:
        packed = fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, struct.pack("l", 0))
        if struct.unpack("l", packed)[0] & FS_IMMUTABLE:
            return "it is immutable (chattr +i)"
    except OSError:
        pass  # a file system without such flags
    finally:
        os.close(descriptor)
    return ""


def daemon_json(runtime: bool) -> list[dict[str, str]]:
    if not DAEMON_JSON.exists():
        return []
    try:
        content = json.loads(read(DAEMON_JSON) or "{}")
    except ValueError as error:
        return [check("daemon.json", FAIL, f"no JSON: {error}", f"correct {DAEMON_JSON}")]
    if not isinstance(content, dict):
        return [check("daemon.json", FAIL, "no JSON object", f"correct {DAEMON_JSON}")]
    if runtime and "nvidia" not in content.get("runtimes", {}):
        why = unchangeable(DAEMON_JSON)
        if why:
            fix = (
                'add {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}'
                f" to {DAEMON_JSON}, or make it writable"
            )
            return [check("daemon.json", FAIL, f"the runtime cannot be added: {why}", fix)]
    return [check("daemon.json", OK, f"{len(content)} keys of yours stay")]


def gpus(promised: int, pci: Path) -> list[dict[str, str]]:
    if not promised:
        return []
    seen = sum(
        read(device / "vendor").strip() == VENDOR_NVIDIA
        and read(device / "class").startswith(DISPLAY_CLASS)
        for device in (pci.iterdir() if pci.is_dir() else ())
    )
    if seen == promised:
        return [check("gpus", OK, f"{seen} on the PCI bus")]
    fix = f"lspci -d 10de: on the host; or set agl_gpus: {seen} (0: move it to cpu_nodes)"
    found = f"{seen} on the PCI bus, the inventory promises {promised}"
    return [check("gpus", FAIL, found, fix)]


def installed(package: str) -> str:
    code, version = run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package)
    if code == 127:
        code, version = run("rpm", "-q", "--qf", "installed %{VERSION}-%{RELEASE}", package)
    state, _, number = version.partition(" ")
    return number if code == 0 and state == "installed" else ""


def gpu_containers() -> list[tuple[str, bool]]:
    """Running containers with GPUs, and whether each was given its devices explicitly."""
    code, ids = run("docker", "ps", "-q", "--no-trunc")
    found = []
    for container in ids.split() if code == 0 else ():
        _, text = run("docker", "inspect", "-f", "{{json .HostConfig}} {{.Name}}", container)
        body, _, name = text.rpartition(" ")
        config = json.loads(body or "{}")
        explicit = "nvidia" in json.dumps(config.get("Devices"))
        requested = any(
            request.get("Driver") in ("", "nvidia", "cdi")
            for request in config.get("DeviceRequests") or ()
        )
        # The exporter only looks, and its role stops and starts it as it needs.
        if name != "/dcgm-exporter" and (
            explicit or requested or config.get("Runtime") == "nvidia"
        ):
            found.append((f"container {name.lstrip('/')}", explicit))
    return found


def gpu_processes() -> list[str]:
    code, rows = run("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")
    return [f"process {row}" for row in rows.splitlines() if row.strip()] if code == 0 else []


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("-")[0])[:3])


def disturbing(packages: list[dict], release: str, drain: bool) -> list[dict[str, str]]:
    """Whether what this run would change takes GPUs from work that is running."""
    changes = [
        f"{name} {have or 'absent'} -> {entry['version']}"
        for entry in packages
        for name in entry["names"]
        for have in [installed(name)]
        if not have or not fnmatch(have, entry["version"])
    ]
    containers = gpu_containers()
    work = [name for name, _ in containers] + gpu_processes()
    if drain or not work:
        return [check("gpu work", OK, f"{len(work)} use GPUs")]
    fix = "scripts/cluster upgrade --limit HOST drains it first"
    if changes:
        found = f"{', '.join(work[:3])} would lose the GPUs by: {'; '.join(changes)}"
        return [check("gpu work", FAIL, found, fix)]
    survives = version_of(installed("nvidia-container-toolkit")) >= SAFE_TOOLKIT
    if containers and read(FINISHED).strip() != release and not survives:
        found = f"a daemon-reload would take the GPUs from {', '.join(work[:3])}"
        return [check("gpu work", FAIL, found, fix)]
    if containers and read(FINISHED).strip() != release and not all(e for _, e in containers):
        found = f"without explicit devices: {', '.join(n for n, e in containers if not e)}"
        return [check("gpu work", FAIL, found, fix)]
    return [check("gpu work", OK, f"{len(work)} use GPUs and go on")]


def main() -> None:
    spec = {
        "systems": {"type": "list", "elements": "str", "required": True},
        "architectures": {"type": "list", "elements": "str", "required": True},
        "disk_gb": {"type": "dict", "default": {}},
        "nofile": {"type": "int", "required": True},
        "ports": {"type": "list", "elements": "dict", "default": []},
        "groups": {"type": "list", "elements": "str", "default": []},
        "docker": {"type": "bool", "default": False},
        "docker_source": {"type": "str", "default": "distribution"},
        "docker_runtime": {"type": "bool", "default": False},
        "gpus": {"type": "int", "default": 0},
        "pci_path": {"type": "path", "default": "/sys/bus/pci/devices"},
        "packages": {"type": "list", "elements": "dict", "default": []},
        "release": {"type": "str", "default": ""},
        "drain": {"type": "bool", "default": False},
        "only_gpu_work": {"type": "bool", "default": False},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    given = module.params
    if given["only_gpu_work"]:
        work = [name for name, _ in gpu_containers()] + gpu_processes()
        # Shown when the wait for them has ended in vain.
        said = f"{', '.join(work[:3])} still use the GPUs: end them, or raise gpu_drain_minutes"
        module.exit_json(changed=False, gpu_work=work, msg=said if work else "")
    found = [
        *system(given["systems"], given["architectures"]),
        *privileges(),
        *packages_whole(),
        *disks(given["disk_gb"]),
        *nofile(given["nofile"]),
        *ports([p for p in given["ports"] if set(p["groups"]) & set(given["groups"])]),
        *(docker_engine(given["docker_source"]) if given["docker"] else ()),
        *daemon_json(given["docker_runtime"]),
        *gpus(given["gpus"], Path(given["pci_path"])),
        *(disturbing(given["packages"], given["release"], given["drain"]) if given["gpus"] else ()),
    ]
    module.exit_json(changed=False, agl_checks=found, host_time=time.time())


if __name__ == "__main__":
    main()
