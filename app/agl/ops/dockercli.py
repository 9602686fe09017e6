"""What the ``docker`` command line tells about itself and its daemon, asked without changing it.

Uses the standard library alone and runs on Python 3.9, since the preflight needs it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.ops.shapes import items, mapping, parsed, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_SECONDS = 20
LABEL = "com.docker.compose.project"


@dataclass(frozen=True)
class DockerFacts:
    """The CLI, its plugins and the daemon behind it; empty fields where something is missing."""

    cli: str = ""
    compose: str = ""
    buildx: str = ""
    server: str = ""
    root_dir: str = ""
    host: str = ""
    error: str = ""

    @property
    def reachable(self) -> bool:
        return bool(self.server)

    @property
    def silent(self) -> bool:
        """The command failed before it told anything, so its plugins are not known either."""
        return bool(self.error) and not (self.server or self.host)

    @property
    def denied(self) -> bool:
        """The socket is there, but this user may not use it."""
        return "permission denied" in self.error.lower()

    @property
    def local(self) -> bool:
        """The daemon runs on this machine, so its folders and ports are ours to look at."""
        return not self.host or self.host.startswith(("unix://", "npipe://"))


@dataclass(frozen=True)
class Network:
    """One Docker network: its name, the bridge behind it, its project and its subnets."""

    name: str
    bridge: str
    project: str
    subnets: tuple[str, ...] = ()


def ask(arguments: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``docker ARGUMENTS`` and return what it says; no answer in time is exit code 124."""
    command = ["docker", *arguments]
    try:
        return subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {ANSWER_SECONDS} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def read_docker(environ: Mapping[str, str]) -> DockerFacts:
    """Ask the CLI on ``PATH`` once for everything about itself and the daemon."""
    cli = shutil.which("docker", path=environ.get("PATH", os.defpath)) or ""
    if not cli:
        return DockerFacts()
    answer = ask(["info", "--format", "{{json .}}"], environ)
    info = parsed(answer.stdout)
    plugins = {
        str(plugin.get("Name")): str(plugin.get("Version", "")).lstrip("v")
        for plugin in items(mapping(info.get("ClientInfo")).get("Plugins"))
    }
    return DockerFacts(
        cli=cli,
        compose=plugins.get("compose", ""),
        buildx=plugins.get("buildx", ""),
        server=str(info.get("ServerVersion", "")),
        root_dir=str(info.get("DockerRootDir", "")),
        host=endpoint(environ),
        error=" ".join([*texts(info.get("ServerErrors")), answer.stderr.strip()]).strip(),
    )


def endpoint(environ: Mapping[str, str]) -> str:
    """The daemon's address in the context in force, e.g. ``unix:///var/run/docker.sock``."""
    answer = ask(["context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], environ)
    return answer.stdout.strip() if answer.returncode == 0 else environ.get("DOCKER_HOST", "")


def published_ports(project: str, environ: Mapping[str, str]) -> set[int]:
    """Host ports that running containers of ``project`` publish already."""
    answer = ask(["ps", "--filter", f"label={LABEL}={project}", "--format", "{{.Ports}}"], environ)
    return {int(port) for port in re.findall(r":(\d+)->", answer.stdout)}


def publisher(port: int, environ: Mapping[str, str]) -> str:
    """Name of a running container that publishes ``port``, or an empty string."""
    answer = ask(["ps", "--filter", f"publish={port}", "--format", "{{.Names}}"], environ)
    return answer.stdout.split("\n", 1)[0].strip() if answer.returncode == 0 else ""


def networks(environ: Mapping[str, str]) -> list[Network]:
    """Every network the daemon knows; an empty list when it does not answer."""
    names = ask(["network", "ls", "--quiet"], environ).stdout.split()
    if not names:
        return []
    answer = ask(["network", "inspect", *names], environ)
    try:
        return [_network(item) for item in json.loads(answer.stdout)]
    except ValueError:
        return []


def version_tuple(text: str) -> tuple[int, int]:
    """(major, minor) of a version string; (0, 0) when it has none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _network(item: dict[str, Any]) -> Network:
    options, labels = mapping(item.get("Options")), mapping(item.get("Labels"))
    configs = items(mapping(item.get("IPAM")).get("Config"))
    return Network(
        name=item["Name"],
        bridge=options.get("com.docker.network.bridge.name") or f"br-{item['Id'][:12]}",
        project=labels.get(LABEL, ""),
        subnets=tuple(str(config["Subnet"]) for config in configs if config.get("Subnet")),
    )
