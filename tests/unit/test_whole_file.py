"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agl.utils.whole_file import whole_file


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "result"
    target.write_text("old")
    with whole_file(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_there_stays_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "result"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(target) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "result", tmp_path / "link"
    link.symlink_to(target)
    with whole_file(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_what_is_no_plain_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    with whole_file(pipe) as partial:
        partial.write_text("new")
    reader.join(60)
    assert read == ["new"]
    assert pipe.is_fifo()
