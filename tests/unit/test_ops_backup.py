"""Backups on the host's side: which program made a file, and whether it is whole."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault
from agl.ops import backup
from agl.ops.backup import DRIVER, MONGODUMP, MONGODUMP_MAGIC, check_whole, method_of


@pytest.mark.parametrize(
    ("begin", "method"),
    [
        (MONGODUMP_MAGIC + b"\x00" * 60, MONGODUMP),
        (b'{"magic": "agl-mongo-dump", "format": 1}\n', DRIVER),
    ],
    ids=[MONGODUMP, DRIVER],
)
def test_what_made_a_file_shows_in_its_first_bytes(
    tmp_path: Path, begin: bytes, method: str
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(begin))
    assert method_of(path) == method


@pytest.mark.parametrize(
    "content",
    [b"", b"plain", gzip.compress(b"x"), gzip.compress(b"")[:9]],
    ids=["empty", "no gzip", "something else", "cut off"],
)
def test_what_is_no_backup_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=r"a\.gz is no backup"):
        method_of(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="there is no file"):
        method_of(tmp_path / "absent")


def test_damage_is_found_before_anything_is_changed(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(256)) * 4000)
    path = tmp_path / "a.gz"
    path.write_bytes(whole)
    check_whole(path)
    middle = len(whole) // 2
    for broken in (whole[:-20], whole[:middle] + b"\xff" * 9 + whole[middle + 9 :]):
        path.write_bytes(broken)
        with pytest.raises(EnvironmentFault, match=r"a\.gz is damaged"):
            check_whole(path)


@pytest.mark.parametrize("password", ["plain", 'quo"te', "back\\slash", "$(id) `id` 's", "a: b #c"])
def test_the_password_reaches_mongodbs_tools_by_a_file_alone(tmp_path: Path, password: str) -> None:
    """The tool itself is a script that tells what it was given; the shell around it is the real."""
    (tmp_path / "secret").write_text(password)
    (tmp_path / "tmp").mkdir()
    tool = tmp_path / "mongodump"
    tool.write_text(
        '#!/bin/sh\nfor word; do echo "$word"; done\n'
        'file=${1#--config=}; stat -c %a "$file"; cat "$file"\n'
    )
    tool.chmod(0o755)
    program = backup._TOOL.replace("/run/agl/secrets/mongo-root-password", f"{tmp_path}/secret")
    done = subprocess.run(
        ["sh", "-euc", program, "sh", str(tool), "--db=a b", "--archive"],
        env={"TMPDIR": str(tmp_path / "tmp"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    *words, mode, config = done.stdout.splitlines()
    assert words[1:] == [
        "--username=root",
        "--authenticationDatabase=admin",
        "--quiet",
        "--db=a b",
        "--archive",
    ]
    assert mode == "600"
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    assert config == f'password: "{escaped}"'
    assert not [word for word in words if password in word]
    assert list((tmp_path / "tmp").iterdir()) == []
