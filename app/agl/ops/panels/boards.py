"""The dashboards' own files, read as they are; what is wrong with one is said, not raised."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agl.ops.shapes import mapping, texts

MAX_FILE = 16 << 20


@dataclass(frozen=True)
class Board:
    """One dashboard as its file has it.

    Attributes:
        problem: Why the file is no dashboard; empty when it is one. ``content`` is empty then.
    """

    uid: str
    title: str
    path: Path
    content: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    problem: str = ""

    @property
    def tags(self) -> list[str]:
        return texts(self.content.get("tags"))

    @property
    def description(self) -> str:
        return str(self.content.get("description") or "")

    @property
    def slug(self) -> str:
        """The last part of the address, which Grafana adds for people."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "dashboard"

    @property
    def path_of_page(self) -> str:
        return f"/d/{self.uid}/{self.slug}"


@dataclass
class Library:
    """The dashboards of a folder, read anew when a file has changed."""

    folder: Path
    _read: dict[Path, tuple[tuple[int, int], Board]] = field(
        default_factory=dict[Path, "tuple[tuple[int, int], Board]"]
    )

    def boards(self) -> list[Board]:
        """Every dashboard, by title; broken files too, with their problem."""
        found: dict[Path, tuple[tuple[int, int], Board]] = {}
        for path in sorted(self.folder.rglob("*.json")):
            try:
                stat = path.stat()
            except OSError:
                continue
            mark = (stat.st_mtime_ns, stat.st_size)
            known = self._read.get(path)
            found[path] = known if known and known[0] == mark else (mark, read_board(path))
        self._read = found
        return _distinct(sorted((b for _, b in found.values()), key=lambda b: b.title.casefold()))

    def get(self, uid: str) -> Board | None:
        """The dashboard with this uid."""
        return next((board for board in self.boards() if board.uid == uid), None)

    @property
    def problem(self) -> str:
        """Why there are no dashboards; empty when there are."""
        if not self.folder.is_dir():
            return f"the folder {self.folder} does not exist"
        return "" if self.boards() else f"no *.json in {self.folder}"


def read_board(path: Path) -> Board:
    """Read one file; a file that is no dashboard gives a board with a problem."""
    uid = re.sub(r"[^\w-]", "-", path.stem)
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"larger than {MAX_FILE >> 20} MiB")
        content = json.loads(path.read_text("utf-8"), parse_constant=_refuse)
        return _board(path, uid, content)
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return Board(uid, path.name, path, problem=f"{path.name}: {reason}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _board(path: Path, uid: str, content: Any) -> Board:
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object, so no dashboard")
    content = cast("dict[str, Any]", content)
    # What Grafana's API answers, and what its files hold, differ by this wrapper.
    content = mapping(content.get("dashboard")) or content
    if "elements" in content or "elements" in mapping(content.get("spec")):
        raise ValueError(
            "it has Grafana's schema version 2 (elements), which is not read here; export the"
            ' classic model (with "panels")'
        )
    if not isinstance(content.get("panels"), list):
        raise ValueError('it has no list of "panels", so it is no dashboard')
    found = content.get("uid")
    if isinstance(found, str) and re.fullmatch(r"[\w-]{1,80}", found):
        uid = found
    title = content.get("title")
    return Board(uid, title if isinstance(title, str) and title else path.name, path, content)


def _distinct(boards: list[Board]) -> list[Board]:
    """A uid that is there twice is told, since only one of them can be reached by it."""
    seen: dict[str, Board] = {}
    found: list[Board] = []
    for board in boards:
        first = seen.setdefault(board.uid, board)
        if first is not board:
            problem = f"{board.path.name} has the same uid as {first.path.name}: {board.uid}"
            uid = f"{board.uid}-{board.path.stem}"
            board = Board(uid, board.title, board.path, problem=problem)
        found.append(board)
    return found
