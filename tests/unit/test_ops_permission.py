"""A user without the rights of the group docker: asked, or told, but never left hanging."""

from __future__ import annotations

import grp
import os
import subprocess
import sys

import pytest

from agl.ops import permission

CODE = """
import os, sys
from agl.errors import EnvironmentFault
from agl.ops import permission
from agl.ops.console import Console
console = Console({})
os.setgid(65534); os.setuid(65534)
permission.GROUP = sys.argv[1]
try:
    permission.with_docker_group({}, console, yes=False)
    print("came back")
except EnvironmentFault as error:
    sys.exit(str(error))
"""


def as_nobody(group: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, group],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root's rights to become somebody else")
class TestNobody:
    def test_without_a_terminal_he_is_told_what_to_type(self) -> None:
        answer = as_nobody(grp.getgrall()[0].gr_name)
        assert "run it again with --yes" in answer.stderr
        assert "usermod -aG docker" in answer.stderr
        assert "came back" not in answer.stdout

    def test_a_machine_without_that_group_has_nothing_to_join(self) -> None:
        answer = as_nobody("agl-no-such-group")
        assert (answer.stdout, answer.stderr) == ("came back\n", "")


def test_a_second_try_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from agl.ops.console import Console

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("started again"))
    permission.with_docker_group({permission.MARK: "1"}, Console({}), yes=True)
