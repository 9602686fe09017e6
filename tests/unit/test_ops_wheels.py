"""Which lines of a lock another Python installs."""

from __future__ import annotations

import pytest

from agl.errors import UsageError
from agl.ops.wheels import check_versions, own_version, requirements_for

LOCK = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via agl-stack
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ba
pywin32==312 ; sys_platform == 'win32' \\
    --hash=sha256:ca
rich==15.0.0 \\
    --hash=sha256:da
    # via
    #   agl-stack
"""


@pytest.mark.parametrize(("version", "numpy"), [("3.11", "2.4.6"), ("3.13", "2.5.5")])
def test_conditions_are_those_of_the_other_python(version: str, numpy: str) -> None:
    lines = [line.split() for line in requirements_for(LOCK, version).splitlines()]
    assert [line[0] for line in lines] == [f"numpy=={numpy}", "rich==15.0.0"]
    hashes = {"3.11": ["--hash=sha256:aa", "--hash=sha256:ab"], "3.13": ["--hash=sha256:ba"]}
    assert lines[0][1:] == hashes[version]
    assert lines[1][1:] == ["--hash=sha256:da"]


@pytest.mark.parametrize("version", ["3.10", "2.7", "3", "3.13.1", "newest"])
def test_a_version_that_the_scripts_do_not_run_under(version: str) -> None:
    check_versions(["3.11", "3.13", own_version()])
    with pytest.raises(UsageError, match=f"such as 3.13, not '{version}'"):
        check_versions(["3.13", version])
