"""Docker for a machine that has none: from Docker's repository, else from the distribution.

First a plan is made, which changes nothing; it is said; then, and only after consent, it is done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops import dockercli, machine
from agl.ops.openpgp import primary_fingerprints
from agl.ops.preflight import ARCHITECTURES, COMPOSE_MINIMUM

DOCKER_REPOSITORY = "https://download.docker.com/linux"
DOCKER_KEY_FINGERPRINT = "9DC858229FC7DD38854AE2D88D81803C0EBFCD88"
KEYRING = Path("/etc/apt/keyrings/docker.asc")
SOURCES = Path("/etc/apt/sources.list.d/docker.sources")
ANSWER_SECONDS = 8
CODENAMES = {
    ("debian", "12"): "bookworm",
    ("debian", "13"): "trixie",
    ("ubuntu", "22.04"): "jammy",
    ("ubuntu", "24.04"): "noble",
}
ENGINE_FROM_DOCKER = ("docker-ce", "docker-ce-cli", "containerd.io")
PLUGINS_FROM_DOCKER = ("docker-buildx-plugin", "docker-compose-plugin")
FROM_DISTRIBUTION = {
    ("debian", "13"): (("docker.io", "docker-cli"), ("docker-buildx", "docker-compose")),
    ("ubuntu", "22.04"): (("docker.io",), ("docker-buildx", "docker-compose-v2")),
    ("ubuntu", "24.04"): (("docker.io",), ("docker-buildx", "docker-compose-v2")),
}


@dataclass(frozen=True)
class Plan:
    """What would be installed, and from where; ``repository`` is empty for the distribution."""

    packages: tuple[str, ...]
    repository: str
    codename: str

    @property
    def source(self) -> str:
        if self.repository:
            return f"Docker's apt repository ({self.repository}, key {DOCKER_KEY_FINGERPRINT})"
        return "the distribution's packages (Docker's repository does not answer)"

    def describe(self) -> list[str]:
        """One line a change that the plan makes to the machine."""
        lines = [f"install {', '.join(self.packages)} from {self.source}"]
        if self.repository:
            lines.append(f"write {KEYRING} and {SOURCES}")
        return lines


def make_plan(
    system: machine.System,
    docker: dockercli.DockerFacts,
    installed: Callable[[str], bool],
    repository_answers: Callable[[str], bool],
) -> Plan:
    """What has to be installed on ``system`` to get from ``docker`` to all that is needed.

    An engine that is there stays: only its plugins are added, from where the engine came.
    Raises EnvironmentFault when there is no way, with what the operator can do himself.
    """
    key = (system.id, system.version)
    if key not in CODENAMES:
        raise EnvironmentFault(
            f"{system.pretty} is not a system this script can install Docker on",
            remedy=f"install it with Compose {_wanted()} (docs.docker.com/engine/install)",
        )
    if docker.cli and not (installed("docker-ce-cli") or installed("docker.io")):
        raise EnvironmentFault(
            f"{docker.cli} comes from no package, so its plugins cannot be installed beside it",
            remedy=f"install the Compose ({_wanted()}) and buildx plugins the way Docker came",
        )
    url = f"{DOCKER_REPOSITORY}/{system.id}"
    theirs = not docker.cli or installed("docker-ce-cli")
    if theirs and repository_answers(f"{url}/dists/{CODENAMES[key]}/Release"):
        engine = () if docker.cli else ENGINE_FROM_DOCKER
        return Plan((*engine, *PLUGINS_FROM_DOCKER), url, CODENAMES[key])
    if key not in FROM_DISTRIBUTION or (theirs and docker.cli):
        raise EnvironmentFault(_no_way(system, theirs), remedy=_own_way(docker))
    engine, plugins = FROM_DISTRIBUTION[key]
    return Plan((*(() if docker.cli else engine), *plugins), "", CODENAMES[key])


def _wanted() -> str:
    return f"{'.'.join(map(str, COMPOSE_MINIMUM))} or newer"


def _no_way(system: machine.System, needs_repository: bool) -> str:
    if needs_repository:
        return (
            f"{DOCKER_REPOSITORY} does not answer, and {system.pretty} itself has no"
            f" Compose {_wanted()}"
        )
    return f"Docker here is {system.pretty}'s own package, which has no Compose {_wanted()}"


def _own_way(docker: dockercli.DockerFacts) -> str:
    if docker.cli:
        return "replace docker.io by Docker's packages (docs.docker.com/engine/install/debian)"
    return "let this machine reach that host (https_proxy), or install Docker yourself"


def plan_here(docker: dockercli.DockerFacts) -> Plan:
    """``make_plan`` for this machine."""
    return make_plan(machine.read_system(), docker, package_installed, answers)


def package_installed(name: str) -> bool:
    """Whether dpkg has the package ``name`` installed."""
    answer = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() == "installed"


def answers(url: str) -> bool:
    """Whether ``url`` can be fetched within a few seconds."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:  # noqa: S310
            return bool(response.read(1))
    except (OSError, ValueError):
        return False


