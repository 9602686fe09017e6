"""Preflight: what is wrong with a machine is found, named with a fix, and nothing is changed."""

from __future__ import annotations

import ast
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault, UsageError
from agl.ops import machine, preflight
from agl.ops.dockercli import DockerFacts, read_docker, version_tuple
from agl.ops.envfile import effective, parse_env_text
from agl.ops.images import nofile
from agl.ops.layout import Layout, check_mode, find_layout
from agl.ops.preflight import FAIL, INSTALL, JOIN_GROUP, OK, WARN, Check, Situation

Answer = subprocess.CompletedProcess[str]
REPOSITORY = Path(__file__).resolve().parents[2]
STDLIB_ONLY = [
    "errors.py",
    "ops/__init__.py",
    "ops/dockercli.py",
    "ops/envfile.py",
    "ops/layout.py",
    "ops/machine.py",
    "ops/options.py",
    "ops/preflight.py",
    "ops/shapes.py",
]
NO_DOCKER = DockerFacts()
GOOD_DOCKER = DockerFacts(
    cli="/usr/bin/docker", compose="2.26.1", buildx="0.13.1", server="26.1.5", root_dir="/"
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    compose = tmp_path / "a clone" / "compose"
    compose.mkdir(parents=True)
    shutil.copy(REPOSITORY / "compose" / ".env", compose / ".env")
    return Layout(tmp_path / "a clone", {"PATH": os.environ["PATH"]})


def situation(layout: Layout, docker: DockerFacts = NO_DOCKER, **variables: str) -> Situation:
    return Situation(layout, "memory", {**layout.variables(), **variables}, docker)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class TestEnvFile:
    @pytest.mark.parametrize(
        ("line", "value"),
        [
            ("A=plain", "plain"),
            ("A= spaced  # a comment", "spaced"),
            ("A=with#hash", "with#hash"),
            ("A='$B literal'", "$B literal"),
            ('A="two\\nlines"', "two\nlines"),
            ('A="quoted # no comment"', "quoted # no comment"),
            ("export A=exported", "exported"),
            ("A=", ""),
            ("A=# nothing", ""),
            ("A=${B}/x", "b/x"),
            ("A=$B", "b"),
            ("A=${MISSING:-default}", "default"),
            ("A=name:tag@sha256:abc", "name:tag@sha256:abc"),
        ],
    )
    def test_values_are_read_as_compose_reads_them(self, line: str, value: str) -> None:
        assert parse_env_text(f"B=b\n{line}\n")["A"] == value

    def test_environment_wins_over_later_file_over_earlier(self, tmp_path: Path) -> None:
        first, second = tmp_path / "1", tmp_path / "2"
        first.write_text("A=1\nB=1\nC=1\n")
        second.write_text("B=2\nC=2\n")
        found = effective([first, second, tmp_path / "absent"], {"C": "env"})
        assert found == {"A": "1", "B": "2", "C": "env"}

    def test_the_committed_file_is_understood_whole(self) -> None:
        text = (REPOSITORY / "compose" / ".env").read_text()
        assignments = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert len(parse_env_text(text)) == len(assignments) > 20


class TestPorts:
    def test_taken_port_names_its_holder_and_a_free_one(self, layout: Layout, taken: int) -> None:
        found = list(preflight.check_ports(situation(layout, AGL_PORT=str(taken))))
        assert found[0].status == FAIL
        assert f"(pid {os.getpid()})" in found[0].found
        offered = int(found[0].fix.rpartition("=")[2])
        with socket.create_server(("127.0.0.1", offered)):
            pass

    def test_free_port_passes(self, layout: Layout) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        checks = list(preflight.check_ports(situation(layout, AGL_PORT=str(port))))
        assert checks[0] == Check("port AGL_PORT", OK, f"{port} is free")

    def test_port_in_use_on_another_address_is_free(self, layout: Layout, taken: int) -> None:
        facts = situation(layout, AGL_PORT=str(taken), AGL_BIND="127.0.0.2")
        assert next(iter(preflight.check_ports(facts))).status == OK

    @pytest.mark.parametrize("value", ["http", "0", "65536", "-1", "²", "9" * 5000])
    def test_what_is_no_port_is_named(self, layout: Layout, value: str) -> None:
        check = next(iter(preflight.check_ports(situation(layout, AGL_PORT=value))))
        assert (check.status, check.fix) == (FAIL, "export AGL_PORT=4747")
        assert value in check.found

    def test_one_port_for_two_services_is_found(self, layout: Layout) -> None:
        facts = situation(layout, AGL_GRAFANA_PORT="4747")
        assert any("AGL_PORT too" in check.found for check in preflight.check_ports(facts))

    def test_listener_on_every_address_is_in_the_way_of_node_exporter(self, layout: Layout) -> None:
        with socket.create_server(("0.0.0.0", 0)) as server:
            port = str(server.getsockname()[1])
            facts = situation(layout, AGL_NODE_EXPORTER_PORT=port)
            checks = list(preflight.check_node_exporter_port(facts))
        assert checks[0].status == FAIL
        assert f"(pid {os.getpid()})" in checks[0].found

    @pytest.mark.parametrize("value", ["http", "99999", "²"])
    def test_node_exporter_needs_a_port_too(self, layout: Layout, value: str) -> None:
        facts = situation(layout, AGL_NODE_EXPORTER_PORT=value)
        (check,) = preflight.check_node_exporter_port(facts)
        assert (check.status, check.fix) == (FAIL, "export AGL_NODE_EXPORTER_PORT=9100")

    def test_listener_on_loopback_is_not(self, layout: Layout, taken: int) -> None:
        facts = situation(layout, AGL_NODE_EXPORTER_PORT=str(taken))
        assert [check.status for check in preflight.check_node_exporter_port(facts)] == [OK]


class TestAddresses:
    @pytest.mark.parametrize(
        ("value", "status", "says"),
        [
            ("127.0.0.1", OK, "this machine only"),
            ("0.0.0.0", OK, "asks for its token"),
            ("localhost", FAIL, "not an IP address"),
            ("203.0.113.77", FAIL, "no address 203.0.113.77"),
        ],
    )
    def test_bind(self, layout: Layout, value: str, status: str, says: str) -> None:
        check = next(iter(preflight.check_binds(situation(layout, AGL_BIND=value))))
        assert check.status == status
        assert says in check.found

    @pytest.mark.parametrize("name", ["GRAFANA", "RUNBOOKS"])
    def test_half_of_the_links_is_missing(self, layout: Layout, name: str) -> None:
        here = {f"AGL_{name}_EXTERNAL_URL": "http://train-1:9091"}
        (check,) = preflight.check_links(situation(layout, **here))
        assert check.status == WARN
        assert ("RUNBOOKS" if name == "GRAFANA" else "GRAFANA") in check.fix

    def test_all_or_none_of_the_links_are_set(self, layout: Layout) -> None:
        urls = dict.fromkeys(("AGL_GRAFANA_EXTERNAL_URL", "AGL_RUNBOOKS_EXTERNAL_URL"), "http://a")
        assert list(preflight.check_links(situation(layout))) == []
        assert list(preflight.check_links(situation(layout, **urls))) == []

    def test_subnet_over_a_route_of_this_machine(self, layout: Layout) -> None:
        routes = [item for item in machine.routes() if not item[0].startswith(("docker", "br-"))]
        if not routes:
            pytest.skip("this machine has no route but the default one")
        interface, network = routes[0]
        gateway = str(next(network.hosts()))
        facts = situation(layout, AGL_SUBNET=str(network), AGL_GATEWAY=gateway)
        check = next(iter(preflight.check_subnet(facts)))
        assert check.status == FAIL
        assert f"route to {network} through {interface}" in check.found
        name, subnet, other = check.fix.replace("=", " ").split()[1:4]
        assert (name, other) == ("AGL_SUBNET", "AGL_GATEWAY")
        assert not ipaddress.ip_network(subnet).overlaps(network)

    def test_gateway_outside_its_subnet(self, layout: Layout) -> None:
        facts = situation(layout, AGL_SUBNET="172.31.247.0/24", AGL_GATEWAY="10.9.8.1")
        check = next(iter(preflight.check_subnet(facts)))
        assert (check.status, check.fix) == (FAIL, "export AGL_GATEWAY=172.31.247.1")

    def test_subnet_that_is_none(self, layout: Layout) -> None:
        facts = situation(layout, AGL_SUBNET="172.31.247.5/24")
        assert next(iter(preflight.check_subnet(facts))).status == FAIL


class TestLimits:
    def test_nofile_above_the_limit_is_lowered_not_refused(self, layout: Layout) -> None:
        limit = machine.nofile_limit()
        checks = list(preflight.check_nofile(situation(layout, AGL_NOFILE=str(limit + 1))))
        assert (checks[0].status, checks[0].fix) == (WARN, f"export AGL_NOFILE={limit}")

    def test_nofile_at_the_limit_is_fine(self, layout: Layout) -> None:
        facts = situation(layout, AGL_NOFILE=str(machine.nofile_limit()))
        assert [check.status for check in preflight.check_nofile(facts)] == [OK]

    @pytest.mark.parametrize("value", ["many", "²", "-1", "12"])
    def test_nofile_that_is_no_limit(self, layout: Layout, value: str) -> None:
        (check,) = preflight.check_nofile(situation(layout, AGL_NOFILE=value))
        assert check.status == FAIL
        asked = Layout(layout.root, {**layout.environ, "AGL_NOFILE": value})
        with pytest.raises(EnvironmentFault, match="AGL_NOFILE"):
            nofile(asked)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("AGL_APP_MEMORY", "-5g"), ("PROMETHEUS_MEMORY", "much"), ("AGL_MULTIPROC_SIZE", "0")],
    )
    def test_what_is_no_size_is_named(self, layout: Layout, name: str, value: str) -> None:
        (check,) = preflight.check_sizes(situation(layout, **{name: value}))
        assert (check.name, check.status) == (name, FAIL)
        assert repr(value) in check.found

    @pytest.mark.parametrize("value", ["4294967296", "4g", "4GiB", "4096MB", "4194304k"])
    def test_sizes_are_read_as_compose_reads_them(self, layout: Layout, value: str) -> None:
        assert list(preflight.check_sizes(situation(layout, AGL_APP_MEMORY=value))) == []

    def test_metrics_folder_that_the_stores_limit_does_not_allow_for(self, layout: Layout) -> None:
        facts = situation(layout, AGL_MULTIPROC_SIZE="4g")
        (check,) = preflight.check_sizes(facts)
        assert (check.name, check.status) == ("AGL_APP_MEMORY", FAIL)

    def test_full_disk(self, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preflight, "DISK_NEEDED", 1 << 60)
        check = next(iter(preflight.check_disk(situation(layout, GOOD_DOCKER))))
        assert (check.status, check.fix.split()[0]) == (FAIL, "docker")

    def test_little_memory(self, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preflight, "MEMORY_NEEDED", 1 << 60)
        assert next(iter(preflight.check_memory(situation(layout)))).status == FAIL

    def test_unknown_system_is_a_warning(
        self, layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        release = tmp_path / "os-release"
        release.write_text('ID=fedora\nVERSION_ID="41"\nPRETTY_NAME="Fedora 41"\n')
        system = machine.read_system(release)
        monkeypatch.setattr(machine, "read_system", lambda: system)
        check = next(iter(preflight.check_system(situation(layout))))
        assert check.status == WARN
        assert "Fedora 41" in check.found


class TestDocker:
    def test_no_cli(self, layout: Layout) -> None:
        checks = list(preflight.check_docker(situation(layout, read_docker({"PATH": "/nowhere"}))))
        assert (checks[0].status, checks[0].by_up) == (FAIL, INSTALL)

    @pytest.mark.skipif(not shutil.which("docker"), reason="needs the docker command")
    def test_daemon_that_does_not_answer(self, layout: Layout) -> None:
        environ = {"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:1"}
        check = next(iter(preflight.check_docker(situation(layout, read_docker(environ)))))
        assert check.status == FAIL
        assert check.found == "the daemon does not answer at tcp://127.0.0.1:1"
        assert not check.by_up

    @pytest.mark.skipif(
        not shutil.which("docker") or os.geteuid() != 0,
        reason="needs docker, and root to be nobody",
    )
    def test_socket_without_permission(self, layout: Layout, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        path = Path("/run") / f"agl-test-{os.getpid()}.sock"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            try:
                path.chmod(0o600)
                server.listen()
                code = (
                    "import os; from agl.ops.dockercli import read_docker\n"
                    "os.setgid(65534); os.setuid(65534)\n"
                    "facts = read_docker(dict(os.environ))\n"
                    "print(facts.denied, facts.reachable)"
                )
                environ = {
                    "PATH": os.environ["PATH"],
                    "HOME": "/nonexistent",
                    "DOCKER_HOST": f"unix://{path}",
                }
                answer = subprocess.run(
                    [sys.executable, "-c", code], env=environ, capture_output=True, text=True
                )
            finally:
                path.unlink()
        assert answer.stdout.split() == ["True", "False"], answer.stderr

    def test_permission_has_its_own_fix(self, layout: Layout) -> None:
        facts = DockerFacts(cli="docker", host="unix:///s", error="permission denied while trying")
        check = next(iter(preflight.check_docker(situation(layout, facts))))
        assert check.found == "no permission to use /s"
        assert "usermod" in check.fix
        assert check.by_up == JOIN_GROUP

    @pytest.mark.parametrize(
        ("version", "status"),
        [("", FAIL), ("1.29.2", FAIL), ("2.23.3", FAIL), ("2.24.0", OK), ("5.0.1-desktop.1", OK)],
    )
    def test_compose(self, layout: Layout, version: str, status: str) -> None:
        facts = DockerFacts(cli="docker", compose=version)
        check = next(iter(preflight.check_compose(situation(layout, facts))))
        assert check.status == status

    def test_a_command_that_tells_nothing_is_not_said_to_lack_plugins(self, layout: Layout) -> None:
        facts = DockerFacts(cli="docker", error='context "nope": context not found')
        found = situation(layout, facts)
        (check,) = preflight.check_docker(found)
        assert "context not found" in check.found
        assert not [*preflight.check_compose(found), *preflight.check_buildx(found)]

    def test_version_without_numbers(self) -> None:
        assert version_tuple("dev") == (0, 0)


class TestProgram:
    @pytest.mark.parametrize("name", STDLIB_ONLY)
    def test_speaks_python_3_9(self, name: str) -> None:
        source = (REPOSITORY / "app" / "agl" / name).read_text()
        ast.parse(source, feature_version=(3, 9))

    def run(
        self, *arguments: str, python: str = sys.executable
    ) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY / "app"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DOCKER_HOST": "tcp://127.0.0.1:1",
        }
        return subprocess.run(
            [python, "-S", "-m", "agl.ops.preflight", *arguments],
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def test_runs_without_any_installed_package(self) -> None:
        answer = self.run()
        assert answer.returncode == 1
        assert "not ready: docker" in answer.stdout, answer.stderr
        assert answer.stderr == ""

    def test_runs_on_an_old_python(self) -> None:
        versions = Path.home() / ".pyenv" / "versions"
        candidates = [shutil.which("python3.9"), *map(str, versions.glob("3.9.*/bin/python3.9"))]
        python = next((c for c in candidates if c and self.run(python=c).returncode != 127), None)
        if python is None:
            pytest.skip("there is no Python 3.9 here; its grammar is checked by another test")
        answer = self.run(python=python)
        assert "not ready: docker" in answer.stdout, answer.stderr

    def test_every_failure_has_a_fix(self) -> None:
        lines = self.run().stdout.splitlines()
        for line, following in pairwise(lines):
            if line.lstrip().startswith("FAIL"):
                assert following.strip().startswith("fix: ")

    def test_brief_is_silent_about_what_up_installs(self) -> None:
        answer = self.run("--brief")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert "docker" in answer.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ["mango"],
            ["memory", "--lab"],
            ["mongo", "--lab", "--offline", "file.tar"],
            ["--bogus"],
            ["--timeout", "soon"],
            ["--timeout", "0"],
            ["--timeout", "nan"],
            ["--off", "file.tar"],
        ],
    )
    def test_usage(self, arguments: list[str]) -> None:
        answer = self.run(*arguments)
        assert answer.returncode == 2
        assert len(answer.stderr.splitlines()) == 1

    def test_options_with_values_are_not_taken_for_the_mode(self) -> None:
        answer = self.run("--offline", "some file.tar", "store")
        assert answer.returncode == 1
        assert "AGL_GRAFANA_PORT" not in answer.stdout


class TestLayout:
    def test_unknown_mode_names_the_known_ones(self) -> None:
        with pytest.raises(UsageError, match=r"'mango' \(known modes: memory, mongo, store\)"):
            check_mode("mango")

    def test_project_comes_from_the_environment(self, layout: Layout) -> None:
        assert layout.project == "agl"
        assert Layout(layout.root, {"COMPOSE_PROJECT_NAME": "other"}).project == "other"

    def test_a_checkout_is_found(self) -> None:
        assert find_layout({}).root == REPOSITORY

    def test_no_checkout_is_one_clear_line(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(
            "agl.ops.layout.__file__", str(tmp_path / "a" / "b" / "c" / "layout.py")
        )
        with pytest.raises(EnvironmentFault, match="no bundle here"):
            find_layout({}, tmp_path)
