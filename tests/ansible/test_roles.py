"""What can be said of the roles without a host: arguments, documentation, lint, syntax."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ANSIBLE = Path(__file__).resolve().parents[2] / "ansible"
ROLES = sorted(path.name for path in (ANSIBLE / "roles").iterdir())
PLAYBOOKS = sorted(path.name for path in ANSIBLE.glob("*.yml"))
PYTHON_TYPES = {
    "str": str,
    "path": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) or {}


def options_of(role: str) -> dict[str, dict[str, Any]]:
    return load(ANSIBLE / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"][
        "options"
    ]


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_and_defaults_are_the_same(role: str) -> None:
    specs = options_of(role)
    defaults = load(ANSIBLE / "roles" / role / "defaults" / "main.yml")
    assert {name: spec.get("default") for name, spec in specs.items()} == defaults


@pytest.mark.parametrize("role", ROLES)
def test_arguments_are_typed_named_after_the_role_and_explained(role: str) -> None:
    readme = (ANSIBLE / "roles" / role / "README.md").read_text()
    for name, spec in options_of(role).items():
        assert name.startswith(f"{role}_")
        assert len(spec["description"]) > 10
        assert f"`{name}`" in readme
        default = spec["default"]
        templated = isinstance(default, str) and "{{" in default
        assert templated or isinstance(default, PYTHON_TYPES[spec["type"]]), name
        assert (spec["type"] == "list") == ("elements" in spec), name


@pytest.mark.parametrize("role", ROLES)
def test_readme_names_no_argument_that_is_not_there(role: str) -> None:
    readme = (ANSIBLE / "roles" / role / "README.md").read_text()
    rows = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    assert rows == set(options_of(role))


def test_a_switch_may_be_given_as_text() -> None:
    """As ``-e firewall_enabled=false`` and INI inventories do: unread, "false" would be true."""
    switches = [
        n for role in ROLES for n, spec in options_of(role).items() if spec["type"] == "bool"
    ]
    used = re.compile(rf"(?<![\w.-])({'|'.join(switches)})\b(?! *:)(.{{0,60}})")
    read = re.compile(r" \| (default\(.*\) \| )?bool\b")
    files = [*ANSIBLE.glob("*.yml"), *ANSIBLE.glob("roles/*/[tht]*/*.*")]
    uses = [(path, *use.groups()) for path in files for use in used.finditer(path.read_text())]
    assert {switch for _, switch, _ in uses} == set(switches)
    assert not [use for use in uses if not read.match(use[2])]


def test_the_example_sets_what_there_is() -> None:
    known = {name for role in ROLES for name in options_of(role)}
    shared = {"agl_nofile", "agl_address", "agl_images", "agl_gpus"}
    example = load(ANSIBLE / "inventory" / "example" / "group_vars" / "all" / "all.yml")
    assert {name for name in example if not name.startswith("ansible_")} <= known | shared


def run(ansible_bin: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{ansible_bin}:{os.environ['PATH']}"
    # ansible-lint asks for the syntax of imported playbooks; without an inventory there is none.
    environment = {
        **os.environ,
        "PATH": path,
        "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
        "ANSIBLE_INVENTORY": str(ANSIBLE / "inventory" / "example"),
    }
    return subprocess.run(
        command, cwd=ANSIBLE, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(600)
def test_ansible_lint_has_nothing_to_say(ansible_bin: Path) -> None:
    done = run(ansible_bin, "ansible-lint", "--offline", "--strict", "-q", "-f", "pep8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Failed to load" not in done.stderr  # said with exit status 0


@pytest.mark.parametrize("playbook", PLAYBOOKS)
@pytest.mark.timeout(300)
def test_syntax(ansible_bin: Path, playbook: str) -> None:
    inventory = ("--inventory", "inventory/example")
    done = run(ansible_bin, "ansible-playbook", "--syntax-check", *inventory, playbook)
    assert done.returncode == 0, done.stderr


def test_secrets_are_on_no_command_line() -> None:
    """Tasks that write a secret censor themselves, and no command is given one."""
    secret = ("_password", "_keyfile", "_secrets", "_key}}", "mongodb_uri")
    for path in ANSIBLE.glob("roles/*/tasks/*.yml"):
        for task in load(path):
            text = str({k: v for k, v in task.items() if k not in {"when", "name"}})
            if "argv" in text:
                assert not any(word in text for word in secret[:3]), f"{path}: {task['name']}"
            writes = "ansible.builtin.copy" in task and any(word in text for word in secret)
            assert not writes or "no_log" in task, f"{path}: {task['name']}"