def carry_out(plan: Plan, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Do what the plan says. Raises EnvironmentFault at the first step that does not work."""
    if plan.repository:
        apt(["update"], environ, say)
        apt(["install", "ca-certificates"], environ, say)
        key = fetch_key(f"{plan.repository}/gpg")
        _write_as_root(KEYRING, key, environ)
        _write_as_root(SOURCES, _sources(plan).encode(), environ)
    apt(["update"], environ, say)
    if not plan.repository:
        _check_candidate(plan)
    apt(["install", *plan.packages], environ, say)
    if Path("/run/systemd/system").is_dir():  # systemd is in charge: packages may not start it
        say("systemctl enable --now docker")
        as_root(["systemctl", "enable", "--now", "docker"], environ)  # preflight judges the outcome


def fetch_key(url: str) -> bytes:
    """Docker's signing key. Raises EnvironmentFault unless it is the pinned one and alone."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as response:  # noqa: S310
            key = bytes(response.read(1 << 20))
    except OSError as error:
        raise EnvironmentFault(
            f"Docker's signing key could not be fetched from {url}: {error}",
            remedy="check the network, then run this again",
        ) from error
    return check_key(key)


def check_key(key: bytes) -> bytes:
    """``key`` itself. Raises EnvironmentFault unless it is the pinned key and nothing else."""
    try:
        found = primary_fingerprints(key)
    except (ValueError, IndexError) as error:
        found = [str(error)]
    if found != [DOCKER_KEY_FINGERPRINT]:
        raise EnvironmentFault(
            f"the key that was fetched is not Docker's: {', '.join(found) or 'no key in it'}",
            remedy=f"nothing was installed; the key has to be {DOCKER_KEY_FINGERPRINT} alone",
        )
    return key


def apt(arguments: list[str], environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Run apt-get as root, with no question asked. Raises EnvironmentFault when it fails."""
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    if arguments[0] == "install":
        command[1:1] = ["-y", "--no-install-recommends"]
    say(" ".join(["apt-get", *arguments]))
    answer = as_root(command, environ)
    if answer.returncode != 0:
        last = (answer.stderr.strip() or answer.stdout.strip() or "no reason given").splitlines()
        raise EnvironmentFault(
            f"apt-get {arguments[0]} failed: {last[-1]}",
            remedy=f"type: sudo {' '.join(['apt-get', *arguments])}",
        )


def as_root(
    command: list[str], environ: Mapping[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` as root, through sudo where needed; sudo asks only on a terminal."""
    prefix: list[str] = []
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise EnvironmentFault(
                "this needs root, and there is no sudo", remedy="run it again as root"
            )
        prefix = ["sudo", *(() if os.isatty(0) else ("-n",))]
    answer = subprocess.run(
        [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", *command],
        env=dict(environ),
        input=stdin,
        capture_output=True,
        check=False,
    )
    return subprocess.CompletedProcess(
        command,
        answer.returncode,
        answer.stdout.decode(errors="replace"),
        answer.stderr.decode(errors="replace"),
    )


def _sources(plan: Plan) -> str:
    architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    return (
        f"Types: deb\nURIs: {plan.repository}\nSuites: {plan.codename}\nComponents: stable\n"
        f"Architectures: {architecture}\nSigned-By: {KEYRING}\n"
    )


def _write_as_root(path: Path, content: bytes, environ: Mapping[str, str]) -> None:
    """Write a file of mode 0644 whatever the umask is: apt reads it as an ordinary user."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        answer = as_root(["install", "-D", "-m", "0644", file.name, str(path)], environ)
    if answer.returncode != 0:
        raise EnvironmentFault(f"{path} could not be written: {answer.stderr.strip()}")


def _check_candidate(plan: Plan) -> None:
    package = next(name for name in plan.packages if name.startswith("docker-compose"))
    answer = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, check=False
    )
    lines = (line.split(":", 1) for line in answer.stdout.splitlines() if ":" in line)
    candidate = next((value.strip() for key, value in lines if key.strip() == "Candidate"), "none")
    if dockercli.version_tuple(candidate) < COMPOSE_MINIMUM:
        raise EnvironmentFault(
            f"the distribution offers {package} {candidate}; Compose {_wanted()} is needed",
            remedy="let this machine reach download.docker.com, or install Docker yourself",
        )
