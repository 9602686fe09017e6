"""Installing Docker: what would be done is decided from facts, and the key is the pinned one."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault
from agl.ops.docker_install import DOCKER_KEY_FINGERPRINT, Plan, check_key, make_plan
from agl.ops.dockercli import DockerFacts
from agl.ops.machine import System
from agl.ops.openpgp import primary_fingerprints

# A throw-away ed25519 key made for this test with gpg, which printed this fingerprint.
KEY_FINGERPRINT = "55D52C912A07A83AB37421570919A6A9EC630997"
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawxuCRYJKwYBBAHaRw8BAQdASXFi7xSm7y7nZ8v7CDOAl+hV4uxgvKnIMyut
c0CRrDC0EmFnbC1zdGFjayB0ZXN0IGtleYiQBBMWCAA4FiEEVdUskSoHqDqzdCFX
CRmmqexjCZcFAmsMbgkCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQCRmm
qexjCZezAwEAjDmShCJuuHXsRK7tJRhHBu1K4WUZvw8CAgCpD1ZyMSIBAKz2s74T
oRFLBtNFj+uKacOnM1bYbZDkONm4GXP35lAD
=0yAH
-----END PGP PUBLIC KEY BLOCK-----
"""

SYSTEMS = {
    "debian 12": System("debian", "12", "bookworm", "Debian 12"),
    "debian 13": System("debian", "13", "trixie", "Debian 13"),
    "ubuntu 22.04": System("ubuntu", "22.04", "jammy", "Ubuntu 22.04"),
    "ubuntu 24.04": System("ubuntu", "24.04", "noble", "Ubuntu 24.04"),
    "fedora 41": System("fedora", "41", "", "Fedora 41"),
}
NOTHING = DockerFacts()
ONLY_ENGINE = DockerFacts(cli="/usr/bin/docker", server="26.1.5")


def plan(
    system: str, docker: DockerFacts = NOTHING, *, has: str = "", reachable: bool = True
) -> Plan:
    return make_plan(SYSTEMS[system], docker, lambda name: name == has, _answers(reachable))


def _answers(reachable: bool) -> Callable[[str], bool]:
    return lambda url: reachable and url.startswith("https://download.docker.com/linux/")


class TestPlan:
    @pytest.mark.parametrize("system", ["debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"])
    def test_docker_itself_is_preferred(self, system: str) -> None:
        made = plan(system)
        assert made.repository.endswith(system.split()[0])
        assert made.codename == SYSTEMS[system].codename
        assert {"docker-ce", "docker-compose-plugin", "docker-buildx-plugin"} <= set(made.packages)
        assert DOCKER_KEY_FINGERPRINT in made.describe()[0]
        assert len(made.describe()) == 2

    @pytest.mark.parametrize(
        ("system", "packages"),
        [
            ("debian 13", {"docker.io", "docker-cli", "docker-compose", "docker-buildx"}),
            ("ubuntu 22.04", {"docker.io", "docker-compose-v2", "docker-buildx"}),
            ("ubuntu 24.04", {"docker.io", "docker-compose-v2", "docker-buildx"}),
        ],
    )
    def test_distribution_where_docker_does_not_answer(
        self, system: str, packages: set[str]
    ) -> None:
        made = plan(system, reachable=False)
        assert (made.repository, set(made.packages)) == ("", packages)
        assert "does not answer" in made.describe()[0]

    def test_debian_12_has_no_compose_of_its_own(self) -> None:
        with pytest.raises(EnvironmentFault, match=r"does not answer, and Debian 12 itself has no"):
            plan("debian 12", reachable=False)

    def test_unknown_system(self) -> None:
        with pytest.raises(EnvironmentFault, match="Fedora 41 is not a system this script"):
            plan("fedora 41")

    def test_an_engine_of_docker_gets_its_plugins_only(self) -> None:
        made = plan("debian 12", ONLY_ENGINE, has="docker-ce-cli")
        assert set(made.packages) == {"docker-buildx-plugin", "docker-compose-plugin"}

    def test_an_engine_of_the_distribution_stays_with_it(self) -> None:
        made = plan("debian 13", ONLY_ENGINE, has="docker.io")
        assert (made.repository, set(made.packages)) == ("", {"docker-buildx", "docker-compose"})

    def test_debian_12s_own_engine_cannot_be_completed(self) -> None:
        with pytest.raises(EnvironmentFault, match="own package, which has no Compose"):
            plan("debian 12", ONLY_ENGINE, has="docker.io")

    def test_an_engine_from_elsewhere_is_left_alone(self) -> None:
        with pytest.raises(EnvironmentFault, match="comes from no package"):
            plan("debian 13", ONLY_ENGINE)


class TestKey:
    def test_fingerprint_of_an_armoured_key(self) -> None:
        assert primary_fingerprints(KEY.encode()) == [KEY_FINGERPRINT]

    def test_fingerprint_of_a_binary_key(self) -> None:
        lines = KEY.splitlines()
        body = "".join(line for line in lines[lines.index("") + 1 : -1] if line[0] != "=")
        assert primary_fingerprints(base64.b64decode(body)) == [KEY_FINGERPRINT]

    @pytest.mark.parametrize(
        "path", sorted(Path("/usr/share/keyrings").glob("debian-archive-*stable*.gpg")), ids=str
    )
    def test_agrees_with_gpg(self, path: Path, tmp_path: Path) -> None:
        command = ["gpg", "--homedir", str(tmp_path), "--with-colons", "--show-keys", str(path)]
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except FileNotFoundError:
            pytest.skip("gpg is not installed")
        lines = said.splitlines()
        wanted = [
            following.split(":")[9]
            for line, following in pairwise(lines)
            if line.startswith("pub:")
        ]
        assert primary_fingerprints(path.read_bytes()) == wanted

    def test_another_key_is_refused(self) -> None:
        with pytest.raises(EnvironmentFault, match=f"not Docker's: {KEY_FINGERPRINT}"):
            check_key(KEY.encode())

    def test_a_second_key_beside_the_first_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agl.ops.docker_install.DOCKER_KEY_FINGERPRINT", KEY_FINGERPRINT)
        assert check_key(KEY.encode()) == KEY.encode()
        lines = KEY.splitlines()
        binary = base64.b64decode(
            "".join(line for line in lines[lines.index("") + 1 : -1] if line[0] != "=")
        )
        with pytest.raises(EnvironmentFault, match="nothing was installed"):
            check_key(binary * 2)
        with pytest.raises(EnvironmentFault, match="more than one armoured block"):
            check_key(KEY.encode() * 2)

    @pytest.mark.parametrize("content", [b"", b"<html>blocked</html>", KEY.encode()[:150]])
    def test_what_is_no_key_is_refused(self, content: bytes) -> None:
        with pytest.raises(EnvironmentFault, match="not Docker's"):
            check_key(content)

    def test_a_key_cut_short_is_refused(self) -> None:
        lines = KEY.splitlines()
        body = base64.b64decode(
            "".join(line for line in lines[lines.index("") + 1 : -1] if line[0] != "=")
        )
        with pytest.raises(EnvironmentFault, match="ends early"):
            check_key(body[:-10])
